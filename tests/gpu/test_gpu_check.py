"""scripts/gpu_check without a GPU: the bundle is complete and small, every part of the check is rehearsed on the CPU, and what fails or hangs is said."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["TACC_BUILD"])
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/gpu", "tests", "bench", "client/python")]
import gpu_step  # noqa: E402
import tools  # noqa: E402
import trainings  # noqa: E402
from pack import BENCHES, DEFAULT, MAX_BYTES, MIB, SYSTEM_LIBRARIES, Packer, bytes_of, bytes_of_tree  # noqa: E402

# Nothing of this build but the bundle and the Python with torch.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in ("TACC_BUILD", "PYTHONPATH", "LD_LIBRARY_PATH")}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gpu") / "bundle"
    subprocess.run([sys.executable, ROOT / "scripts/gpu_check", "--pack", folder, "--build", BUILD, "--families", "llama,exported gpt2"], check=True, env=ENVIRONMENT)
    return folder


def run_check(bundle: Path, out: Path, *options: str) -> tuple[int, dict]:
    ended = subprocess.run([sys.executable, bundle / "gpu_check", "--out", out, *options], env=ENVIRONMENT, cwd=out.parent, capture_output=True, text=True)
    assert ended.returncode in (0, 1), ended.stderr
    return ended.returncode, json.loads((out / "gpu_check.json").read_text())


def results(report: dict) -> dict[str, str]:
    return {f"{part['part']}: {check['check']}": check["result"] for part in report["parts"] for check in part["checks"]}


def test_the_bundle_and_the_tree_are_small(bundle, tmp_path, monkeypatch):
    """As packed by bench/README.md's command: the bundle above with the families that a pack has. Without the references' trainings, for only the number
    of their losses counts here."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["families"] == ["llama", "exported gpt2"] and 0 <= bytes_of(bundle) - manifest["bytes"] < 1000  # The manifest itself.
    assert manifest["tree_bytes"] == bytes_of_tree(ROOT, bundle) > 0
    monkeypatch.syspath_prepend(str(ROOT / "tests/parity"))
    import training

    monkeypatch.setattr(training, "reference_run", lambda *_: SimpleNamespace(losses=[1 / 3] * training.NUM_STEPS))
    assert Packer(BUILD, tmp_path).pack_families(DEFAULT) == DEFAULT
    total = bytes_of(bundle) - bytes_of(bundle / "families") + bytes_of(tmp_path / "families")
    folders = ", ".join(f"{path.name} {bytes_of(path) / MIB:.1f}" for path in sorted(bundle.iterdir()) if path.is_dir())
    print(f"MiB: tree {manifest['tree_bytes'] / MIB:.1f}; {folders}; all {total / MIB:.1f}")
    assert total + manifest["tree_bytes"] <= MAX_BYTES == 60 * MIB
    assert "scripts/gpu_check --pack build/gpu-bundle      # in a built checkout: with its files less than 60 MiB" in (ROOT / "bench/README.md").read_text()


def test_the_module_has_the_kernels_that_are_counted(bundle):
    """By the names that it gives CUDA."""
    module = (bundle / "bin/libtacc_cuda.so").read_bytes()
    for functor in tools.KERNELS.values():
        assert functor.encode() in module, functor


def test_benches_recompute_nothing_and_reach_what_gpus_have(bundle):
    for name, fitting in (("olmo-1b", {80: 18, 141: 36}), ("llama-1b", {80: 18, 141: 36})):
        case = bundle / "bench" / name
        summaries = {size: trainings.summary(case, f"bf16-{size}", "cuda:0") for size in json.loads((case / "bench.json").read_text())["sizes"]}
        assert not any(summary["gc"] or summary["recompute_units"] for summary in summaries.values())
        for gigabytes, size in fitting.items():
            assert max(s for s, summary in summaries.items() if summary["memory"]["total_bytes"] < gigabytes * 1e9) >= size


def test_what_is_expected_of_a_step_is_counted_from_the_program_that_is_run(tmp_path):
    """By what the program's predicted trace says of its nodes."""
    packer, facts, case = Packer(BUILD, tmp_path), BENCHES["olmo-1b"], tmp_path / "olmo-1b"
    packer.write_model(case, facts.config)
    request = packer.training(case, facts.config, facts.seq_len, gpu_step.OLMO_1B_BATCH, "bf16", micro_batch=gpu_step.OLMO_1B_BATCH)
    request["job"]["memory"] = {"gc": False}
    request["job"]["train"]["trace_step"] = 1
    packer.compile(request, case, "bf16", ("cuda",))
    nodes = [event for event in json.loads((case / "bf16-cuda/trace.json").read_text())["traceEvents"] if event.get("cat") == "node"]
    left = {node["name"] for node in nodes}
    for share in (*gpu_step.OLMO_1B_SHARES, gpu_step.REST):
        own = [node for node in nodes if node["name"] in left and re.fullmatch(share.ops or ".*", node["name"])]
        left -= {node["name"] for node in own}
        if share.gigabytes:
            assert sum(node["args"].get("bytes", 0) for node in own) / 1e9 == pytest.approx(share.gigabytes, rel=0.03), share
        else:
            assert sum(node["args"].get("flops", 0) for node in own) / 1e12 == pytest.approx(share.teraflops, rel=0.01), share
    assert not left and len(nodes) > 500


def test_every_library_is_in_the_bundle_or_comes_with_torch(bundle):
    import torch

    site = Path(torch.__file__).resolve().parents[1]
    with_torch = {path.name for folder in (site / "torch/lib", *site.glob("nvidia/**/lib")) for path in folder.iterdir()}
    ours = {path.name for path in (bundle / "lib").iterdir()}
    needed = {}
    for binary in [*(bundle / "bin").iterdir(), *(bundle / "lib").iterdir()]:
        dynamic = subprocess.run(["readelf", "-d", binary], check=True, capture_output=True, text=True).stdout
        needed |= {library: binary.name for library in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)}
    assert any(library.startswith("libabsl") for library in needed)
    missing = {library: by for library, by in needed.items() if library not in ours | with_torch and not SYSTEM_LIBRARIES.search(library)}
    assert not missing
    assert not ours - needed.keys(), "carried for nobody"
    assert not ours & with_torch, "PyTorch brings its own"


def test_the_three_calls_are_rehearsed(bundle, tmp_path):
    for path in (bundle / "bin").iterdir():
        path.chmod(0o644)  # As some copy it.
    calls = {}
    for call in ("first", "second", "third"):
        code, calls[call] = run_check(bundle, tmp_path / call, "--rehearse", f"--{call}")
        table = (tmp_path / call / "gpu_check.md").read_text()
        print(table)
        assert code == 0, [(part["part"], check) for part in calls[call]["parts"] for check in part["checks"] if check["result"] == "failed"]
        assert "nothing here was shown on a GPU" in table and calls[call]["rehearsal"] and calls[call]["device"] == "CPU"
        assert (tmp_path / call / "gpu_check.log").read_text().count("=== ") == len(calls[call]["parts"]) and len(list((tmp_path / call).iterdir())) <= 8
    print(f"{sum(report['seconds'] for report in calls.values()):.0f} s")
    parts = [part for report in calls.values() for part in report["parts"]]
    found = results({"parts": parts})
    assert set(found.values()) == {"rehearsed", "not run"}, "nothing is called passed that no GPU has shown"
    assert {part["part"] for part in parts if not any(check["result"] == "rehearsed" for check in part["checks"])} <= {"sanitizer", "profile"}
    for check in ("collectives: communicator of 1: NCCL copies, no kernel of it runs", "collectives: communicator of 2", "nccl-on-one-gpu: 4 ranks on one GPU, by NCCL's sockets", "libraries: PyTorch multiplies", "libraries: tacc-rank finds the device",
                  "olmo-1b-ours: rehearsal: MFU, micro-batch 2", "olmo-1b-attention: rehearsal: the attention that was chosen",
                  "olmo-1b-baselines: rehearsal: tokens/s over the fastest of PyTorch's other ways", "llama-1b: rehearsal: tokens/s over compile, equal micro-batches",
                  "replay: captured steps against node by node", "losses: llama: f32 losses", "losses: llama: bf16 losses", "losses: llama: fp16 losses",
                  "kill: losses after kill -9 in a step", "kill: weights after kill -9 in a step", "two-ranks: two ranks on one device",
                  "olmo-1b: rehearsal: tokens/s over eager, equal micro-batches", "olmo-1b: rehearsal: tokens/s over compile, equal micro-batches",
                  "olmo-1b: rehearsal: MFU, micro-batch 2", "olmo-1b: rehearsal: best isolated products and attention over our step",
                  "olmo-1b-largest: rehearsal: tokens/s over eager, largest micro-batches",
                  "llama-1b-largest: rehearsal: tokens/s over eager, largest micro-batches"):
        assert found[check] == "rehearsed", check
    for check in ("environment: the GPU", "kernels: tacc-gpu-tests Attention", "kernels: tacc-gpu-tests Kernels", "kernels: tacc-gpu-device-tests CudaAllocator",
                  "replay: steps are replayed", "steady: memory after step 2", "steady: steps are replayed", "steady: host time of a step",
                  "olmo-1b-ours: rehearsal: attention backend", "olmo-1b-ours: rehearsal: algorithms of products", "olmo-1b-attention: rehearsal: attention by flash",
                  "olmo-1b: rehearsal: attention backend", "olmo-1b: rehearsal: memory over eager's peak reserved", "olmo-1b: rehearsal: memory against the plan", "olmo-1b: rehearsal: GPU idle",
                  "sanitizer: memcheck", "sanitizer: racecheck", "profile: counters of kernels"):
        assert found[check] == "not run", check
    # Every suite of kernels that runs on the host would run on a GPU.
    assert sum(name.startswith("kernels: tacc-gpu-tests") for name in found) > 30
    # What was measured stays, for those who read it elsewhere.
    sides = {part["part"]: part["figures"]["rehearsal"] for part in parts if part["part"].startswith("olmo-1b") and not part["part"].endswith("largest")}
    assert sides["olmo-1b"].keys() == {"tacc", "eager", "compile"} and sides["olmo-1b-attention"].keys() == {"tacc", "tacc-flash", "tacc-cudnn"}
    assert sides["olmo-1b-baselines"].keys() == {"tacc", "compile-cudnn", "max-autotune-no-cudagraphs", "max-autotune"}
    for found_sides in sides.values():
        assert all(len(side["seconds"]) >= 25 and side["batch"] == 2 for side in found_sides.values())
    assert sides["olmo-1b"]["tacc"]["traced_seconds_by_op"]["einsum"] > 0
    figures = {part["part"]: part["figures"] for part in parts}
    assert figures["olmo-1b-ours"]["shares"][-1]["share"] == "the step" and figures["libraries"]["environment"]["LD_LIBRARY_PATH"].startswith(str(bundle))
    assert "\n| products | " in (tmp_path / "first/gpu_check.md").read_text()
    for before, after in (("olmo-1b-ours", "olmo-1b-attention"), ("olmo-1b", "olmo-1b-baselines")):
        assert sides[before]["tacc"] == sides[after]["tacc"], "ours of the part before"


def test_the_largest_micro_batches_need_the_part_before(bundle, tmp_path):
    code, report = run_check(bundle, tmp_path / "out", "--rehearse", "--parts", "llama-1b-largest")
    assert code == 0 and results(report)["llama-1b-largest: rehearsal: tokens/s over eager, largest micro-batches"] == "not run"


def test_programs_for_a_gpu_compute_the_same_on_the_cpu(bundle, tmp_path):
    case = tmp_path / "small"
    shutil.copytree(bundle / "small", case)
    runs = []
    for kind in ("cpu", "cuda"):
        if kind == "cuda":
            for program in ("f32", "bf16", "bf16-deterministic"):
                shutil.rmtree(case / f"{program}-cpu")
                (case / f"{program}-cuda").rename(case / f"{program}-cpu")
        runs.append([trainings.train(BUILD, case, program, "cpu", tmp_path / kind / program, checkpoint={"dir": ""}) for program in ("f32", "bf16", "bf16-deterministic")])
    exact = runs[0][0].losses()
    for cpu, cuda in zip(*runs):
        assert not cpu.error and not cuda.error
        assert len(cuda.losses()) == 12
        apart = trainings.distance(cuda.losses(), cpu.losses())
        if cpu is runs[0][0]:
            assert apart <= 1e-6 * trainings.norm(exact)
            continue
        # A GPU's program rounds sums of gradients to bf16 once that a CPU's rounds twice (join-products): it is no further
        # from f32, and no further from the CPU's than bf16 puts either from f32.
        rounding = trainings.distance(cpu.losses(), exact)
        assert trainings.distance(cuda.losses(), exact) <= 1.1 * rounding and apart <= rounding


def test_wrong_losses_fail_the_check(bundle, tmp_path):
    wrong = tmp_path / "bundle"
    shutil.copytree(bundle, wrong)
    path = wrong / "families/llama/reference.json"
    reference = json.loads(path.read_text())
    for losses in (reference["exact"], reference["draws"][-1]["fp32"]):
        losses[-1] *= 1.001
    path.write_text(json.dumps(reference))
    code, report = run_check(wrong, tmp_path / "out", "--rehearse", "--parts", "losses")
    assert code == 1 and results(report)["losses: llama: f32 losses"] == "failed"


def test_a_part_that_hangs_is_ended_and_later_ones_are_not_run(bundle, tmp_path):
    hung = tmp_path / "bundle"
    shutil.copytree(bundle, hung)
    rank = hung / "bin/tacc-rank"
    rank.unlink()
    rank.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    rank.chmod(0o755)
    code, report = run_check(hung, tmp_path / "out", "--rehearse", "--parts", "probe,two-ranks", "--minutes", "0.25")
    found = results(report)
    assert code == 1 and found == {"probe: probe": "failed", "two-ranks: two-ranks": "not run"}
    assert "not done in 10 s" in report["parts"][0]["error"] and "it takes about 12 s" in report["parts"][1]["checks"][0]["got"]
    stat = Path(f"/proc/{int((tmp_path / 'pid').read_text())}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"  # Gone, or not buried yet.


def test_ranks_that_crash_cost_their_checks_only(bundle, tmp_path):
    broken = tmp_path / "bundle"
    shutil.copytree(bundle, broken)
    rank = broken / "bin/tacc-rank"
    rank.unlink()
    rank.write_text("#!/bin/sh\necho '{\"event\": \"started\"}'\necho 'CUDA error: an illegal memory access' >&2\nkill -11 $$\n")
    rank.chmod(0o755)
    code, report = run_check(broken, tmp_path / "out", "--rehearse", "--parts", "probe,replay,checkpoints")
    checks = {f"{part['part']}: {check['check']}": check for part in report["parts"] for check in part["checks"]}
    failed = {name for name, check in checks.items() if check["result"] == "failed"}
    assert code == 1 and failed == {"probe: probe", "replay: steps node by node", "replay: steps as captured", "checkpoints: saved on cpu, resumed on cpu"}
    for name in failed - {"probe: probe"}:
        assert "ended with -11" in checks[name]["got"] and "illegal memory access" in checks[name]["details"], name
    assert not any(part["error"] for part in report["parts"])


def test_words_for_who_has_no_bundle(tmp_path):
    ended = subprocess.run([sys.executable, ROOT / "scripts/gpu_check"], capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 1 and "--pack DIR" in ended.stderr
