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
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/gpu", "tests", "bench")]
import trainings  # noqa: E402
from pack import MAX_BYTES, SYSTEM_LIBRARIES, Packer, bytes_of  # noqa: E402

# Nothing of this build but the bundle and the Python with torch.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in ("TACC_BUILD", "PYTHONPATH", "LD_LIBRARY_PATH")}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gpu") / "bundle"
    subprocess.run([sys.executable, ROOT / "scripts/gpu_check", "--pack", folder, "--build", BUILD, "--families", "llama"], check=True, env=ENVIRONMENT)
    return folder


def run_check(bundle: Path, out: Path, *options: str) -> tuple[int, dict]:
    ended = subprocess.run([sys.executable, bundle / "gpu_check", "--out", out, *options], env=ENVIRONMENT, cwd=out.parent, capture_output=True, text=True)
    assert ended.returncode in (0, 1), ended.stderr
    return ended.returncode, json.loads((out / "gpu_check.json").read_text())


def results(report: dict) -> dict[str, str]:
    return {f"{part['part']}: {check['check']}": check["result"] for part in report["parts"] for check in part["checks"]}


def test_the_bundle_is_small(bundle):
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["families"] == ["llama"]
    assert bytes_of(bundle) < MAX_BYTES == 60_000_000
    print(f"{bytes_of(bundle) / 1e6:.1f} MB: " + ", ".join(f"{path.name} {bytes_of(path) / 1e6:.1f}" for path in sorted(bundle.iterdir()) if path.is_dir()))


def test_the_bundle_with_all_families_is_small(bundle, tmp_path, monkeypatch):
    """That of bench/README.md's command: beside the bundle above, the families that it leaves out. Without the references' trainings, for only the
    number of their losses counts here."""
    monkeypatch.syspath_prepend(str(ROOT / "tests/parity"))
    import training

    monkeypatch.setattr(training, "reference_run", lambda *_: SimpleNamespace(losses=[1 / 3] * training.NUM_STEPS))
    packed = Packer(BUILD, tmp_path).pack_families([])
    assert len(packed) > 15 and "llama" in packed
    total = bytes_of(bundle) - bytes_of(bundle / "families") + bytes_of(tmp_path / "families")
    print(f"{total / 1e6:.1f} MB with {len(packed)} families")
    assert total < MAX_BYTES
    assert "scripts/gpu_check --pack gpu-bundle      # in a built checkout: less than 60 MB" in (ROOT / "bench/README.md").read_text()


def test_benches_recompute_nothing_and_reach_what_gpus_have(bundle):
    for name, fitting in (("olmo-1b", {80: 18, 141: 36}), ("llama-1b", {80: 18, 141: 36})):
        case = bundle / "bench" / name
        summaries = {size: trainings.summary(case, f"bf16-{size}", "cuda:0") for size in json.loads((case / "bench.json").read_text())["sizes"]}
        assert not any(summary["gc"] or summary["recompute_units"] for summary in summaries.values())
        for gigabytes, size in fitting.items():
            assert max(s for s, summary in summaries.items() if summary["memory"]["total_bytes"] < gigabytes * 1e9) >= size


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


def test_rehearsal(bundle, tmp_path):
    parts = ["environment", "probe", "kernels", "replay", "losses", "checkpoints", "kill", "steady", "two-ranks", "olmo-1b", "olmo-1b-largest", "llama-1b-largest"]
    code, report = run_check(bundle, tmp_path / "out", "--rehearse", "--parts", ",".join(parts))
    table = (tmp_path / "out/gpu_check.md").read_text()
    print(table)
    found = results(report)
    assert code == 0, [(name, check) for part in report["parts"] for check in part["checks"] if (name := part["part"]) and check["result"] == "failed"]
    assert set(found.values()) == {"rehearsed", "not run"}, "nothing is called passed that no GPU has shown"
    assert [part["part"] for part in report["parts"]] == parts
    assert all(any(check["result"] == "rehearsed" for check in part["checks"]) for part in report["parts"])
    assert "nothing here was shown on a GPU" in table and report["rehearsal"] and report["device"] == "CPU"
    for check in ("replay: captured steps against node by node", "losses: llama: f32 losses", "losses: llama: bf16 losses", "losses: llama: fp16 losses",
                  "kill: losses after kill -9 in a step", "kill: weights after kill -9 in a step", "two-ranks: two ranks on one device",
                  "olmo-1b: rehearsal: tokens/s over eager, equal micro-batches", "olmo-1b: rehearsal: tokens/s over compile, equal micro-batches",
                  "olmo-1b: rehearsal: MFU, micro-batch 2", "olmo-1b: rehearsal: best isolated products and attention over our step",
                  "olmo-1b-largest: rehearsal: tokens/s over eager, largest micro-batches"):
        assert found[check] == "rehearsed", check
    for check in ("environment: the GPU", "kernels: tacc-gpu-tests Attention", "kernels: tacc-gpu-tests Kernels", "kernels: tacc-gpu-device-tests CudaAllocator",
                  "replay: steps are replayed", "steady: memory after step 2", "steady: steps are replayed", "steady: host time of a step",
                  "olmo-1b: rehearsal: memory over eager's peak reserved", "olmo-1b: rehearsal: memory against the plan", "olmo-1b: rehearsal: GPU idle",
                  "llama-1b-largest: rehearsal: tokens/s over eager, largest micro-batches"):
        assert found[check] == "not run", check
    # Every suite of kernels that runs on the host would run on a GPU.
    assert sum(name.startswith("kernels: tacc-gpu-tests") for name in found) > 30
    # What was measured stays, for those who read it elsewhere.
    sides = next(part for part in report["parts"] if part["part"] == "olmo-1b")["figures"]["rehearsal"]
    assert sides.keys() == {"tacc", "eager", "compile"} and all(len(side["seconds"]) >= 25 and side["batch"] == 2 for side in sides.values())
    assert sides["tacc"]["traced_seconds_by_op"]["einsum"] > 0
    assert len(list((tmp_path / "out").iterdir())) <= 8 and (tmp_path / "out/gpu_check.log").read_text().count("=== ") == len(parts)


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
    for cpu, cuda in zip(*runs):
        assert not cpu.error and not cuda.error
        assert len(cuda.losses()) == 12
        assert trainings.distance(cuda.losses(), cpu.losses()) <= 1e-6 * trainings.norm(cpu.losses())


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
    assert "not done in 10 s" in report["parts"][0]["error"] and "it takes about 15 s" in report["parts"][1]["checks"][0]["got"]
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
