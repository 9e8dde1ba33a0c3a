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
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/gpu", "tests", "bench", "client/python")]
import gpu_step  # noqa: E402
import pack  # noqa: E402
import parts  # noqa: E402
import tools  # noqa: E402
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


def test_three_calls_fit_in_thirty_minutes_and_run_every_test(gpu_check):
    """With a minute and a half for each to start a machine and to copy."""
    assert sum(call.minutes + 1.5 for call in gpu_check.CALLS.values()) <= 30
    for call in gpu_check.CALLS.values():
        assert call.minutes < 10 and call.parts[0] == "libraries"
        assert sum(gpu_check.PARTS[name].expected for name in call.parts) <= 0.95 * 60 * call.minutes, "room for what takes longer"
        for name in set(call.parts) & set(gpu_check.LARGEST):
            assert call.parts.index(name) > call.parts.index(gpu_step.model_of(name)), "whose memory it needs"
    run = [name for call in gpu_check.CALLS.values() for name in call.parts if name != "libraries"]
    assert len(run) == len(set(run)) and set(gpu_check.PARTS) - set(run) == {"libraries"}
    sums = [f"{sum(gpu_check.PARTS[name].expected for name in call.parts)} of {60 * call.minutes:.0f}" for call in gpu_check.CALLS.values()]
    assert f"their parts should take {sums[0]}, {sums[1]} and {sums[2]} seconds" in " ".join((ROOT / "bench/README.md").read_text().split())


def test_as_estimated_all_of_each_call_runs_with_two_of_pytorchs_other_ways(gpu_check):
    for call in gpu_check.CALLS.values():
        left = 60 * call.minutes
        for number, name in enumerate(call.parts):
            limit = gpu_check.seconds_for(name, list(call.parts[number + 1:]), left)
            assert limit >= gpu_check.PARTS[name].expected, name
            left -= limit if name == "olmo-1b-baselines" else gpu_check.PARTS[name].expected
    ways = [gpu_step.SECONDS[side].expected for side in list(gpu_step.TORCH_WAYS)[2:4]]
    assert limit >= sum(ways) + 10, "the last part of all"


def test_a_part_of_a_call_that_hangs_costs_no_later_one(gpu_check):
    """But the first, without which there is none: it gets what it takes to read several GB."""
    for call in gpu_check.CALLS.values():
        parts_after, left = list(call.parts[1:]), 60 * call.minutes - gpu_check.PARTS["libraries"].expected
        assert gpu_check.seconds_for("libraries", parts_after, 60 * call.minutes) == gpu_check.PARTS["libraries"].limit
        for number, name in enumerate(parts_after):
            limit = gpu_check.seconds_for(name, parts_after[number + 1:], left)
            assert limit >= gpu_check.PARTS[name].expected, name
            left -= limit


def test_parts_that_hang_leave_their_time_to_the_later_ones(gpu_check):
    names = gpu_check.DEFAULT[1:]
    left, run = 60 * gpu_check.DEFAULT_MINUTES - gpu_check.PARTS["libraries"].expected, []
    for number, name in enumerate(names):
        limit = gpu_check.seconds_for(name, names[number + 1:], left)
        assert limit == 0 or gpu_check.PARTS[name].expected <= limit <= min(left, gpu_check.PARTS[name].limit)
        run += [name] if limit > 0 else []
        left -= limit
    assert left >= 0
    assert run == [*gpu_check.TESTS, *gpu_check.EQUAL][1:]


def test_the_largest_micro_batches_take_what_is_left(gpu_check):
    equal, largest = list(gpu_check.EQUAL), list(gpu_check.LARGEST)
    expected, limit = (getattr(gpu_check.PARTS[equal[0]], seconds) for seconds in ("expected", "limit"))
    with_one, with_both = (expected + sum(gpu_check.LARGEST[name].expected for name in largest[:count]) for count in (1, 2))
    assert gpu_check.seconds_for(equal[0], largest, with_one - 1) == limit, "none of them has the time anyway"
    assert gpu_check.seconds_for(equal[0], largest, with_one + 7) == expected + 7 and gpu_check.seconds_for(equal[0], largest, with_both + 9) == expected + 9
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


def test_a_gpu_that_is_not_found_says_where_libraries_were_sought(context, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin/tacc-rank", """#!/bin/sh
[ "$1" = --devices ] && echo '[{"kind": "cpu"}]' && exit 0
[ -z "$LD_DEBUG" ] || echo "find library=libcuda.so.1; searching" >&2
echo "error: no such GPU" >&2; exit 2
""")

    def ones(*_, device: str, **__):
        raise RuntimeError(f"no {device}")

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.11", bfloat16=None, ones=ones))
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(__version__="5"))
    script(tmp_path / "nvidia-smi", "#!/bin/sh\necho '| NVIDIA-SMI 580 |'; echo '| no devices |'\n")
    for name, value in (("PATH", f"{tmp_path}:{os.environ['PATH']}"), ("LD_LIBRARY_PATH", "/usr/local/nvidia/lib"), ("NVIDIA_VISIBLE_DEVICES", "void"),
                        ("CUDA_VISIBLE_DEVICES", "3"), ("NCCL_DEBUG", "WARN"), ("TOKEN_OF_CUDA", "secret")):
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match="no cuda"):  # PyTorch finds none either.
        parts.libraries(context)
    kept = json.loads(context.found.read_text())["figures"]
    assert kept["nvidia-smi"] == ["| NVIDIA-SMI 580 |", "| no devices |"] and "TOKEN_OF_CUDA" not in kept["environment"]
    assert kept["environment"].items() >= {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib", "NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": "3", "NCCL_DEBUG": "WARN"}.items()
    assert kept["environment"]["PATH"].startswith(str(tmp_path))
    assert [(check["check"], check["result"]) for check in context.checks] == [("tacc-rank finds the device", "failed")]
    assert "error: no such GPU" in context.checks[0]["got"] and "searching" in context.checks[0]["details"]
    assert "libcuda.so.1" in (tmp_path / "ld_debug.log").read_text()


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
    good, bad = sorted(unit_tests.run_all({binary: 6}, tmp_path / "work", limit=1), key=lambda outcome: len(outcome.failures))
    assert (good.suite, good.passed, good.skipped, good.failures) == ("Good", 1, 1, {})
    assert bad.suite == "Bad/0" and bad.passed == 0
    assert bad.failures["Fails"] == "0.5 at [1,2] of [2,3]: 1, not 2"
    assert "ended with -11" in bad.failures["Crashes"] and "illegal memory access" in bad.failures["Crashes"]
    assert bad.failures["Hangs"].startswith("not done in 1 s") and "waiting" in bad.failures["Hangs"]
    assert "ended with 3 after the test" in bad.failures["Ends"]


def test_without_a_gpu_no_test_passes(tmp_path):
    binary = script(tmp_path / "fake-tests", "#!/bin/sh\n[ $1 = --gtest_list_tests ] && printf 'A.\\n  X\\nB.\\n  Y\\n' && exit 0\nexit 77\n")
    assert [(o.suite, o.no_gpu, o.passed) for o in unit_tests.run_all({binary: 2}, tmp_path, 5)] == [("A", True, 0), ("B", True, 0)]


@pytest.mark.parametrize("rehearses, result", [(False, "failed"), (True, "not run")])
def test_kernels_without_a_gpu_fail_but_in_a_rehearsal(context, tmp_path, rehearses, result):
    (tmp_path / "bin").mkdir()
    for name in ("tacc-gpu-tests", "tacc-gpu-device-tests"):
        script(tmp_path / "bin" / name, "#!/bin/sh\n[ $1 = --gtest_list_tests ] && printf 'A.\\n  X\\n' && exit 0\nexit 77\n")
    context.rehearses = rehearses
    parts.kernels(context)
    assert [check["result"] for check in context.checks] == [result, result]


# Fails while another process of its own, or one of the other binary, runs; those of the other may meet.
ALONE = """#!/bin/sh
[ "$1" = --gtest_list_tests ] && printf 'A.\n  U\n  V\n  W\n  X\n' && exit 0
others=$(ls "$(dirname $0)/running" | wc -l); touch "$(dirname $0)/running/$$"; sleep 0.1; rm "$(dirname $0)/running/$$"
case "$0:$others" in *device-tests:0|*/tacc-gpu-tests:*) ;; *) exit 1;; esac
echo '{"testsuites": [{"testsuite": [{"name": "U", "result": "COMPLETED"}]}]}' > "${2#--gtest_output=json:}"
"""


def test_what_measures_the_gpu_has_it_alone(context, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    (tmp_path / "bin/running").mkdir(parents=True)
    for name in ("tacc-gpu-tests", "tacc-gpu-device-tests"):
        script(tmp_path / "bin" / name, ALONE)
    parts.kernels(context)
    assert [(check["check"], check["result"], check["got"]) for check in context.checks] == [
        ("tacc-gpu-device-tests A", "passed", "4 passed"), ("tacc-gpu-tests A", "passed", "4 passed")]


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
    samples = [trainings.Sample(step, seconds) for step, seconds in ((1, 9.0), (2, 10.0), (4, 11.0), (5, 99.0))]
    assert trainings.Run(Path(), samples=samples).host_seconds_per_step(2, 4) == 0.5
    assert math.isnan(trainings.Run(Path(), samples=samples[:1]).host_seconds_per_step(1, 4))


COLLECTIVES = """#!/bin/sh
case "$2" in
  0) [ $4 = 1 ] || echo '{"event": "listening", "port": 7, "secret": "s"}'
     echo '{"event": "check", "check": "all_reduce f32", "sums": "by NCCL"}'; echo '{"event": "check", "check": "exchange f32", "sums": "in order"WRONG}';;
  *) read -r line; echo "rank $2 of $4 on $6 $line" >&2; FAILS;;
esac
[ $2 = 0 ] && echo '{"event": "finished"}'
exit 0
"""


@pytest.mark.parametrize(("gpus", "wrong", "fails", "results"), [
    (1, "", "true", ["passed", "not run"]), (3, "", "true", ["passed", "passed", "passed"]), (2, ', "error": "rank 1, replay 2: element 3"', "true", ["failed", "failed"]),
    (2, "", "exit 3", ["passed", "failed"]), (0, "", "true", ["not run"])])
def test_a_communicator_that_gives_something_else_fails(context, tmp_path, gpus, wrong, fails, results):
    (tmp_path / "bin").mkdir()
    devices = json.dumps([{"kind": "cpu"}, *gpus * [{"kind": "cuda"}]])
    script(tmp_path / "bin/tacc-rank", f"#!/bin/sh\necho '{devices}'\n")
    script(tmp_path / "bin/tacc-gpu-collectives", COLLECTIVES.replace("WRONG", wrong).replace("FAILS", fails))
    parts.collectives(context)
    assert [check["result"] for check in context.checks] == results
    if wrong:
        assert context.checks[0]["got"] == "exchange f32, sums in order: rank 1, replay 2: element 3"
        assert "rank 1 of 2 on cuda:1" in context.checks[1]["details"] and '"rendezvous"' in context.checks[1]["details"]
    elif fails != "true":
        assert context.checks[1]["got"] == "tacc-rank ended with 3"
    elif gpus:
        assert context.checks[0]["got"] == "2 calls right, sums by NCCL and in order"
        assert context.checks[0]["check"] == "communicator of 1: NCCL copies, no kernel of it runs"


def test_a_communicator_that_hangs_or_says_nothing_fails(context, tmp_path):
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin/tacc-rank", "#!/bin/sh\necho '[{\"kind\": \"cuda\"}]'\n")
    for does, error in (("exec sleep 60", "ended with -9"), ("exit 0", "rank 0 did not finish"), ("echo '{\"event\": \"finished\"}'", "0 calls right"),
                        ("echo '{\"event\": \"failed\", \"message\": \"cuda:0: no driver\"}'", "no driver")):
        context.checks.clear()
        context.end = time.monotonic() + 3.5
        script(tmp_path / "bin/tacc-gpu-collectives", f"#!/bin/sh\n{does}\n")
        parts.collectives(context)
        assert context.checks[0]["result"] == "failed" and error in context.checks[0]["got"]


def test_ranks_on_one_gpu_tell_nccl_that_they_are_of_different_hosts(context, tmp_path):
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin/tacc-gpu-collectives", """#!/bin/sh
[ "$7" = --one-gpu ] && [ $6 = cuda:0 ] && [ $NCCL_HOSTID = tacc-$2 ] && [ $NCCL_SOCKET_IFNAME = lo ] && [ $NCCL_NET = Socket ] || exit 9
[ $2 = 0 ] || { read -r line; exit 0; }
echo '{"event": "listening", "port": 7, "secret": "s"}'; echo '{"event": "check", "check": "all_reduce f32", "sums": "by NCCL"}'; echo '{"event": "finished"}'
""")
    parts.nccl_on_one_gpu(context)
    assert [(check["check"], check["result"]) for check in context.checks] == [
        ("2 ranks on one GPU, by NCCL's sockets", "passed"), ("4 ranks on one GPU, by NCCL's sockets", "passed")]


@pytest.mark.parametrize(("does", "result", "got"), [
    ("""echo '{"event": "failed", "code": "collectives", "message": "rank 0, NCCL with rank 1: connecting: invalid usage (Duplicate GPU detected)"}'; exit 1""",
     "not run", "refused: tacc-rank failed: rank 0, NCCL with rank 1: connecting: invalid usage (Duplicate GPU detected)"),
    ("""echo '{"event": "failed", "code": "collectives", "message": "rank 0, NCCL with rank 1: all-gather: internal error ()"}'; exit 1""", "failed", "all-gather"),
    ("""echo '{"event": "check", "check": "sum", "sums": "by NCCL"}'
        echo '{"event": "failed", "code": "collectives", "message": "rank 0, NCCL with rank 1: connecting: no"}'; exit 1""", "failed", "connecting"),
    ("""echo '{"event": "check", "check": "sum", "sums": "by NCCL"}'; exec sleep 60""", "not run", "not done in"),
    ("""echo '{"event": "check", "check": "sum", "sums": "by NCCL", "error": "element 3"}'; echo '{"event": "finished"}'""", "failed", "element 3"), ("exit 0", "failed", "rank 0 did not finish")])
def test_what_nccl_refuses_on_one_gpu_is_not_passed(context, tmp_path, does, result, got):
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin/tacc-gpu-collectives", f"""#!/bin/sh
[ $2 = 0 ] || {{ read -r line; exit 0; }}
echo '{{"event": "listening", "port": 7, "secret": "s"}}'; {does}
""")
    context.end = time.monotonic() + (18 if "sleep" in does else 60)
    parts.nccl_on_one_gpu(context)
    assert len(context.checks) == 2 and context.checks[0]["result"] == result and got in context.checks[0]["got"]


STEPS_OF_A_RANK = """touch started; echo '{"event": "ready", "step": 0, "capture": [{"graph": "g"}]}'
for step in $(seq 40); do
  echo '{"event": "step", "step": '$step', "loss": 1, "replays": '$((step > 1))'}'; sleep 0.01
done"""


def test_what_measures_a_rank_is_ready_before_it_starts(tmp_path, monkeypatch):
    """The first look at the device's memory imports torch and makes a context: in the midst of the steps, most of them passed meanwhile, and what it took
    counted as the rank's."""
    monkeypatch.chdir(tmp_path)
    started_before, context_bytes = [], []

    def used_bytes() -> int:
        started_before.append(Path("started").exists())
        if not context_bytes:
            time.sleep(0.3)
            context_bytes.append(500)
        return context_bytes[0] + 7

    run = rank_that(tmp_path, STEPS_OF_A_RANK, used_bytes=used_bytes, sample_every=10)
    assert not run.error and started_before[:2] == [False, True]
    assert [sample.step for sample in run.samples] == [2, 10, 20, 30, 40]
    assert {sample.used_bytes for sample in run.samples} == {507}
    assert not any(math.isnan(sample.host_seconds) for sample in run.samples)


def test_the_steady_state_is_that_of_samples_of_a_rank_at_work(context):
    run = steps(0, *[2] * 39)
    run.samples = [trainings.Sample(2, 1.0, 100), *(trainings.Sample(step, 1 + step / 1000, 100) for step in (10, 20, 30)), trainings.Sample(40, 99.0, 0)]
    parts.settled(context, "", run, warm_up=10, end=30)
    assert [(check["check"], check["result"]) for check in context.checks] == [
        ("memory after step 2", "passed"), ("steps are replayed", "passed"), ("host time of a step", "failed")]
    assert context.checks[2]["got"].startswith("1.000 ms") and "in 4 samples" in context.checks[0]["got"]
    run.samples[3] = trainings.Sample(30, 1.03, 101)
    parts.settled(context, "", run, warm_up=10, end=30)
    assert context.checks[3]["result"] == "failed" and context.checks[3]["got"].startswith("1 bytes more")
    parts.settled(context, "", run, warm_up=10, end=5)
    assert context.checks[6]["result"] == "failed" and context.checks[6]["got"].startswith("1 samples of 40 steps")
    run.samples[0] = trainings.Sample(2, 1.0, 90)  # What tracing step 10 takes.
    run.samples[3] = trainings.Sample(30, 1.03, 100)
    parts.settled(context, "", run, warm_up=10, end=30, since=10)
    assert context.checks[9]["check"] == "memory after step 10" and context.checks[9]["result"] == "passed"


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


def test_what_a_step_spends_stands_beside_what_was_expected(gpu_check, context, tmp_path, capsys):
    by_op = {"einsum": 0.15, "einsum_accumulate": 0.02, "attention": 0.01, "attention_grad": 0.02, "swiglu": 0.003, "swiglu_grad": 0.006, "adamw": 0.010,
             "layer_norm": 0.001, "add_layer_norm": 0.003, "layer_norm_grad_accumulate": 0.004, "layer_norm_grad": 0.001, "rotary": 0.0027, "cross_entropy": 0.0005,
             "cross_entropy_grad": 0.0010, "sum_squares": 0.0014, "embedding": 0.0002}
    measured = bench(context, tmp_path, tacc={"traced_seconds_by_op": by_op, "step_seconds": 0.236})
    measured.note_shares()
    found = {share["share"]: (round(share["milliseconds"], 3), share["is_off"]) for share in context.figures["shares"]}
    assert found == {"products": (170, False), "attention and the copies of its results": (30, True), "SwiGLU and its gradient": (9, False),
                     "AdamW, and the copies in bf16": (10, False), "norms, their gradients, residual adds": (9, False), "rotary": (2.7, False),
                     "cross-entropy and its gradient": (1.5, False), "sum of squares": (1.4, False), "embedding, tied add and cast, gaps": (2.4, False), "the step": (236, False)}
    assert "attention and the copies of its results: 30.00 ms, 1.33 of the 22.5 expected, MORE THAN 25 % OFF" in capsys.readouterr().out
    part = {"part": "libraries", "checks": context.checks, "figures": context.figures, "seconds": 1, "limit_seconds": 1}
    table = gpu_check.table({"bundle": {"commit": "c"}, "date": "", "device": "H200", "seconds": 1, "rehearsal": False, "parts": [part]})
    assert "| attention and the copies of its results | 30.00 | 22.5 | **1.33** |" in table and "| AdamW, and the copies in bf16 | 10.00 | 9.6 | 1.04 |" in table
    assert not context.checks, "an estimate fails nothing"
    context.figures.clear()
    measured.sides["tacc"]["batch"] = 4  # Of which nothing is expected.
    measured.note_shares()
    bench(context, tmp_path, tacc={"step_seconds": 0.236}).note_shares()
    assert not context.figures and [(check["result"], check["got"]) for check in context.checks] == [("not run", "no step was traced")]


def test_earlier_figures_are_those_of_this_run(context):
    assert gpu_step.earlier_figures(context, "olmo-1b") == {}
    (context.results / "gpu_check.json").write_text(json.dumps({"parts": [{"part": "olmo-1b", "figures": {"x": 1}}]}))
    assert gpu_step.earlier_figures(context, "olmo-1b") == {"x": 1}
    assert gpu_step.earlier_figures(context, "llama-1b") == {}


def bench(context, tmp_path, **sides) -> gpu_step.Bench:
    case = tmp_path / "bench/olmo-1b"
    (case / "bf16-8-cuda").mkdir(parents=True, exist_ok=True)
    (case / "bench.json").write_text(json.dumps({"seq_len": 10, "beside": " in another's shape"}))
    memory = {"arena_bytes": 900, "workspace_bytes": 100}
    (case / "bf16-8-cuda/summary.json").write_text(json.dumps({"memory": memory, "flops_per_step": 524e12, "num_parameters": 1}))
    result = gpu_step.Bench(context, "olmo-1b")
    result.sides = {side: {"batch": 8, "model": "Olmo", "idle": []} | figures for side, figures in sides.items()}
    return result


def test_bars_are_held(context, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_step, "peak_flops", lambda: 1000e12)
    ours = {"tokens_per_second": 1403, "step_seconds": 1.0, "peak_bytes": 1010, "idle": [0.0, 0.01, 0.9]}
    measured = bench(context, tmp_path, tacc=ours, eager={"tokens_per_second": 1000, "peak_bytes": 1300}, compile={"tokens_per_second": 1340, "peak_bytes": 1250})
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
    measured.sides["tacc"] |= {"peak_bytes": 1021, "step_seconds": 1.01, "idle": [0.02]}
    measured.judge_mfu()
    measured.judge_idle()
    measured.judge_plan()
    assert [check["result"] for check in context.checks[-3:]] == ["failed", "failed", "failed"]
    assert context.checks[-3]["wanted"] == "at least 52%" and context.checks[-1]["wanted"] == "within 2%"
    measured.sides["eager"]["tokens_per_second"], measured.sides["compile"]["tokens_per_second"] = 1003, 1336
    measured.compare_speed("eager", "equal")
    measured.compare_speed("compile", "equal")
    measured.sides = {"tacc": ours, "compile-cudnn": {"tokens_per_second": 1200}, "max-autotune": {"tokens_per_second": 1336}}
    measured.compare_fastest()
    measured.sides["max-autotune-no-cudagraphs"] = {"tokens_per_second": 1340}
    measured.compare_fastest()
    assert [(check["result"], check["got"][:6], check["wanted"]) for check in context.checks[-4:]] == [
        ("failed", "1.399x", "at least 1.4x"), ("passed", "1.050x", "at least 1.05x"),
        ("passed", "1.050x", "at least 1.05x"), ("failed", "1.047x", "at least 1.05x")]


def attention_of(backend: str, **refused: str) -> list[dict]:
    timings = [{"backend": name, "forward_seconds": 1e-3, "backward_seconds": 2e-3} for name in ("tiles", "tensor", "flash", "cudnn") if name not in refused]
    timings += [{"backend": name, "refused": why, "failed": True} for name, why in refused.items()]
    return [{"shape": "bf16[8,2048,16,128] of [8,2048,16,128] causal, scale 0.088", "backend": backend, "timings": timings}]


def test_slower_attention_than_a_gpu_has_fails(context, tmp_path):
    for attention in (attention_of("flash"), attention_of("cudnn"), attention_of("tensor", flash="CUDA error", cudnn="no room"), attention_of("tiles"), [],
                      attention_of("flash") + attention_of("tensor")):
        measured = bench(context, tmp_path, tacc={"attention": attention})
        measured.judge_attention()
    measured = bench(context, tmp_path, tacc={})
    measured.judge_attention()
    assert [check["result"] for check in context.checks] == ["passed", "passed", "failed", "failed", "failed", "failed", "failed"]
    assert context.checks[2]["got"] == ("tensor (tiles 3.000 ms; tensor 3.000 ms; flash failed: CUDA error; cudnn failed: no room) computes "
                                        "bf16[8,2048,16,128] of [8,2048,16,128] causal, scale 0.088")
    assert context.checks[0]["wanted"] == "flash or cudnn" and context.checks[4]["got"] == "tacc-rank named no backend"


def product_of(algorithm: str, seconds: float = 0, libtorch_seconds: float = 0) -> dict:
    times = {"seconds": seconds, "libtorch_seconds": libtorch_seconds} if seconds else {}
    return {"shape": f"bf16 [{round(1e4 * libtorch_seconds)},8] x [8,8]", "algorithm": algorithm, **times}


def test_slower_products_than_libtorchs_fail(context, tmp_path):
    faster, same = product_of("cublaslt-1:42", 1e-3, 2e-3), product_of("libtorch", 3e-3, 3e-3)
    for products in ([faster, same], [faster], [same], [faster, product_of("cublaslt-1:43", 3e-3, 2e-3)], [faster, product_of("libtorch")], [product_of("libtorch")], []):
        measured = bench(context, tmp_path, tacc={"products": products})
        measured.judge_algorithms()
    assert [check["result"] for check in context.checks] == ["passed", "passed", "failed", "failed", "failed", "failed", "failed"]
    assert context.checks[0]["check"] == "olmo-1b: algorithms of products"
    assert context.checks[0]["got"] == "1 of 2 shapes by cuBLASLt; one call of each takes 0.800 of LibTorch's time"
    assert context.checks[3]["got"].endswith(", slower: bf16 [20,8] x [8,8]") and context.checks[4]["got"].endswith(", not measured: bf16 [0,8] x [8,8]")
    assert context.checks[5]["got"] == "1 shapes, none was measured" and context.checks[6]["got"] == "0 shapes, none was measured"
    measured = bench(context, tmp_path, tacc={"products": [faster], "warnings": ["product a is computed by libtorch; cublaslt-1:7 failed: CUBLAS"]})
    measured.judge_algorithms()
    assert context.checks[-1]["result"] == "failed" and context.checks[-1]["got"].endswith("; product a is computed by libtorch; cublaslt-1:7 failed: CUBLAS")


def test_a_side_that_fails_is_said_and_the_others_stay(context, tmp_path, monkeypatch):
    measured = bench(context, tmp_path, tacc={"tokens_per_second": 130})
    monkeypatch.setattr(measured, "torch", lambda *_: (_ for _ in ()).throw(RuntimeError("eager ended with 1: Traceback\n  OutOfMemoryError: 8 GiB")))
    assert not measured.run("eager", [8, 4])
    measured.compare_speed("eager", "equal")
    assert [check["result"] for check in context.checks] == ["failed", "not run"]
    assert context.checks[0]["got"].endswith("OutOfMemoryError: 8 GiB")


def test_each_way_of_ours_leaves_its_own_trace(context, tmp_path, monkeypatch):
    """And each of PyTorch's is told what to do."""
    asked = []

    def train(build, case, program, device, folder, **options):
        asked.append((folder.name, options["arguments"]))
        (folder / "model").mkdir(parents=True, exist_ok=True)
        Path(options["trace"]["path"]).write_text(json.dumps({"traceEvents": []}))
        events = [{"event": "ready", "load_seconds": 1, "attention": attention_of(options["arguments"][1] if options["arguments"] else "cudnn")},
                  *({"event": "step", "step": step, "seconds": 0.25, "loss": 1} for step in range(1, gpu_step.WARM_UP + gpu_step.COUNTED + 2))]
        return trainings.Run(folder, events)

    def torch(folder, way, *_, **options):
        asked.append((way[:4], options["limit"]))
        return {"seconds": [0.5] * (gpu_step.WARM_UP + gpu_step.COUNTED), "batch": 8, "peak_bytes": 1, "model": "Olmo"}

    monkeypatch.setattr(trainings, "train", train)
    monkeypatch.setattr(gpu_step, "run_torch", torch)
    monkeypatch.setattr(gpu_step, "settled", lambda *_, **__: None)
    bench(context, tmp_path)
    facts = json.loads((tmp_path / "bench/olmo-1b/bench.json").read_text()) | {"equal": [8], "vocab_size": 50}
    (tmp_path / "bench/olmo-1b/bench.json").write_text(json.dumps(facts))
    gpu_step.attention(context, "olmo-1b-attention")
    assert asked == [("olmo-1b-8", ()), ("olmo-1b-8-flash", ("--attention", "flash")), ("olmo-1b-8-cudnn", ("--attention", "cudnn"))]
    assert sorted(path.name for path in tmp_path.glob("*.trace.json.gz")) == ["olmo-1b-8-cudnn.trace.json.gz", "olmo-1b-8-flash.trace.json.gz", "olmo-1b-8.trace.json.gz"]
    assert [(check["check"], check["result"]) for check in context.checks] == [
        ("olmo-1b: attention by flash", "passed"), ("olmo-1b: attention by cudnn", "passed"), ("olmo-1b: the attention that was chosen", "passed")]
    for part, batch, own in (("olmo-1b-ours", 8, []), ("olmo-1b", 4, ["olmo-1b-8"])):  # Another part's side is taken, if it had the same micro-batch.
        figures = {"olmo-1b": {"tacc": context.figures["olmo-1b"]["tacc"] | {"batch": batch}}}
        (tmp_path / "gpu_check.json").write_text(json.dumps({"parts": [{"part": part, "figures": figures}]}))
        asked.clear()
        gpu_step.attention(context, "olmo-1b-attention")
        assert [folder for folder, _ in asked] == [*own, "olmo-1b-8-flash", "olmo-1b-8-cudnn"] and context.checks[-1]["result"] == "passed"
    (tmp_path / "gpu_check.json").write_text(json.dumps({"parts": [{"part": "olmo-1b-attention", "figures": context.figures}]}))
    asked.clear()
    context.end = time.monotonic() + 100
    gpu_step.baselines(context, "olmo-1b-baselines")  # By what the part before has measured of ours; one of PyTorch's ways takes longer than what is left.
    assert [way for way, _ in asked] == [("--mode", "compile", "--attention", "cudnn"), ("--mode", "compile", "--tune", "max-autotune")]
    assert all(90 < limit <= 97 for _, limit in asked)
    assert [(check["check"], check["result"]) for check in context.checks[-2:]] == [
        ("olmo-1b: max-autotune-no-cudagraphs", "not run"), ("olmo-1b: tokens/s over the fastest of PyTorch's other ways", "passed")]
    assert context.checks[-1]["got"].startswith("2.000x compile-cudnn")


def test_a_slower_choice_and_another_backend_than_asked_for_fail(context, tmp_path):
    measured = bench(context, tmp_path, **{"tacc-flash": {"step_seconds": 0.2, "attention": attention_of("tensor", flash="no kernel")}})
    measured.judge_forced("flash")
    measured.judge_forced("cudnn")
    assert [(check["check"], check["result"]) for check in context.checks] == [("olmo-1b: attention by flash", "failed"), ("olmo-1b: attention by cudnn", "not run")]
    measured.sides |= {"tacc": {"tokens_per_second": 99, "step_seconds": 1}, "max-autotune": {"tokens_per_second": 100}, "compile-cudnn": {"tokens_per_second": 50}}
    measured.compare_fastest()
    assert context.checks[-1]["result"] == "failed" and context.checks[-1]["got"].startswith("0.990x max-autotune")


# --- NVIDIA's tools ---

SANITIZER = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do
  case "$1" in --log-file) log=$2; shift;; --tool) tool=$2; shift;; --*) shift;; esac
  shift
done
case $tool in memcheck) echo "========= ERROR SUMMARY: ERRORS errors" > "$log";; *) echo "========= RACECHECK SUMMARY: HAZARDS hazards displayed" > "$log";; esac
exec "$@"
"""
# A tool and CUPTI, by which a rank traces when its GPU works, do not share a process.
RANK = """#!/bin/sh
case "$*" in *--no-gap-trace*) ;; *) echo '{"event": "failed", "code": "device", "message": "CUPTI has a subscriber"}'; exit 1;; esac
echo '{"event": "ready", "step": 0}'; for step in 1 2 3; do echo '{"event": "step", "step": '$step', "loss": 1}'; done
"""


@pytest.fixture
def machine(context, tmp_path, monkeypatch):
    """With tools that are given as scripts, a rank that trains three steps, and tests that pass."""
    for name in ("tools", "bin"):
        (tmp_path / name).mkdir()
    for case, program in (("small", "bf16"), ("bench/olmo-1b", "bf16-8")):
        (tmp_path / case / f"{program}-cuda").mkdir(parents=True)
        (tmp_path / case / f"{program}-cuda/stage0.program.gz").write_bytes(gzip.compress(b""))
        (tmp_path / case / "start.json").write_text(json.dumps({"attempt": 1, "data": {}, "checkpoint": {}}))
    (tmp_path / "bench/olmo-1b/bench.json").write_text(json.dumps({"equal": [8], "seq_len": 10, "vocab_size": 50}))
    (tmp_path / "bench/olmo-1b/model").mkdir()
    script(tmp_path / "bin/tacc-rank", RANK)
    script(tmp_path / "bin/tacc-gpu-tests", "#!/bin/sh\necho '[       OK ] A.B'; echo '[       OK ] A.C'\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/tools:{os.environ['PATH']}")
    monkeypatch.setattr(tools, "CUDA_TOOLS", "/nowhere")
    return lambda name, text: script(tmp_path / "tools" / name, text)


def results_of(context) -> list[tuple[str, str]]:
    return [(check["check"].split()[0], check["result"]) for check in context.checks]


def test_memory_that_is_not_a_kernels_fails(context, machine):
    tools.sanitizer(context)
    assert results_of(context) == [("memcheck", "not run"), ("racecheck", "not run")] and "not on PATH" in context.checks[0]["got"]
    for errors, hazards, results in ((0, 0, ("passed", "passed")), (2, 0, ("failed", "passed")), (0, 1, ("passed", "failed"))):
        context.checks.clear()
        machine("compute-sanitizer", SANITIZER.replace("ERRORS", str(errors)).replace("HAZARDS", str(hazards)))
        tools.sanitizer(context)
        assert results_of(context) == [("memcheck", results[0]), ("racecheck", results[1])]
    assert context.checks[1]["got"] == "1 hazards, 2 tests passed, ended with 0" and "RACECHECK SUMMARY" in context.checks[1]["details"]


def test_memcheck_measures_no_products(context, machine, tmp_path):
    """Those that the part `replay` has found are LibTorch's."""
    (context.results / "gpu_check.json").write_text(json.dumps({"parts": [{"part": "replay", "figures": {"products": {"bf16 [2,3] x [3,4]": "cublaslt-1:7"}}}]}))
    machine("compute-sanitizer", SANITIZER.replace("ERRORS", "0").replace("HAZARDS", "0"))
    tools.sanitizer(context)
    assert results_of(context) == [("memcheck", "passed"), ("racecheck", "passed")]
    assert json.loads((tmp_path / "memcheck/start-1-0.json").read_text())["products"] == {"bf16 [2,3] x [3,4]": "libtorch"}


def test_a_memory_checker_that_cannot_is_not_run(context, machine, monkeypatch):
    machine("compute-sanitizer", "#!/bin/sh\necho '========= Error: Device not supported. Please refer to the documentation' >&2; exit 1\n")
    tools.sanitizer(context)
    assert results_of(context) == [("memcheck", "not run"), ("racecheck", "not run")] and {check["got"] for check in context.checks} == {
        "compute-sanitizer: Device not supported"}
    context.checks.clear()
    machine("compute-sanitizer", "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(tools, "MEMCHECK_SECONDS", 0.5)
    tools.memcheck(context, tools.find_tool("compute-sanitizer"))
    assert results_of(context) == [("memcheck", "not run")] and context.checks[0]["got"].startswith("not done in 0 s")


def test_a_memory_checker_that_saw_nothing_passes_nothing(context, machine, tmp_path):
    machine("compute-sanitizer", "#!/bin/sh\nwhile [ \"${1#--}\" != \"$1\" ]; do case $1 in --report*|--log*|--t*) shift;; esac; shift; done; exec \"$@\"\n")
    tools.sanitizer(context)
    assert results_of(context) == [("memcheck", "failed"), ("racecheck", "failed")] and context.checks[0]["got"] == "no summary in 3 steps"
    context.checks.clear()
    script(tmp_path / "bin/tacc-gpu-tests", "#!/bin/sh\nexit 77\n")
    script(tmp_path / "bin/tacc-rank", "#!/bin/sh\nexit 1\n")
    tools.sanitizer(context)
    assert results_of(context) == [("memcheck", "failed"), ("racecheck", "not run")] and "ended with 1" in context.checks[0]["got"]


NCU = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do
  case "$1" in --log-file) log=$2; shift;; --csv) ;; *) shift;; esac
  shift
done
printf '==PROF== Connected\n"ID","Kernel Name","Grid Size","gpu__time_duration.sum","dram__bytes_read.sum","launch__registers_per_thread"\n' > "$log"
printf '"","","","ns","byte","register/thread"\n' >> "$log"
for name in NAMES; do printf '"1","void Teams<%s>(long)","(7, 1, 1)","2,500","1,000,000","42"\n' $name >> "$log"; done
exec "$@"
"""


def test_kernels_are_counted_by_their_functors(context, machine):
    tools.profile(context)
    assert results_of(context) == [("counters", "not run")]
    machine("ncu", NCU.replace("NAMES", "'Map<SwigluOf>' 'Map<SwigluGradOf>' 'LayerNormGradRows<2>' UpdateChunk CastChunk"))
    tools.profile(context)
    assert results_of(context)[1:] == [("counters", "passed")]
    assert [kernel["kernel"] for kernel in context.figures["kernels"]] == list(tools.KERNELS)
    assert context.figures["kernels"][0] == {"kernel": "swiglu", "name": "void Teams<Map<SwigluOf>>(long)", "grid": "(7, 1, 1)", "seconds": 2.5e-6, "read_bytes": 1e6,
                                             "registers": 42}
    assert "swiglu 2 us" in context.checks[1]["got"]
    machine("ncu", NCU.replace("NAMES", "'Map<SwigluOf>' CastChunk"))
    tools.profile(context)
    machine("ncu", "#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM' >&2; exit 1\n")
    (context.results / "ncu.csv").unlink()
    tools.profile(context)
    assert [result for _, result in results_of(context)[2:]] == ["failed", "not run"]


# --- The bundle ---


def test_what_is_too_large_to_copy_is_refused(tmp_path):
    """Of the checkout all that git would carry but the bundle itself."""
    root, out = tmp_path / "checkout", tmp_path / "checkout/bundle"
    out.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", root], check=True)
    (root / ".gitignore").write_text("/build/\n")
    (root / "build").mkdir()
    for name, size in (("tracked", 1000), ("untracked", 100), ("build/ignored", 50), ("bundle/packed", 7)):
        (root / name).write_bytes(b"x" * size)
    subprocess.run(["git", "-C", root, "add", "tracked"], check=True)
    assert pack.bytes_of_tree(root, out) == 1100 + len("/build/\n")
    assert pack.bytes_of_tree(tmp_path, out) == 0  # No checkout.
    pack.check_size(out, {"bytes": 50 * pack.MIB, "tree_bytes": 10 * pack.MIB})
    with pytest.raises(SystemExit, match=r"50\.0 MiB and the checkout's own files 10\.0: together they must stay below 60 MiB"):
        pack.check_size(out, {"bytes": 50 * pack.MIB, "tree_bytes": 10 * pack.MIB + 1})


# --- The whole check ---


def bundle_of(folder: Path, parts_py: str) -> Path:
    """A bundle whose parts are these."""
    (folder / "python").mkdir(parents=True)
    script(folder / "gpu_check", (ROOT / "scripts/gpu_check").read_text())
    (folder / "manifest.json").write_text(json.dumps({"commit": "none", "version": "0"}))
    (folder / "bin").mkdir()
    (folder / "python/gpu_step.py").write_text("")
    (folder / "python/tools.py").write_text("")
    (folder / "python/parts.py").write_text(parts_py)
    return folder


def test_a_call_without_libraries_or_a_gpu_ends_there(tmp_path):
    """And what was copied without its modes runs. (The parts of a call are in test_gpu_check.py.)"""
    bundle = bundle_of(tmp_path / "bundle", """import json, subprocess
class Context:
    def __init__(self, **k): self.__dict__ |= k
def libraries(context):
    said = subprocess.run([context.bundle / "bin/tacc-rank"], capture_output=True, text=True).stdout.strip()
    context.found.write_text(json.dumps({"checks": [{"check": "gpu", "result": said, "got": "", "wanted": ""}], "figures": {}}))
def environment(context): libraries(context)
replay = probe = kernels = nccl_on_one_gpu = environment
""")
    (bundle / "python/gpu_step.py").write_text("def ours(context, part): pass\ndef attention(context, part): pass\n")
    (bundle / "python/tools.py").write_text("def sanitizer(context): pass\n")
    for result, wanted in (("failed", ["failed", *8 * ["not run"]]), ("passed", 6 * ["passed"])):
        (bundle / "bin/tacc-rank").write_text(f"#!/bin/sh\necho {result}\n")
        (bundle / "bin/tacc-rank").chmod(0o644)
        ended = subprocess.run([sys.executable, bundle / "gpu_check", "--out", tmp_path / "out", "--rehearse", "--first"], stdout=subprocess.DEVNULL)
        assert ended.returncode == (result == "failed")
        report = json.loads((tmp_path / "out/gpu_check.json").read_text())
        assert [part["part"] for part in report["parts"]] == ["libraries", "environment", "replay", "probe", "olmo-1b-ours", "nccl-on-one-gpu", "sanitizer", "kernels", "olmo-1b-attention"]
        assert [check["result"] for part in report["parts"] for check in part["checks"]] == wanted
        assert report["parts"][0]["limit_seconds"] == 150
    both = subprocess.run([sys.executable, bundle / "gpu_check", "--first", "--second"], capture_output=True, text=True)
    assert both.returncode == 2 and "not allowed with" in both.stderr


def test_the_driver_is_found_where_it_was_found_before(gpu_check, tmp_path):
    """By a variable alone: images whose driver is mounted often have no other word of it."""
    driver = tmp_path / "driver"
    driver.mkdir()
    (tmp_path / "cuda.c").write_text("int tacc_fake_driver(void) { return 580; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", driver / "libcuda.so.1", tmp_path / "cuda.c"], check=True)
    bundle = bundle_of(tmp_path / "bundle", "import ctypes, json\nclass Context:\n    def __init__(self, **k): self.found = k['found']\n"
                       "def probe(context):\n    version = ctypes.CDLL('libcuda.so.1').tacc_fake_driver()\n"
                       "    context.found.write_text(json.dumps({'checks': [], 'figures': {'driver': version}}))\n")
    environment = os.environ | {"LD_LIBRARY_PATH": f"/nowhere:{driver}"}
    subprocess.run([sys.executable, bundle / "gpu_check", "--out", tmp_path / "out", "--rehearse", "--parts", "probe"], check=True, env=environment,
                   stdout=subprocess.DEVNULL)
    assert json.loads((tmp_path / "out/gpu_check.json").read_text())["parts"][0]["figures"] == {"driver": 580}
    path = gpu_check.library_path("/a::/b").split(":")
    assert path[-4:] == ["/a", "/b", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"] and "" not in path  # An empty one is the current folder.
    assert Path(path[1]).name == "lib" and Path(path[1]).parent.name == "torch"


def test_sigterm_ends_the_part_under_way(tmp_path):
    """The whole check's own time is someone else's to end."""
    bundle = bundle_of(tmp_path / "bundle", "import os, pathlib, time\nclass Context:\n"
                       "    def __init__(self, **k): pathlib.Path(k['results'], 'pid').write_text(str(os.getpid()))\n"
                       "def probe(context): time.sleep(600)\n")
    process = subprocess.Popen([sys.executable, bundle / "gpu_check", "--out", tmp_path / "out", "--rehearse", "--parts", "probe"], stderr=subprocess.DEVNULL)
    pid = tmp_path / "out/pid"
    deadline = time.monotonic() + 60
    while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert not Path(f"/proc/{pid.read_text()}").exists()
