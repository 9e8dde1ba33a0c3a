"""What scripts/gpu_check decides by itself: how long parts may take, what became of tests and trainings, which sizes to try. No bundle, no build."""

import gzip
import importlib.machinery
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/gpu", "tests", "bench", "client/python")]
import gpu_step  # noqa: E402
import parts  # noqa: E402
import trainings  # noqa: E402
import unit_tests  # noqa: E402


@pytest.fixture(scope="module")
def gpu_check():
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(ROOT / "scripts/gpu_check"))
    spec = importlib.util.spec_from_loader("gpu_check", loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # Its dataclass looks there.
    loader.exec_module(module)
    return module


@pytest.fixture
def context(tmp_path) -> parts.Context:
    return parts.Context(bundle=tmp_path, work=tmp_path, found=tmp_path / "found.json", results=tmp_path, rehearses=False)


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


# --- Time ---


def test_tests_and_equal_benches_fit_in_ten_minutes(gpu_check):
    assert sum(part.expected for part in (gpu_check.TESTS | gpu_check.EQUAL).values()) <= 60 * gpu_check.DEFAULT_MINUTES < 600
    assert all(part.expected <= part.limit for part in gpu_check.PARTS.values())


def test_parts_that_hang_leave_their_time_to_the_later_ones(gpu_check):
    left, run, names = 60 * gpu_check.DEFAULT_MINUTES, [], list(gpu_check.PARTS)
    for number, name in enumerate(names):
        limit = gpu_check.seconds_for(name, names[number + 1:], left)
        assert limit == 0 or gpu_check.PARTS[name].expected <= limit <= min(left, gpu_check.PARTS[name].limit)
        run += [name] if limit > 0 else []
        left -= limit
    assert left >= 0
    assert run == [*gpu_check.TESTS, *gpu_check.EQUAL]


def test_the_largest_micro_batches_take_what_is_left(gpu_check):
    equal, largest = list(gpu_check.EQUAL), list(gpu_check.LARGEST)
    assert gpu_check.seconds_for(equal[0], largest, 500) == gpu_check.PARTS[equal[0]].limit
    assert gpu_check.seconds_for(largest[0], largest[1:], 300) == 300
    assert gpu_check.seconds_for(largest[0], largest[1:], gpu_check.PARTS[largest[0]].expected - 1) == 0


def test_what_a_part_has_found_is_read_though_it_was_killed(gpu_check, tmp_path):
    assert gpu_check.read_found(tmp_path / "none") == {"checks": [], "figures": {}}
    (tmp_path / "cut").write_text('{"checks": [')
    assert gpu_check.read_found(tmp_path / "cut") == {"checks": [], "figures": {}}


def test_what_a_crashed_part_has_started_is_ended(gpu_check, tmp_path):
    process = subprocess.Popen(["sh", "-c", f"sleep 600 & echo $! > {tmp_path}/pid; kill -9 $$"], start_new_session=True)
    process.wait()
    child = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    assert child.exists()
    gpu_check.end_group(process)
    deadline = time.monotonic() + 10
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z"


# --- Checks ---


def test_checks_are_kept_with_details_and_figures(context):
    context.note("speed", {"eager": 1.5})
    context.judge("kernels", False, "a\n  b" + "x" * 400, "no failure", "all of it")
    found = json.loads(context.found.read_text())
    assert found["figures"] == {"speed": {"eager": 1.5}}
    assert found["checks"][0] == {"check": "kernels", "result": "failed", "got": "a b" + "x" * 297 + " ...", "wanted": "no failure", "details": "all of it"}


# --- Unit tests ---

FAKE_TESTS = """#!/bin/sh
case "$1" in
  --gtest_list_tests) printf 'Good.\\n  One\\n  Two\\nBad/0.  # TypeParam = float\\n  Fails  # GetParam() = 1\\n  Crashes\\n  Hangs\\n  Ends\\n'; exit 0;;
esac
report=${2#--gtest_output=json:}
result() { echo '{"testsuites": [{"testsuite": ['"$1"']}]}' > "$report"; }
case "$1" in
  *Good.One) result '{"name": "One", "result": "COMPLETED"}';;
  *Good.Two) result '{"name": "Two", "result": "SKIPPED"}';;
  *Fails) result '{"name": "Fails", "failures": [{"failure": "0.5 at [1,2] of [2,3]: 1, not 2"}]}'; exit 1;;
  *Crashes) echo "CUDA: an illegal memory access"; kill -11 $$;;
  *Hangs) echo "waiting"; exec sleep 60;;
  *Ends) result '{"name": "Ends", "result": "COMPLETED"}'; exit 3;;
esac
"""


def test_each_test_is_judged_by_itself(tmp_path):
    binary = script(tmp_path / "fake-tests", FAKE_TESTS)
    assert unit_tests.tests_of(binary) == {"Good": ["One", "Two"], "Bad/0": ["Fails", "Crashes", "Hangs", "Ends"]}
    good, bad = sorted(unit_tests.run_all([binary], tmp_path / "work", limit=1, processes=6), key=lambda outcome: len(outcome.failures))
    assert (good.suite, good.passed, good.skipped, good.failures) == ("Good", 1, 1, {})
    assert bad.suite == "Bad/0" and bad.passed == 0
    assert bad.failures["Fails"] == "0.5 at [1,2] of [2,3]: 1, not 2"
    assert "ended with -11" in bad.failures["Crashes"] and "illegal memory access" in bad.failures["Crashes"]
    assert bad.failures["Hangs"].startswith("not done in 1 s") and "waiting" in bad.failures["Hangs"]
    assert "ended with 3 after the test" in bad.failures["Ends"]


def test_without_a_gpu_no_test_passes(tmp_path):
    binary = script(tmp_path / "fake-tests", "#!/bin/sh\n[ $1 = --gtest_list_tests ] && printf 'A.\\n  X\\nB.\\n  Y\\n' && exit 0\nexit 77\n")
    assert [(o.suite, o.no_gpu, o.passed) for o in unit_tests.run_all([binary], tmp_path, 5, 2)] == [("A", True, 0), ("B", True, 0)]


# --- Trainings ---


def rank_that(tmp_path: Path, does: str, **options) -> trainings.Run:
    """A training whose rank is this shell script."""
    case = tmp_path / "case"
    (case / "f32-cpu").mkdir(parents=True, exist_ok=True)
    (case / "f32-cpu/stage0.program.gz").write_bytes(gzip.compress(b""))
    (case / "start.json").write_text(json.dumps({"attempt": 1, "data": {}, "checkpoint": {}}))
    script(tmp_path / "tacc-rank", f"#!/bin/sh\n{does}\n")
    return trainings.train(tmp_path, case, "f32", "cpu", tmp_path / "run", **options)


def test_a_rank_that_fails_is_quoted(tmp_path):
    run = rank_that(tmp_path, """echo '{"event": "started"}'; echo "node 7" >&2; echo '{"event": "failed", "code": "device", "message": "einsum: lost"}'; exit 1""")
    assert run.error == "tacc-rank failed (device): einsum: lost" and run.log == "node 7\n"


def test_a_rank_that_hangs_is_ended_by_itself(tmp_path):
    run = rank_that(tmp_path, """echo '{"event": "ready", "step": 0}'; exec sleep 600""", limit=0.5)
    assert run.error.startswith("not done in 0 s; stopped after ") and '"ready"' in run.error


@pytest.mark.parametrize("garbage", ["Segmentation fault", "17", '{"no": "event"}', "[]"])
def test_a_rank_that_says_what_is_no_event_fails(tmp_path, garbage):
    assert "no event" in rank_that(tmp_path, f"echo '{garbage}'; exec cat").error


def test_a_rank_that_crashes_fails(tmp_path):
    run = rank_that(tmp_path, """echo '{"event": "ready"}'; echo "terminate called" >&2; kill -6 $$""")
    assert "ended with -6" in run.error and run.log == "terminate called\n"


def test_processor_time_of_a_thread_grows():
    before = trainings.host_seconds(os.getpid())
    deadline = time.process_time() + 0.05
    while time.process_time() < deadline:
        pass
    assert 0.02 < trainings.host_seconds(os.getpid()) - before < 10
    assert math.isnan(trainings.host_seconds(1 << 30))
    assert trainings.Run(Path(), host_seconds=[9.0, 10.0, 10.5, 11.0, 99.0]).host_seconds_per_step(2, 4) == 0.5


def steps(*replays: int) -> trainings.Run:
    capture = [{"graph": "forward_backward"}, {"graph": "update"}, {"graph": "update", "first_node": "all_gather", "not_captured": "by the host"}, {"graph": "eval"}]
    return trainings.Run(Path(), [{"event": "ready", "step": 0, "capture": capture}, *({"event": "step", "step": i + 1, "replays": n} for i, n in enumerate(replays))])


def test_steps_count_as_replayed_when_all_that_is_captured_is():
    ok, words = parts.replayed_as_captured(steps(0, 2, 2, 2))
    assert ok and words == "replays of each step: 0, 2, 2, 2, ..., 2; captured: 2 of 3 parts; not update from all_gather: by the host"
    for replays in ((0, 0, 0), (0, 1, 1), (2, 2, 2), (0,), (0, 2, 0)):
        assert not parts.replayed_as_captured(steps(*replays))[0]


def test_losses_of_one_precision_do_not_hide_those_of_another(context):
    reference = {"case": "tiny", "exact": [3.0, 2.0], "draws": [{"fp32": [3.0, 2.000001], "bf16": [3.01, 2.01], "fp16": [3.001, 2.001]}]}
    runs = {(precision, 0): trainings.Run(Path(), [{"event": "step", "loss": loss} for loss in losses])
            for precision, losses in (("fp32", (3.0, 2.000001)), ("bf16", (3.1, 2.1)))}
    runs["fp16", 0] = trainings.Run(Path(), error="tacc-rank failed (device): lost")
    parts.judge_family(context, "llama", reference, runs)
    assert [(check["check"], check["result"]) for check in context.checks] == [
        ("llama: f32 losses", "passed"), ("llama: bf16 losses", "failed"), ("llama: fp16 losses", "failed")]
    assert "[3.1, 2.1]" in context.checks[1]["details"] and "device" in context.checks[2]["got"]


# --- Benches ---


def test_sizes_to_try_are_those_that_should_fit():
    sizes = [2, 4, 8, 12, 16]
    # 8 samples took 20 of 60 bytes each beside 100.
    assert gpu_step.sizes_to_try(sizes, peak_bytes=260, batch=8, fixed_bytes=100, room=340) == [12, 8, 4, 2]
    assert gpu_step.sizes_to_try(sizes, peak_bytes=260, batch=8, fixed_bytes=100, room=120) == [2]
    assert gpu_step.sizes_to_try(sizes, peak_bytes=90, batch=8, fixed_bytes=100, room=10_000) == [16, 12, 8, 4, 2]


def test_seconds_by_op_are_those_of_nodes():
    node = {"cat": "node", "ph": "X"}
    trace = {"traceEvents": [node | {"name": "add", "dur": 1e6}, node | {"name": "einsum", "dur": 2e6}, node | {"name": "add", "dur": 0.5e6},
                             {"cat": "module", "name": "model", "dur": 9e6}, {"name": "thread_name", "ph": "M"}]}
    assert list(gpu_step.seconds_by_op(trace).items()) == [("einsum", 2.0), ("add", 1.5)]


def test_earlier_figures_are_those_of_this_run(context):
    assert gpu_step.earlier_figures(context, "olmo-1b") == {}
    (context.results / "gpu_check.json").write_text(json.dumps({"parts": [{"part": "olmo-1b", "figures": {"x": 1}}]}))
    assert gpu_step.earlier_figures(context, "olmo-1b") == {"x": 1}
    assert gpu_step.earlier_figures(context, "llama-1b") == {}


def bench(context, tmp_path, **sides) -> gpu_step.Bench:
    case = tmp_path / "bench/olmo-1b"
    (case / "bf16-8-cuda").mkdir(parents=True)
    (case / "bench.json").write_text(json.dumps({"seq_len": 10, "beside": " in another's shape"}))
    memory = {"arena_bytes": 900, "workspace_bytes": 100}
    (case / "bf16-8-cuda/summary.json").write_text(json.dumps({"memory": memory, "flops_per_step": 460e12, "num_parameters": 1}))
    result = gpu_step.Bench(context, "olmo-1b")
    result.sides = {side: {"batch": 8, "model": "Olmo", "idle": []} | figures for side, figures in sides.items()}
    return result


def test_bars_are_held(context, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_step, "peak_flops", lambda: 1000e12)
    ours = {"tokens_per_second": 130, "step_seconds": 1.0, "peak_bytes": 1010, "idle": [0.0, 0.01, 0.9]}
    measured = bench(context, tmp_path, tacc=ours, eager={"tokens_per_second": 100, "peak_bytes": 1300}, compile={"tokens_per_second": 131, "peak_bytes": 1250})
    for mode in ("eager", "compile"):
        measured.compare_speed(mode, "equal")
        measured.compare_memory(mode)
    measured.judge_mfu()
    measured.judge_idle()
    measured.judge_plan()
    assert [(check["check"], check["result"]) for check in context.checks] == [
        ("olmo-1b: tokens/s over eager, equal", "passed"), ("olmo-1b: memory over eager's peak reserved", "passed"),
        ("olmo-1b: tokens/s over compile, equal", "failed"), ("olmo-1b: memory over compile's peak reserved", "failed"),
        ("olmo-1b: MFU, micro-batch 8", "passed"), ("olmo-1b: GPU idle", "passed"), ("olmo-1b: memory against the plan", "passed")]
    assert "Olmo in another's shape" in context.checks[0]["got"]
    measured.sides["tacc"] |= {"peak_bytes": 1030, "step_seconds": 1.1, "idle": [0.02]}
    measured.judge_mfu()
    measured.judge_idle()
    measured.judge_plan()
    assert [check["result"] for check in context.checks[-3:]] == ["failed", "failed", "failed"]


def test_a_side_that_fails_is_said_and_the_others_stay(context, tmp_path, monkeypatch):
    measured = bench(context, tmp_path, tacc={"tokens_per_second": 130})
    monkeypatch.setattr(measured, "torch", lambda *_: (_ for _ in ()).throw(RuntimeError("eager ended with 1: Traceback\n  OutOfMemoryError: 8 GiB")))
    assert not measured.run("eager", [8, 4])
    measured.compare_speed("eager", "equal")
    assert [check["result"] for check in context.checks] == ["failed", "not run"]
    assert context.checks[0]["got"].endswith("OutOfMemoryError: 8 GiB")


def test_sigterm_ends_the_part_under_way(tmp_path):
    """The whole check's own time is someone else's to end."""
    bundle = tmp_path / "bundle"
    (bundle / "python").mkdir(parents=True)
    script(bundle / "gpu_check", (ROOT / "scripts/gpu_check").read_text())
    (bundle / "manifest.json").write_text(json.dumps({"commit": "none", "version": "0"}))
    (bundle / "python/gpu_step.py").write_text("")
    (bundle / "python/parts.py").write_text(
        "import os, pathlib, time\nclass Context:\n    def __init__(self, **k): pathlib.Path(k['results'], 'pid').write_text(str(os.getpid()))\n"
        "def probe(context): time.sleep(600)\n")
    process = subprocess.Popen([sys.executable, bundle / "gpu_check", "--out", tmp_path / "out", "--rehearse", "--parts", "probe"], stderr=subprocess.DEVNULL)
    pid = tmp_path / "out/pid"
    deadline = time.monotonic() + 60
    while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert not Path(f"/proc/{pid.read_text()}").exists()
