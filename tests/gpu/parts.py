"""The parts of scripts/gpu_check but the benches. Each takes a Context and says what it found by `judge`, `measure` and `skip`."""

import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import trainings
import unit_tests
from trainings import distance, norm, train

GPU = "cuda:0"
MIB = 1 << 20


@dataclass
class Context:
    bundle: Path
    work: Path
    found: Path  # Holds `checks` as JSON, also when the part is ended early.
    rehearses: bool  # On the CPU: shows that the check works, and nothing of a GPU.
    checks: list[dict] = field(default_factory=list)

    @property
    def build(self) -> Path:
        return self.bundle / "bin"

    @property
    def device(self) -> str:
        return "cpu" if self.rehearses else GPU

    def judge(self, check: str, ok: bool, got: str, wanted: str) -> None:
        """What must hold on the CPU as well."""
        self._add(check, "failed" if not ok else "rehearsed" if self.rehearses else "passed", got, wanted)

    def measure(self, check: str, ok: bool, got: str, wanted: str) -> None:
        """A bar for a GPU; a rehearsal only shows that it can be taken."""
        self._add(check, "rehearsed" if self.rehearses else "passed" if ok else "failed", got, wanted)

    def skip(self, check: str, why: str) -> None:
        self._add(check, "not run", why, "")

    def _add(self, check: str, result: str, got: str, wanted: str) -> None:
        self.checks.append({"check": check, "result": result, "got": got, "wanted": wanted})
        self.found.write_text(json.dumps(self.checks))
        print(f"{result}: {check}: {got}" + (f" (wanted: {wanted})" if wanted else ""), flush=True)

    def ended_well(self, what: str, run: trainings.Run) -> bool:
        if run.error:
            self.judge(what, False, " ".join(run.error.split())[:400], "a run to its end")
        return not run.error


def used_bytes() -> int:
    """Of the GPU, by everyone, this process's own context among them."""
    import torch

    free, total = torch.cuda.mem_get_info(0)
    return total - free


def environment(context: Context) -> None:
    import torch
    import transformers

    version = subprocess.run([context.build / "tacc-rank", "--version"], capture_output=True, text=True)
    manifest = json.loads((context.bundle / "manifest.json").read_text())
    context.judge("tacc-rank starts", version.returncode == 0 and version.stdout.split()[-1:] == [manifest["version"]],
                  " ".join((version.stdout or version.stderr).split())[:300], f"version {manifest['version']}")
    context.judge("LibTorch", torch.__version__.startswith("2.11."), f"torch {torch.__version__}, transformers {transformers.__version__}", "2.11")
    listed = subprocess.run([context.build / "tacc-rank", "--devices"], capture_output=True, text=True)
    gpus = [device for device in json.loads(listed.stdout or "[]") if device["kind"] == "cuda"]
    print(f"{platform.platform()}, Python {sys.version.split()[0]}, {os.cpu_count()} processors, bundle {manifest['commit']}")
    if context.rehearses:
        context.skip("the GPU", "a rehearsal on the CPU")
        return
    context.judge("the GPU", bool(gpus), json.dumps(gpus) if gpus else (listed.stderr.strip() or "none is listed"), f"{GPU} in tacc-rank --devices")
    properties = torch.cuda.get_device_properties(0)
    print(f"{properties.name}, {properties.total_memory / MIB:.0f} MiB, {used_bytes() / MIB:.0f} MiB used, {properties.multi_processor_count} multiprocessors")


def probe(context: Context) -> None:
    command = [context.build / "tacc-rank", "--probe", "--device", context.device]
    begin = time.monotonic()
    answer = subprocess.run(command, capture_output=True, text=True)
    seconds = time.monotonic() - begin
    if answer.returncode != 0:
        context.judge("probe", False, answer.stderr.strip()[:400], "exit 0")
        return
    profile = json.loads(answer.stdout)
    print(json.dumps(profile, indent=1))
    context.judge("probe", profile["name"] == context.device and profile["matmul_flops_per_second"]["bf16"] > 0,
                  f"{profile['model']}: bf16 {profile['matmul_flops_per_second']['bf16'] / 1e12:.1f} TFLOP/s, "
                  f"{profile['memory_bytes_per_second'] / 1e9:.0f} GB/s, driver {profile.get('driver', '-')}", "a profile")
    # The process loads LibTorch's libraries before.
    context.measure("time of tacc-rank --probe", seconds < 6, f"{seconds:.1f} s", "below 6 s; the measurement itself, 3 s, is a test of tacc-gpu-device-tests")


def kernels(context: Context) -> None:
    """Every kernel against its reference, allocator, probe and NCCL: the unit tests."""
    binaries = [context.build / name for name in ("tacc-gpu-tests", "tacc-gpu-device-tests")]
    for binary, outcomes in unit_tests.run_all(binaries, context.work, timeout=120, processes=min(6, os.cpu_count() or 1)).items():
        for outcome in outcomes:
            check = f"{binary} {outcome.suite}"
            if outcome.failures:
                context.judge(check, False, "; ".join(outcome.failures)[:600], "no failure")
            elif outcome.no_gpu or outcome.passed == 0:
                context.skip(check, "no GPU")
            else:
                context.judge(check, True, f"{outcome.passed} passed" + (f", {outcome.skipped} not run" if outcome.skipped else ""), "no failure")


def losses(context: Context) -> None:
    """20 losses of each family, in the tolerance form of tests/parity: f32 at most twice as far from a float64 run of the reference as the reference's own f32;
    bf16 and f16 at most 1.5 times as far from f32 as the reference's autocast."""
    cases = sorted((context.bundle / "families").iterdir())
    references = {case.name: json.loads((case / "reference.json").read_text()) for case in cases}
    # CUDA takes a second to start: many at once.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        pending = {(case.name, precision, draw): pool.submit(train, context.build, case, precision, context.device,
                                                             context.work / f"{case.name}-{precision}-{draw}", model=f"model-{draw}",
                                                             checkpoint={"dir": ""})
                   for case in cases for draw, own in enumerate(references[case.name]["draws"]) for precision in own}
        runs = {key: future.result() for key, future in pending.items()}
    for family, reference in references.items():
        draws = reference["draws"]
        of_family = [run for key, run in runs.items() if key[0] == family]
        if not all(context.ended_well(f"{family} ({reference['case']})", run) for run in of_family):
            continue
        exact, last = reference["exact"], len(draws) - 1
        got, own = distance(runs[family, "fp32", last].losses(), exact), distance(draws[last]["fp32"], exact)
        context.judge(f"{family}: f32 losses", got <= 2 * own + 1e-7 * norm(exact), f"{got / norm(exact):.1e}, the reference's {own / norm(exact):.1e}",
                      "at most 2x + 1e-7, relative to a float64 run")
        for precision in draws[0].keys() - {"fp32"}:
            pairs = [(distance(runs[family, precision, i].losses(), runs[family, "fp32", i].losses()), distance(draw[precision], draw["fp32"]))
                     for i, draw in enumerate(draws)]
            got, own = sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
            context.judge(f"{family}: {precision} losses", got <= 1.5 * own, f"{got / norm(exact):.1e}, the reference's {own / norm(exact):.1e}",
                          "at most 1.5x, relative to f32")


def checkpoints(context: Context) -> None:
    """Saved on the CPU, resumed on the GPU, and back."""
    case, steps, saved = context.bundle / "small", 20, "step-00000008.a1"
    for number, (writer, reader) in enumerate((("cpu", context.device), (context.device, "cpu"))):
        check = f"saved on {writer}, resumed on {reader}"
        folder = context.work / str(number)
        whole = train(context.build, case, "f32", writer, folder / "whole", train={"max_steps": steps}, checkpoint={"save_steps": 8})
        if not context.ended_well(check, whole):
            continue
        resumed = train(context.build, case, "f32", reader, folder / "resumed", attempt=2, train={"max_steps": steps},
                        checkpoint={"resume": str(whole.folder / saved)})
        if not context.ended_well(check, resumed):
            continue
        wanted = whole.losses()[8:]
        got = distance(resumed.losses(), wanted) / norm(wanted)
        context.judge(check, resumed.of("ready")[0]["step"] == 8 and got <= 1e-5, f"losses of steps 9 to {steps} differ by {got:.1e}", "at most 1e-5")


def kill(context: Context) -> None:
    """kill -9 in a step, resume: the same bits in deterministic mode."""
    case, program, steps = context.bundle / "small", "bf16-deterministic", 120
    # A checkpoint is written while training goes on, and done before the next one is begun.
    options = {"train": {"max_steps": steps, "deterministic": True}, "checkpoint": {"save_steps": 20}}
    whole = train(context.build, case, program, context.device, context.work / "whole", **options)
    if not context.ended_well("undisturbed run", whole):
        return
    killed = train(context.build, case, program, context.device, context.work / "killed", kill_at=70, **options)
    in_a_step = not killed.of("finished") and killed.losses() == whole.losses()[: len(killed.losses())]
    context.judge("kill -9 in a step", in_a_step and bool(killed.checkpoints()), f"after {len(killed.losses())} steps, with {', '.join(killed.checkpoints()) or 'no checkpoint'}",
                  f"between steps 70 and {steps}, with a checkpoint")
    if not killed.checkpoints():
        return
    last = killed.checkpoints()[-1]
    options["checkpoint"] |= {"resume": last}
    resumed = train(context.build, case, program, context.device, killed.folder, attempt=2, **options)
    if not context.ended_well("resume after kill -9", resumed):
        return
    begin = resumed.of("ready")[0]["step"]
    for what, same in (("losses", resumed.losses() == whole.losses()[begin:]), ("weights", resumed.digest(f"step-{steps:08}.a2") == whole.digest(f"step-{steps:08}.a1"))):
        context.judge(f"{what} after kill -9 in a step", 0 < begin < steps and same, f"resumed from {last}: {'the same' if same else 'other'} bits",
                      "the same bits as an undisturbed run")


def steady(context: Context) -> None:
    """Of a training of 8 layers: memory, the host's time, captured graphs."""
    steps, warm_up = (4, 2) if context.rehearses else (80, 10)
    measured = (lambda: 0) if context.rehearses else used_bytes
    before = measured()
    small = train(context.build, context.bundle / "small", "bf16", context.device, context.work / "small", used_bytes=measured, checkpoint={"dir": ""})
    run = train(context.build, context.bundle / "steady", "bf16", context.device, context.work / "steady", used_bytes=measured, threads=os.cpu_count() or 1,
                train={"max_steps": steps}, checkpoint={"dir": ""})
    if not context.ended_well("small training", small) or not context.ended_well("steady training", run):
        return
    planned = {case: trainings.summary(context.bundle / case, "bf16", context.device)["memory"] for case in ("small", "steady")}
    planned = {case: memory["arena_bytes"] + memory["workspace_bytes"] for case, memory in planned.items()}
    if context.rehearses:
        for check in ("memory after step 2", "memory against the plan", "captured graphs", "host time of a step"):
            context.skip(check, "no GPU")
        context.judge("steady training", len(run.losses()) == steps, f"{len(run.losses())} steps", f"{steps} steps")
        return
    grown = max(run.used_bytes[2:]) - run.used_bytes[2]
    context.judge("memory after step 2", grown == 0, f"{grown} bytes more", "0")
    # What CUDA and its libraries hold beside any plan, which shows where the plan is next to nothing.
    beside = small.used_bytes[-1] - before - planned["small"]
    used = run.used_bytes[-1] - before - beside
    context.judge("memory against the plan", abs(used / planned["steady"] - 1) <= 0.02,
                  f"{used / MIB:.0f} MiB beside {beside / MIB:.0f} MiB of CUDA and libraries, planned {planned['steady'] / MIB:.0f} MiB", "within 2 %")
    parts = run.of("ready")[0].get("capture")
    if parts is None:
        context.skip("captured graphs", "this tacc-rank does not report them")
    else:
        left = [f"{part['graph']} from {part['first_node']}: {part['not_captured']}" for part in parts if part.get("not_captured")]
        context.judge("captured graphs", len(left) < len(parts), f"{len(parts) - len(left)} of {len(parts)} parts" + "".join(f"; not {words}" for words in left), "at least 1")
    seconds = [after - now for now, after in zip(run.host_seconds, run.host_seconds[1:])][warm_up:]
    if not seconds or any(math.isnan(value) for value in seconds):
        context.skip("host time of a step", "/proc/PID/task/TID/schedstat is not there")
    else:
        context.measure("host time of a step", statistics.median(seconds) <= 0.5e-3, f"{statistics.median(seconds) * 1e3:.3f} ms of the rank's thread", "at most 0.5 ms")


def two_ranks(context: Context) -> None:
    """Two ranks on one GPU, for correctness: their talk goes by way of the host."""
    case, options = context.bundle / "small", {"train": {"max_steps": 20}, "checkpoint": {"dir": ""}}
    one = train(context.build, case, "f32", context.device, context.work / "one", **options)
    two = train(context.build, case, "f32-fsdp2", context.device, context.work / "two", world=2, **options)
    if context.ended_well("one rank", one) and context.ended_well("two ranks", two):
        got = distance(two.losses(), one.losses()) / norm(one.losses())
        context.judge("two ranks on one device", got <= 1e-6, f"20 losses differ by {got:.1e} from one rank's", "at most 1e-6")
