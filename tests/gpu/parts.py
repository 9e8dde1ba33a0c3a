"""The parts of scripts/gpu_check but the benches. Each takes a Context and says what it found by `judge`, `measure` and `skip`."""

import json
import math
import os
import platform
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import trainings
import unit_tests
from bare_ranks import Ranks
from trainings import distance, norm, train

GPU = "cuda:0"
MIB = 1 << 20
# Of the environment: what says which driver, libraries and GPUs a process finds, and how NCCL talks.
TELLING = re.compile(r"PATH|LD_LIBRARY_PATH|LD_PRELOAD|(CUDA|NVIDIA|NCCL)_\w*")
SHORT, LONG = 300, 6000  # characters of a table's cell, and of what is kept besides


def one_line(text: str, length: int = SHORT) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[:length] + " ..."


def last_lines(text: str, length: int = SHORT) -> str:
    """Where a traceback says what was wrong."""
    line = " ".join(text.split())
    return line if len(line) <= length else "... " + line[-length:]


def write_whole(path: Path, text: str) -> None:
    """Who reads it, also after this process was killed, finds all of this text or of the one before."""
    beside = path.with_name(f"{path.name}.tmp")
    beside.write_text(text)
    beside.replace(path)


@dataclass
class Context:
    bundle: Path
    work: Path
    found: Path  # Holds `checks` and `figures` as JSON, also when the part is ended early.
    results: Path  # The folder of gpu_check's results: earlier parts' are there.
    rehearses: bool  # On the CPU: shows that the check works, and nothing of a GPU.
    end: float = math.inf  # By time.monotonic(): then the part is ended.
    checks: list[dict] = field(default_factory=list)
    figures: dict = field(default_factory=dict)  # What was measured, by name.

    @property
    def build(self) -> Path:
        return self.bundle / "bin"

    @property
    def device(self) -> str:
        return "cpu" if self.rehearses else GPU

    def left(self) -> float:
        """Seconds, of which a few are kept to say what was found."""
        return self.end - time.monotonic() - 3

    def judge(self, check: str, ok: bool, got: str, wanted: str, details: str = "") -> None:
        """What must hold on the CPU as well. `details`: all that is known, where `got` is too short for it."""
        self._add(check, "failed" if not ok else "rehearsed" if self.rehearses else "passed", got, wanted, details)

    def measure(self, check: str, ok: bool, got: str, wanted: str) -> None:
        """A bar for a GPU; a rehearsal only shows that it can be taken."""
        self._add(check, "rehearsed" if self.rehearses else "passed" if ok else "failed", got, wanted)

    def skip(self, check: str, why: str) -> None:
        self._add(check, "not run", why, "")

    def note(self, name: str, figure: object) -> None:
        """A figure beside the checks: any JSON."""
        self.figures[name] = figure
        self._write()

    def _add(self, check: str, result: str, got: str, wanted: str, details: str = "") -> None:
        self.checks.append({"check": check, "result": result, "got": one_line(got), "wanted": wanted} | ({"details": details[-LONG:]} if details else {}))
        self._write()
        print(f"{result}: {check}: {got}" + (f" (wanted: {wanted})" if wanted else ""), flush=True)

    def _write(self) -> None:
        write_whole(self.found, json.dumps({"checks": self.checks, "figures": self.figures}))

    def ended_well(self, what: str, run: trainings.Run) -> bool:
        if run.error:
            self.judge(what, False, run.error, "a run to its end", f"{run.error}\n{run.log}")
        return not run.error


def used_bytes() -> int:
    """Of the GPU, by everyone, this process's own context among them."""
    import torch

    free, total = torch.cuda.mem_get_info(0)
    return total - free


def libraries(context: Context) -> None:
    """Reads what a machine that was just started has on its disk, or further away, several GB: no later part is to be measured, or ended, for that. Then whether
    ranks find the GPU, without which no other part says anything."""
    print(f"{platform.platform()}, Python {sys.version.split()[0]}, {os.cpu_count()} processors", flush=True)
    # Before all that may fail for it.
    context.note("environment", {name: value for name, value in sorted(os.environ.items()) if TELLING.fullmatch(name)})
    if not context.rehearses:
        context.note("nvidia-smi", output_of("nvidia-smi").splitlines())
        print("\n".join(context.figures["nvidia-smi"]), flush=True)
    begin = time.monotonic()
    import torch
    import transformers

    imported = time.monotonic()
    questions = [("--devices",)] if context.rehearses else [("--devices",), ("--look", "--device", GPU)]
    answers = [subprocess.run([context.build / "tacc-rank", *question], capture_output=True, text=True) for question in questions]
    found = all(answer.returncode == 0 for answer in answers) and (context.rehearses or '"cuda"' in answers[0].stdout)
    said = " ".join(answer.stdout + answer.stderr for answer in answers)
    context.judge("tacc-rank finds the device", found, said, f"{context.device} in --devices, and --look at it",
                  "" if found else where_libraries_are(context))
    if not context.rehearses:
        known = output_of("/sbin/ldconfig", "-p").splitlines()
        context.note("ldconfig", [line.strip() for line in known if any(word in line for word in ("cuda", "nvidia", "nccl"))])
    begin_product = time.monotonic()
    x = torch.ones((256, 256), dtype=torch.bfloat16, device="cpu" if context.rehearses else "cuda")
    total = (x @ x).float().sum().item()
    context.note("seconds", {"import": imported - begin, "tacc-rank": begin_product - imported, "product": time.monotonic() - begin_product})
    context.judge("PyTorch multiplies", total == 256**3,
                  f"torch {torch.__version__}, transformers {transformers.__version__}: {imported - begin:.1f} s to import, {time.monotonic() - begin_product:.1f} s to multiply", "a sum of 256 cubed")


def output_of(*command: str) -> str:
    """Whatever becomes of it."""
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def where_libraries_are(context: Context) -> str:
    """What the dynamic linker tries for the CUDA module: the whole in the results, its last words here."""
    log = context.results / "ld_debug.log"
    with open(log, "w") as file:
        subprocess.run([context.build / "tacc-rank", "--look", "--device", GPU], stdout=file, stderr=file, timeout=60,
                       env=os.environ | {"LD_DEBUG": "libs"})
    return log.read_text(errors="replace")[-LONG:]


def environment(context: Context) -> None:
    version = subprocess.run([context.build / "tacc-rank", "--version"], capture_output=True, text=True)
    manifest = json.loads((context.bundle / "manifest.json").read_text())
    context.judge("tacc-rank starts", version.returncode == 0 and version.stdout.split()[-1:] == [manifest["version"]],
                  version.stdout or version.stderr or f"ended with {version.returncode}", f"version {manifest['version']}")
    listed = subprocess.run([context.build / "tacc-rank", "--devices"], capture_output=True, text=True)
    gpus = [device for device in json.loads(listed.stdout or "[]") if device["kind"] == "cuda"]
    if context.rehearses:
        context.skip("the GPU", "a rehearsal on the CPU")
    else:
        context.judge("the GPU", bool(gpus), json.dumps(gpus) if gpus else (listed.stderr or "none is listed"), f"{GPU} in tacc-rank --devices")
    import torch
    import transformers

    context.judge("LibTorch", torch.__version__.startswith("2.11."), f"torch {torch.__version__}, transformers {transformers.__version__}", "2.11")
    if not context.rehearses:
        properties = torch.cuda.get_device_properties(0)
        print(f"{properties.name}, {properties.total_memory / MIB:.0f} MiB, {used_bytes() / MIB:.0f} MiB used, {properties.multi_processor_count} multiprocessors")


def probe(context: Context) -> None:
    command = [context.build / "tacc-rank", "--probe", "--device", context.device]
    begin = time.monotonic()
    answer = subprocess.run(command, capture_output=True, text=True)
    seconds = time.monotonic() - begin
    if answer.returncode != 0:
        context.judge("probe", False, last_lines(answer.stderr) or f"ended with {answer.returncode}", "exit 0", answer.stderr)
        return
    profile = json.loads(answer.stdout)
    context.note("profile", profile)
    context.judge("probe", profile["name"] == context.device and profile["matmul_flops_per_second"]["bf16"] > 0,
                  f"{profile['model']}: bf16 {profile['matmul_flops_per_second']['bf16'] / 1e12:.1f} TFLOP/s, "
                  f"{profile['memory_bytes_per_second'] / 1e9:.0f} GB/s, driver {profile.get('driver', '-')}", "a profile")
    context.note("seconds", seconds)  # No bar: of a process that is the machine's first they tell how far away the libraries' files lie.


def kernels(context: Context) -> None:
    """Every kernel against its reference, allocator, probe and what one rank can show of collectives: the unit tests."""
    # What measures the GPU, or looks at what is free of its memory, has it alone.
    binaries = {context.build / "tacc-gpu-device-tests": 1, context.build / "tacc-gpu-tests": min(12, os.cpu_count() or 1)}
    for outcome in unit_tests.run_all(binaries, context.work, limit=45):
        check = f"{outcome.binary} {outcome.suite}"
        if outcome.failures:
            context.judge(check, False, "; ".join(f"{test}: {last_lines(said, 250)}" for test, said in outcome.failures.items()),
                          f"no failure ({outcome.passed} passed)", "\n\n".join(f"{test}:\n{said}" for test, said in outcome.failures.items()))
        elif outcome.no_gpu and not context.rehearses:
            context.judge(check, False, "it found no GPU", "no failure")
        elif outcome.no_gpu or outcome.passed == 0:
            context.skip(check, "no GPU" if outcome.no_gpu else f"{outcome.skipped} skipped")
        else:
            context.judge(check, True, f"{outcome.passed} passed" + (f", {outcome.skipped} not run" if outcome.skipped else ""), "no failure")


def collectives(context: Context) -> None:
    """What a communicator gives: of one rank, for which NCCL copies and runs no kernel, and of 2 to 8 where there are as many GPUs."""
    devices = json.loads(subprocess.run([context.build / "tacc-rank", "--devices"], capture_output=True, text=True).stdout or "[]")
    gpus = 2 if context.rehearses else sum(device["kind"] == "cuda" for device in devices)
    for world in range(1, min(gpus, 8) + 1):
        judge_talk(context, "communicator of 1: NCCL copies, no kernel of it runs" if world == 1 else f"communicator of {world}", talk(context, world))
    if gpus < 2:
        context.skip("communicators of 2 to 8", f"this machine has {'one GPU' if gpus else 'no GPU'}")


def nccl_on_one_gpu(context: Context) -> None:
    """NCCL's kernels between 2 and 4 processes that take turns on one GPU. Each says that it is a host of its own, as NCCL refuses two ranks of one host on one
    GPU: their talk goes by NCCL's sockets, not by NVLink."""
    for world in (2, 4):
        check = f"{world} ranks on one GPU, by NCCL's sockets"
        if context.left() < 10:
            context.skip(check, f"{context.left():.0f} s are left")
            continue
        said = talk(context, world, shares_gpu=True, limit=context.left() / 2)
        if not said.checks and REFUSED.search(said.error):
            context.skip(check, f"refused: {said.error}")
        elif said.timed_out and not any("error" in call for call in said.checks):
            context.skip(check, f"{said.error}; {len(said.checks)} calls were right before")  # How long processes wait for their turns nobody has measured.
        else:
            judge_talk(context, check, said)


# Before any call, as NcclTalk::Error says it.
REFUSED = re.compile(r"NCCL with .*: (connecting|making a group)|cannot use NCCL")


@dataclass
class Talk:
    """What ranks of tacc-gpu-collectives said."""

    checks: list[dict]  # Events `check` of rank 0.
    error: str  # What ended it early.
    log: str  # All ranks' stderr.
    timed_out: bool


def judge_talk(context: Context, check: str, said: Talk) -> None:
    wrong = [f"{call['check']}, sums {call['sums']}: {call['error']}" for call in said.checks if "error" in call]
    got = said.error or "; ".join(wrong) or f"{len(said.checks)} calls right, sums {' and '.join(dict.fromkeys(call['sums'] for call in said.checks))}"
    context.judge(check, bool(said.checks) and not wrong and not said.error, got, "each kind of call, as it is and replayed: moved bits, sums in f64 on the host",
                  "\n".join([said.error, *wrong, said.log]) if wrong or said.error else "")


def talk(context: Context, world: int, shares_gpu: bool = False, limit: float = 90) -> Talk:
    limit = min(limit, max(context.left(), 1))
    logs = [open(context.work / f"collectives-{world}-{rank}.log", "w+", errors="replace") for rank in range(world)]
    binary, devices = context.build / "tacc-gpu-collectives", [context.device if context.rehearses or shares_gpu else f"cuda:{rank}" for rank in range(world)]
    options = ("--one-gpu",) if shares_gpu else ()
    # NCCL's own words go to stdout else, among the events.
    alone = {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/dev/stderr"} if shares_gpu else {}
    ranks = [subprocess.Popen([binary, "--rank", str(rank), "--world", str(world), "--device", device, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=log, text=True, errors="replace", env=os.environ | alone | ({"NCCL_HOSTID": f"tacc-{rank}"} if shares_gpu else {}))
             for rank, (device, log) in enumerate(zip(devices, logs))]
    is_over = threading.Event()

    def end_all() -> None:
        is_over.set()
        for rank in ranks:
            rank.kill()

    clock = threading.Timer(limit, end_all)
    clock.start()
    events: list[dict] = []
    try:
        with Ranks(ranks) as under_way:
            for event in under_way.events():  # Those before a failure count too.
                events.append(event)
        error = "" if events and events[-1]["event"] == "finished" else "rank 0 did not finish"
    except (RuntimeError, ValueError, TypeError, KeyError, OSError) as failure:
        error = str(failure) or repr(failure)
    finally:
        clock.cancel()
    if is_over.is_set():
        error = f"not done in {limit:.0f} s: {error}"
    said = []
    for log in logs:
        log.seek(0)
        said.append(log.read()[-2000:])
        log.close()
    return Talk([event for event in events if event["event"] == "check"], error, "".join(said), is_over.is_set())


def replayed_as_captured(run: trainings.Run) -> tuple[bool, str]:
    """Whether each step but the first, and those that ran node by node, replayed all that the rank said it captures; in words."""
    parts = [part for part in run.of("ready")[0].get("capture", []) if part["graph"] != "eval"]  # No step is an evaluation.
    captured = [part for part in parts if not part.get("not_captured")]
    replays = [step.get("replays") for step in run.of("step")]
    left = "".join(f"; not {part['graph']} from {part['first_node']}: {part['not_captured']}" for part in parts if part.get("not_captured"))
    ok = bool(captured) and replays[:1] == [0] and len(replays) > 1 and all(count == len(captured) for count in replays[1:])
    return ok, f"replays of each step: {', '.join(map(str, replays[:4]))}, ..., {replays[-1]}; captured: {len(captured)} of {len(parts)} parts{left}"


def replay(context: Context) -> None:
    """A training whose steps are replayed from what was captured, against one that runs node by node: what fails only when captured fails here by itself."""
    case, program = context.bundle / "small", "bf16-deterministic"
    options = {"train": {"deterministic": True}, "checkpoint": {"dir": ""}}
    nodes = train(context.build, case, program, context.device, context.work / "nodes", arguments=("--profile", str(context.work / "profile.json")), **options)
    whole = train(context.build, case, program, context.device, context.work / "whole", **options)
    nodes_ended, whole_ended = context.ended_well("steps node by node", nodes), context.ended_well("steps as captured", whole)
    if whole_ended:  # For runs in which to measure would take too long.
        context.note("products", {product["shape"]: product["algorithm"] for product in whole.of("ready")[0].get("products", [])})
    if nodes_ended and whole_ended:
        same = nodes.losses() == whole.losses()
        context.judge("captured steps against node by node", same, "the same losses" if same else f"{whole.losses()} and {nodes.losses()}", "the same bits")
    if not whole_ended:
        return
    if context.rehearses:
        context.skip("steps are replayed", "no GPU")
    else:
        ok, words = replayed_as_captured(whole)
        context.judge("steps are replayed", ok, words, "in each step but the first, all that is captured")


def losses(context: Context) -> None:
    """20 losses of each family, in the tolerance form of tests/parity: f32 at most twice as far from a float64 run of the reference as the reference's own f32;
    bf16 and f16 at most 1.5 times as far from f32 as the reference's autocast."""
    cases = sorted((context.bundle / "families").iterdir())
    references = {case.name: json.loads((case / "reference.json").read_text()) for case in cases}
    # CUDA takes a second to start: many at once.
    with ThreadPoolExecutor(min(12, os.cpu_count() or 1)) as pool:
        pending = {(case.name, precision, draw): pool.submit(train, context.build, case, precision, context.device,
                                                             context.work / f"{case.name}-{precision}-{draw}", model=f"model-{draw}",
                                                             checkpoint={"dir": ""})
                   for case in cases for draw, own in enumerate(references[case.name]["draws"]) for precision in own}
        for family, reference in references.items():
            judge_family(context, family, reference, {key[1:]: future.result() for key, future in pending.items() if key[0] == family})


def judge_family(context: Context, family: str, reference: dict, runs: dict[tuple[str, int], trainings.Run]) -> None:
    """`runs`: by precision and draw of the weights."""
    draws, exact, last = reference["draws"], reference["exact"], len(reference["draws"]) - 1
    for precision in draws[0]:
        check = f"{family}: {'f32' if precision == 'fp32' else precision} losses"
        failed = [run for (of, _), run in runs.items() if of == precision and run.error]
        if failed:
            context.ended_well(check, failed[0])
            continue
        if precision == "fp32":
            of, got, own = last, distance(runs[precision, last].losses(), exact), distance(draws[last][precision], exact)
            bar, wanted = 2 * own + 1e-7 * norm(exact), "at most 2x + 1e-7, relative to a float64 run"
        elif any(runs["fp32", draw].error for draw in range(len(draws))):
            context.skip(check, "its f32 run failed")
            continue
        else:
            pairs = [(draw, distance(runs[precision, draw].losses(), runs["fp32", draw].losses()), distance(own[precision], own["fp32"]))
                     for draw, own in enumerate(draws)]
            of, got, own = sorted(pairs, key=lambda pair: pair[1] / pair[2])[len(pairs) // 2]
            bar, wanted = 1.5 * own, "at most 1.5x, relative to f32"
        ok = got <= bar
        context.judge(check, ok, f"{reference['case']}: {got / norm(exact):.1e}, the reference's {own / norm(exact):.1e}", wanted,
                      "" if ok else f"got {runs[precision, of].losses()}\nthe reference has {draws[of][precision]}")


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
    case, program = context.bundle / "small", "bf16-deterministic"
    # A GPU takes less than a millisecond for one of these: what is told of a step must come before the last one is done.
    steps, save_steps, kill_at = (120, 20, 70) if context.rehearses else (3000, 500, 1700)
    # A checkpoint is written while training goes on, and done before the next one is begun.
    options = {"train": {"max_steps": steps, "deterministic": True}, "checkpoint": {"save_steps": save_steps}}
    whole = train(context.build, case, program, context.device, context.work / "whole", **options)
    if not context.ended_well("undisturbed run", whole):
        return
    killed = train(context.build, case, program, context.device, context.work / "killed", kill_at=kill_at, **options)
    in_a_step = not killed.of("finished") and killed.losses() == whole.losses()[: len(killed.losses())]
    context.judge("kill -9 in a step", in_a_step and bool(killed.checkpoints()), f"after {len(killed.losses())} steps, with {', '.join(killed.checkpoints()) or 'no checkpoint'}",
                  f"between steps {kill_at} and {steps}, with a checkpoint", killed.log)
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


def settled(context: Context, name: str, run: trainings.Run, warm_up: int, end: int, since: int = 2) -> None:
    """That steps allocate nothing after step `since`, and are replayed, and what they take of the host; of the run's steps after `warm_up`, until `end`, by when
    the rank must still have been at work. `name`: before each check."""
    check, used = f"{name}memory after step {since}", [sample.used_bytes for sample in run.sampled(since, end)]
    if len(used) > 1:
        context.judge(check, max(used) == used[0], f"{max(used) - used[0]} bytes more, in {len(used)} samples", "0")
    else:
        context.judge(check, False, f"{len(used)} samples of {len(run.of('step'))} steps", "2 at least")
    ok, words = replayed_as_captured(trainings.Run(run.folder, [event for event in run.events if event.get("step", 0) <= end]))
    context.judge(f"{name}steps are replayed", ok, words, "in each step but the first, all that is captured")
    seconds = run.host_seconds_per_step(warm_up, end)
    if math.isnan(seconds):
        context.skip(f"{name}host time of a step", "/proc/PID/task/TID says nothing of it")
    else:
        context.measure(f"{name}host time of a step", seconds <= 0.5e-3, f"{seconds * 1e3:.3f} ms of the rank's thread", "at most 0.5 ms")


def steady(context: Context) -> None:
    """Of a training of 8 layers: memory, the host's time, replays."""
    # A step is a millisecond or two: few of so many are sampled, or to sample would be what takes the time. A pipe holds 160 of the rank's words at most, so
    # until `pipe` steps before the last the rank was at work when it was sampled.
    steps, warm_up, sample_every, pipe = (2, 1, 1, 0) if context.rehearses else (2000, 200, 100, 200)
    # Steps 10, 100 and 1,000 are traced by CUPTI, which takes memory for it: not of these.
    run = train(context.build, context.bundle / "steady", "bf16", context.device, context.work / "steady", used_bytes=None if context.rehearses else used_bytes,
                sample_every=sample_every, arguments=("--no-gap-trace",), threads=os.cpu_count() or 1, train={"max_steps": steps}, checkpoint={"dir": ""})
    if not context.ended_well("steady training", run):
        return
    print(run.log)
    context.judge("steady training", len(run.losses()) == steps, f"{len(run.losses())} steps", f"{steps} steps")
    if context.rehearses:
        for check in ("memory after step 2", "steps are replayed", "host time of a step"):
            context.skip(check, "no GPU")
    else:
        settled(context, "", run, warm_up, steps - pipe)


def two_ranks(context: Context) -> None:
    """Two ranks on one GPU, for correctness: their talk goes by way of the host."""
    case, options = context.bundle / "small", {"train": {"max_steps": 20}, "checkpoint": {"dir": ""}}
    one = train(context.build, case, "f32", context.device, context.work / "one", **options)
    two = train(context.build, case, "f32-fsdp2", context.device, context.work / "two", world=2, **options)
    if context.ended_well("one rank", one) and context.ended_well("two ranks", two):
        got = distance(two.losses(), one.losses()) / norm(one.losses())
        context.judge("two ranks on one device", got <= 1e-6, f"20 losses differ by {got:.1e} from one rank's", "at most 1e-6")
