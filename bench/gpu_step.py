"""Training steps of models of about 1 B parameters in bf16 on a GPU against PyTorch: parts of scripts/gpu_check.

Each side is a process of its own. The first 5 steps of a run are warm-up, the figure is the median of 20 (with the largest micro-batch 10); a step clips and
applies AdamW. PyTorch:
transformers' class with sdpa under torch.autocast in bf16, fused AdamW, clipping by kernels over all tensors; nobody recomputes activations. Besides eager and
torch.compile there are runs with cuDNN's attention and with compilation that tries many kernels. Its memory is the most
that its allocator reserves after the warm-up, with segments that grow: neither what compiling took nor holes count. On a CPU (a rehearsal) all of it is a tiny model's.
"""

import contextlib
import functools
import gzip
import json
import os
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trainings
from inputs import write_tokens
from parts import MIB, Context, last_lines, settled, used_bytes
from train_step import run_torch

DEVICE_PEAKS = Path(__file__).parent.parent / "machine/device_peaks.h"
WARM_UP, COUNTED, COUNTED_OF_LARGEST = 5, 20, 10
# Dense bf16, by words of the GPU's name; docs/metrics.md.
PEAK_FLOPS = {name: float(flops) for name, flops in re.findall(r"k(\w+)HalfFlops = (\S+);", DEVICE_PEAKS.read_text())}
SPEED_BARS = {"eager": 1.4, "compile": 1.05}  # That of compile also over PyTorch's other ways.
MEMORY_BAR, MFU_BAR, PRODUCTS_BAR, IDLE_BAR, PLAN_BAR = 0.8, 0.52, 0.80, 0.01, 0.02
CHOICE_BAR = 1.01  # Of a step with the attention that was chosen: times of two runs differ as much.
# PyTorch's sides, as options of torch_train.py. The first two are what people do; by the others it may be faster, if they have the minutes to compile.
TORCH_WAYS = {"eager": ("--mode", "eager"), "compile": ("--mode", "compile"), "compile-cudnn": ("--mode", "compile", "--attention", "cudnn"),
              "max-autotune-no-cudagraphs": ("--mode", "compile", "--tune", "max-autotune-no-cudagraphs"),
              "max-autotune": ("--mode", "compile", "--tune", "max-autotune")}


@dataclass(frozen=True)
class Share:
    """Of a step: the ops whose names match, what they move or multiply, and the milliseconds that they should take."""

    name: str
    ops: str
    milliseconds: float
    gigabytes: float = 0.0
    teraflops: float = 0.0


# Estimates, of which none was measured: of OLMo-1B's step of 8 x 2,048 tokens in bf16 on an H200, counted from the bytes and FLOPs of the program (a test
# counts them again) at 4.3 TB/s and 720 TFLOP/s, and from what kernels of each kind lose beside that: products 7 %, elementwise ones a sixth to a third.
# Attention is cuDNN's, 20 ms, and its results are copied; flash takes 25, ours on tensor cores 150.
OLMO_1B_BATCH = 8
OLMO_1B_SHARES = (Share("products", r"einsum.*", 172.0, teraflops=115.7), Share("attention and the copies of its results", r"attention.*", 22.5, teraflops=6.6),
                  Share("SwiGLU and its gradient", r"swiglu.*", 10.5, gigabytes=34.4), Share("AdamW, and the copies in bf16", r"adamw", 9.6, gigabytes=35.1),
                  Share("norms, their gradients, residual adds", r"(add_)?layer_norm.*", 9.5, gigabytes=30.7), Share("rotary", r"rotary", 2.7, gigabytes=8.7),
                  Share("cross-entropy and its gradient", r"cross_entropy.*", 1.6, gigabytes=5.0), Share("sum of squares", r"sum_squares", 1.4, gigabytes=4.7))
REST = Share("embedding, tied add and cast, gaps", "", 2.5, gigabytes=3.0)
SHARE_BAR = 0.25  # A share further from its estimate is the next to be looked at.


@dataclass(frozen=True)
class Seconds:
    """Of a run: for how many it is begun where not all ways need to run, an estimate, and after how many it is ended."""

    expected: int
    limit: int


SECONDS = {"tacc": Seconds(30, 90), "eager": Seconds(40, 75), "compile": Seconds(90, 160), "compile-cudnn": Seconds(70, 160),
           "max-autotune-no-cudagraphs": Seconds(120, 300), "max-autotune": Seconds(70, 300)}  # The last one finds what the one before it has tuned.
RESERVE_BYTES = 1 << 30  # Of the GPU's memory, beside a plan and beside what PyTorch reserves.
FUSED = ("flash", "cudnn")  # LibTorch's attention, which ours on tensor cores is several times slower than.
STATE_BYTES = 16  # Of a parameter in PyTorch: weight, gradient and two moments in f32.


class Bench:
    """A part's model; of `sides` each that has run. Ours are "tacc" and, with the attention of one backend, "tacc-flash" and "tacc-cudnn"."""

    def __init__(self, context: Context, part: str, counted: int = COUNTED):
        self.context = context
        self.steps = WARM_UP + counted
        self.model = model_of(part)
        self.name = "rehearsal" if context.rehearses else self.model
        self.case = context.bundle / "bench" / self.name
        self.facts = json.loads((self.case / "bench.json").read_text())
        self.sides: dict[str, dict] = {}

    def run(self, side: str, batches: list[int]) -> bool:
        """Takes the first of `batches` that fits; of tacc there is one. Whether it ran."""
        try:
            is_ours, _, attention = side.partition("-")
            result = self.tacc(batches[0], attention) if is_ours == "tacc" else self.torch(side, batches)
        except (RuntimeError, ValueError, LookupError, OSError, subprocess.TimeoutExpired) as error:
            self.context.judge(f"{self.name}: {side}, micro-batch {batches}", False, last_lines(str(error)), "a run to its end", str(error))
            return False
        seconds = statistics.median(result["seconds"][WARM_UP:self.steps])
        tokens_per_second = result["batch"] * self.facts["seq_len"] / seconds
        self.sides[side] = result | {"step_seconds": seconds, "tokens_per_second": tokens_per_second}
        self.context.note(self.name, self.sides)
        print(f"{side}, micro-batch {result['batch']}: {tokens_per_second:.0f} tokens/s, {result['peak_bytes'] / MIB:.0f} MiB", flush=True)
        return True

    def run_before(self, batches: list[int]) -> bool:
        """Takes our side from another part of this call, which has run it with the same micro-batch. Whether there is one."""
        for other in (f"{self.model}-ours", self.model, f"{self.model}-attention"):
            found = earlier_figures(self.context, other).get(self.name, {}).get("tacc")
            if found is not None and found["batch"] == batches[0]:
                self.sides["tacc"] = found
                return True
        return False

    def tokens(self, batch: int) -> Path:
        """A folder for both sides: the model's config and the tokens."""
        folder = self.context.work / f"tokens-{batch}"
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / "model").symlink_to(self.case / "model")
            write_tokens(folder, self.facts["vocab_size"], self.steps + 1, batch, self.facts["seq_len"])
        return folder

    def summary(self, batch: int) -> dict:
        return trainings.summary(self.case, f"bf16-{batch}", self.context.device)

    def planned_bytes(self, batch: int) -> int:
        memory = self.summary(batch)["memory"]
        return memory["arena_bytes"] + memory["workspace_bytes"]

    def tacc(self, batch: int, attention: str = "") -> dict:
        """One step more than is counted leaves a trace. `attention`: the backend that is to compute it, instead of the fastest."""
        title = f"{self.name}-{batch}" + (f"-{attention}" if attention else "")
        folder = self.context.work / title
        trace = folder / "trace.json"
        run = trainings.train(self.context.build, self.case, f"bf16-{batch}", self.context.device, folder, threads=os.cpu_count() or 1,
                              used_bytes=None if self.context.rehearses else used_bytes, limit=SECONDS["tacc"].limit, train={"max_steps": self.steps + 1},
                              arguments=("--attention", attention) if attention else (),
                              checkpoint={"dir": ""}, trace={"path": str(trace), "step": self.steps + 1},
                              data={"path": str(self.tokens(batch) / "data"), "global_batch_size": batch})
        print(run.log, flush=True)
        if run.error:
            raise RuntimeError(f"{run.log}\n{run.error}")
        if not self.context.rehearses:
            # When the last step that is counted is told, the traced one may have begun. CUPTI traces step 10, and may take memory for it.
            settled(self.context, f"{self.name}, micro-batch {batch}{f', {attention}' if attention else ''}: ", run, WARM_UP, self.steps - 1, since=11)
        steps = run.of("step")
        result = {"seconds": [step["seconds"] for step in steps], "batch": batch, "loss": steps[self.steps - 1]["loss"],
                  "load_seconds": run.of("ready")[0]["load_seconds"], "peak_bytes": max(step.get("device_memory_used_bytes", 0) for step in steps),
                  "idle": [step["device_idle_share"] for step in steps[WARM_UP:self.steps] if "device_idle_share" in step]}
        for choice in ("attention", "products"):
            if chosen := run.of("ready")[0].get(choice):
                result[choice] = chosen
        result["warnings"] = [warning["message"] for warning in run.of("warning") if warning["code"] == "products"]
        if trace.exists():
            text = trace.read_bytes()
            (self.context.results / f"{title}.trace.json.gz").write_bytes(gzip.compress(text))
            result["traced_seconds_by_op"] = seconds_by_op(json.loads(text))
        return result

    def torch(self, side: str, batches: list[int]) -> dict:
        options = TORCH_WAYS[side]
        if self.context.rehearses:  # A CPU has no cuDNN; and to tune takes minutes there too.
            options = (*("math" if option == "cudnn" else option for option in options), "--backend", "aot_eager")
        way = (*options, "--device", trainings.kind_of(self.context.device), "--batches", ",".join(map(str, batches)))
        limit = min(SECONDS[side].limit, max(self.context.left(), 1))
        return run_torch(self.tokens(max(batches)), way, "bf16", threads=os.cpu_count() or 1, world=1, steps=self.steps, warm_up=WARM_UP, limit=limit)

    def compare_speed(self, mode: str, title: str) -> None:
        check = f"{self.name}: tokens/s over {mode}, {title}"
        if "tacc" not in self.sides or mode not in self.sides:
            self.context.skip(check, "a side did not run")
            return
        ours, theirs = self.sides["tacc"], self.sides[mode]
        ratio = ours["tokens_per_second"] / theirs["tokens_per_second"]
        self.context.measure(check, ratio >= SPEED_BARS[mode],
                             f"{ratio:.3f}x: {ours['tokens_per_second']:.0f} against {theirs['tokens_per_second']:.0f} tokens/s of {theirs['model']}{self.facts['beside']}, "
                             f"micro-batches {ours['batch']} and {theirs['batch']}", f"at least {SPEED_BARS[mode]}x")

    def compare_fastest(self) -> None:
        """With those of PyTorch's ways that this part has run."""
        check = f"{self.name}: tokens/s over the fastest of PyTorch's other ways"
        theirs = {side: found for side, found in self.sides.items() if side in TORCH_WAYS}
        if not theirs:
            self.context.skip(check, "none of them ran")
            return
        fastest = max(theirs, key=lambda side: theirs[side]["tokens_per_second"])
        ratio = self.sides["tacc"]["tokens_per_second"] / theirs[fastest]["tokens_per_second"]
        each = ", ".join(f"{side} {found['tokens_per_second']:.0f}" for side, found in theirs.items())
        self.context.measure(check, ratio >= SPEED_BARS["compile"], f"{ratio:.3f}x {fastest}: {self.sides['tacc']['tokens_per_second']:.0f} tokens/s against {each}",
                             f"at least {SPEED_BARS['compile']}x")

    def compare_memory(self, mode: str) -> None:
        check = f"{self.name}: memory over {mode}'s peak reserved"
        if self.context.rehearses or "tacc" not in self.sides or mode not in self.sides:
            self.context.skip(check, "no GPU" if self.context.rehearses else "a side did not run")
            return
        ours, theirs = self.sides["tacc"]["peak_bytes"], self.sides[mode]["peak_bytes"]
        self.context.measure(check, 0 < ours <= MEMORY_BAR * theirs, f"{ours / theirs:.2f}x: {ours / MIB:.0f} against {theirs / MIB:.0f} MiB",
                             f"at most {MEMORY_BAR}x")

    def judge_mfu(self) -> None:
        """FLOPs are counted from the graph: attention as causal, nothing twice."""
        check, ours = f"{self.name}: MFU, micro-batch {self.sides['tacc']['batch']}", self.sides["tacc"]
        peak = 1e12 if self.context.rehearses else peak_flops()
        if peak is None:
            self.context.skip(check, "the GPU's peak is not in the table")
            return
        mfu = self.summary(ours["batch"])["flops_per_step"] / ours["step_seconds"] / peak
        self.context.measure(check, mfu >= MFU_BAR, f"{mfu:.1%} of {peak / 1e12:.0f} TFLOP/s, {ours['step_seconds']:.4f} s a step", f"at least {MFU_BAR:.0%}")

    def judge_attention(self) -> None:
        """That no fault made a training fall back on slower attention: nothing else would show it but the time."""
        check, attention = f"{self.name}: attention backend", self.sides["tacc"].get("attention", [])
        if self.context.rehearses:
            self.context.skip(check, "no GPU")
            return
        ok, words = computed_by(attention, FUSED)
        self.context.judge(check, ok, words, " or ".join(FUSED), json.dumps(attention, indent=1))

    def judge_algorithms(self) -> None:
        """That cuBLASLt multiplies, never slower than LibTorch, and that no algorithm of its own has failed."""
        check, side = f"{self.name}: algorithms of products", self.sides["tacc"]
        if self.context.rehearses:
            self.context.skip(check, "no GPU")
            return
        products, warnings = side.get("products", []), side.get("warnings", [])
        ok, words = multiplied_by(products)
        self.context.judge(check, ok and not warnings, "; ".join([words, *warnings]), "all measured, some by cuBLASLt, none slower than LibTorch's, none failed",
                           json.dumps(products, indent=1))

    def note_shares(self) -> None:
        """Where the time of the traced step goes, beside what was expected of OLMo-1B's: a figure, no check, for what is expected is an estimate."""
        ours = self.sides["tacc"]
        if "traced_seconds_by_op" not in ours:
            self.context.skip(f"{self.name}: seconds by kind of op", "no step was traced")
            return
        if self.context.rehearses or (self.model == "olmo-1b" and ours["batch"] == OLMO_1B_BATCH):
            found = shares(ours["traced_seconds_by_op"], ours["step_seconds"])
            self.context.note("shares", found)
            for share in found:
                print(f"{share['share']}: {share['milliseconds']:.2f} ms, {share['over_expected']:.2f} of the {share['expected']:g} expected"
                      f"{', MORE THAN 25 % OFF' if share['is_off'] else ''}", flush=True)

    def judge_forced(self, backend: str) -> None:
        """That the steps with its attention were just that."""
        check, side = f"{self.name}: attention by {backend}", self.sides.get(f"tacc-{backend}")
        if self.context.rehearses or side is None:
            self.context.skip(check, "no GPU" if self.context.rehearses else "it did not run")
            return
        ok, words = computed_by(side.get("attention", []), (backend,))
        self.context.judge(check, ok, f"{side['step_seconds']:.4f} s a step: {words}", f"all by {backend}")

    def judge_idle(self) -> None:
        check, idle = f"{self.name}: GPU idle", self.sides["tacc"]["idle"]
        if idle:
            self.context.measure(check, statistics.median(idle) <= IDLE_BAR, f"{statistics.median(idle):.2%}", f"at most {IDLE_BAR:.0%}")
        else:
            self.context.skip(check, "no GPU" if self.context.rehearses else "tacc-rank did not report it")

    def judge_plan(self) -> None:
        check, used = f"{self.name}: memory against the plan", self.sides["tacc"]["peak_bytes"]
        if used == 0:
            self.context.skip(check, "no GPU" if self.context.rehearses else "tacc-rank did not report it")
            return
        planned = self.planned_bytes(self.sides["tacc"]["batch"])
        self.context.measure(check, abs(used / planned - 1) <= PLAN_BAR, f"{used / planned - 1:+.1%}: {used / MIB:.0f} MiB by cudaMemGetInfo, planned {planned / MIB:.0f} MiB",
                             f"within {PLAN_BAR:.0%}")

    def judge_products(self) -> None:
        ours = self.sides["tacc"]
        config = json.loads((self.case / "model/config.json").read_text())
        best = isolated_seconds(config, ours["batch"], self.facts["seq_len"], trainings.kind_of(self.context.device))
        self.context.note("isolated_seconds", best)
        total, seconds = sum(best.values()), ours["step_seconds"]
        self.context.measure(f"{self.name}: best isolated products and attention over our step", total / seconds >= PRODUCTS_BAR,
                             f"{total / seconds:.2f}: {total:.4f} s of {seconds:.4f} s", f"at least {PRODUCTS_BAR:.2f}")


def model_of(part: str) -> str:
    """The bench whose model a part trains: olmo-1b of olmo-1b-largest."""
    return "-".join(part.split("-")[:2])


def ours(context: Context, part: str) -> None:
    """Our side alone: its step, who computes attention and how fast each backend is, the seconds of each op."""
    bench = Bench(context, part)
    if bench.run("tacc", bench.facts["equal"][:1]):
        bench.note_shares()
        bench.judge_attention()
        bench.judge_algorithms()
        bench.judge_plan()
        bench.judge_idle()
        bench.judge_mfu()


def attention(context: Context, part: str) -> None:
    """Our steps with attention by each of LibTorch's backends, beside those with the one that was chosen, which must be the faster."""
    bench = Bench(context, part)
    batches = bench.facts["equal"][:1]
    has_run = {"tacc": bench.run_before(batches) or bench.run("tacc", batches)}
    has_run |= {f"tacc-{backend}": bench.run(f"tacc-{backend}", batches) for backend in FUSED}
    for backend in FUSED:
        bench.judge_forced(backend)
    check = f"{bench.name}: the attention that was chosen"
    forced = {side: bench.sides[side]["step_seconds"] for side, ran in has_run.items() if ran and side != "tacc"}
    if not has_run["tacc"] or not forced:
        context.skip(check, "a side did not run")
        return
    chosen, fastest = bench.sides["tacc"]["step_seconds"], min(forced, key=lambda side: forced[side])
    context.measure(check, chosen <= CHOICE_BAR * forced[fastest], f"{chosen:.4f} s a step; {fastest} takes {forced[fastest]:.4f} s",
                    f"at most {CHOICE_BAR}x the faster backend's step")


def baselines(context: Context, part: str) -> None:
    """PyTorch's other ways, as many as there is time for, and ours against the fastest."""
    bench = Bench(context, part)
    batches = bench.facts["equal"][:1]
    if not bench.run_before(batches) and not bench.run("tacc", batches):
        return
    for side in list(TORCH_WAYS)[2:]:
        if context.left() < SECONDS[side].expected:
            context.skip(f"{bench.name}: {side}", f"it takes about {SECONDS[side].expected} s, {context.left():.0f} are left")
        else:
            bench.run(side, batches)
    bench.compare_fastest()


def equal(context: Context, part: str) -> None:
    """At equal micro-batches, the largest of a few that fits eager PyTorch: speed, memory, MFU, idle GPU, and how near the step comes to its products."""
    bench = Bench(context, part)
    sizes, title = bench.facts["equal"], "equal micro-batches"
    batch = bench.sides["eager"]["batch"] if bench.run("eager", sizes) else sizes[-1]
    if bench.run("tacc", [batch]):
        bench.judge_attention()
        bench.judge_algorithms()
        bench.judge_plan()
        bench.judge_idle()
        bench.judge_mfu()
    bench.compare_speed("eager", title)
    bench.compare_memory("eager")
    if "tacc" in bench.sides:
        bench.judge_products()
    bench.run("compile", [batch])
    bench.compare_speed("compile", title)
    bench.compare_memory("compile")


def largest(context: Context, part: str) -> None:
    """With the largest micro-batch that fits each side: of those packed for ours, of those that the comparison at equal size lets expect for PyTorch's."""
    bench = Bench(context, part, COUNTED_OF_LARGEST)
    title, equal_part = "largest micro-batches", model_of(part)
    measured = earlier_figures(context, equal_part).get(bench.name, {})
    room = (1 << 40 if context.rehearses else free_bytes()) - RESERVE_BYTES
    ours = [size for size in bench.facts["sizes"] if bench.planned_bytes(size) <= room]
    if not ours:
        context.skip(f"{bench.name}: {title}", "the GPU's memory takes none of those packed")
        return
    if bench.run("tacc", [max(ours)]):
        bench.judge_attention()
        bench.judge_algorithms()
        bench.judge_mfu()
    fixed_bytes = bench.summary(max(ours))["num_parameters"] * STATE_BYTES
    for mode in ("eager",) if context.rehearses else SPEED_BARS:  # The other one's process takes as long again.
        if mode not in measured:
            context.skip(f"{bench.name}: tokens/s over {mode}, {title}",
                         f"{equal_part} measures what a sample takes of memory: run both, with --parts {equal_part},{part}")
            continue
        bench.run(mode, sizes_to_try(bench.facts["torch_sizes"], measured[mode]["peak_bytes"], measured[mode]["batch"], fixed_bytes, room))
        bench.compare_speed(mode, title)


def sizes_to_try(sizes: list[int], peak_bytes: int, batch: int, fixed_bytes: int, room: int) -> list[int]:
    """The largest that should fit beside `fixed_bytes`, where `batch` samples reached `peak_bytes`, and those below it; largest first, the smallest at least."""
    of_sample = max(peak_bytes - fixed_bytes, 1) / batch
    fitting = [size for size in sizes if fixed_bytes + size * of_sample <= room]
    return sorted(fitting, reverse=True) or [min(sizes)]


def earlier_figures(context: Context, part: str) -> dict:
    """Of another part of this run."""
    with contextlib.suppress(OSError, ValueError):
        report = json.loads((context.results / "gpu_check.json").read_text())
        return next((found["figures"] for found in report["parts"] if found["part"] == part), {})
    return {}


def computed_by(attention: list[dict], wanted: tuple[str, ...]) -> tuple[bool, str]:
    """Whether all attention of a rank's event `ready` is computed by these backends; in words, with what each took or why it is not used."""
    shapes = []
    for choice in attention:
        timings = []
        for timing in choice["timings"]:
            seconds = timing.get("forward_seconds", 0) + timing.get("backward_seconds", 0)
            why_not = f" {'failed' if timing.get('failed') else 'refused'}: {timing['refused']}" if timing.get("refused") else ""
            timings.append(timing["backend"] + (why_not or f" {1e3 * seconds:.3f} ms"))
        shapes.append(f"{choice['backend']} ({'; '.join(timings)}) computes {choice['shape']}")
    return bool(attention) and all(choice["backend"] in wanted for choice in attention), ", ".join(shapes) or "tacc-rank named no backend"


def multiplied_by(products: list[dict]) -> tuple[bool, str]:
    """Whether all products of a rank's event `ready` were measured, none is slower than LibTorch's and some are computed by cuBLASLt's algorithms; in words."""
    measured = [product for product in products if product.get("seconds", 0) > 0 and product.get("libtorch_seconds", 0) > 0]
    others = [product for product in measured if product["algorithm"] != "libtorch"]
    slower = [product["shape"] for product in measured if product["seconds"] > product["libtorch_seconds"]]
    if not measured:
        return False, f"{len(products)} shapes, none was measured"
    ratio = sum(product["seconds"] for product in measured) / sum(product["libtorch_seconds"] for product in measured)
    words = f"{len(others)} of {len(products)} shapes by cuBLASLt; one call of each takes {ratio:.3f} of LibTorch's time"
    words += "".join(f", {what}: {', '.join(shapes)}" for what, shapes in (
        ("slower", slower), ("not measured", [product["shape"] for product in products if product not in measured])) if shapes)
    return len(measured) == len(products) and not slower and bool(others), words


def seconds_by_op(trace: dict) -> dict[str, float]:
    """Of a trace's nodes, the largest first."""
    seconds: dict[str, float] = {}
    for event in trace["traceEvents"]:
        if event.get("cat") == "node":
            seconds[event["name"]] = seconds.get(event["name"], 0.0) + event["dur"] / 1e6
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def shares(by_op: dict[str, float], step_seconds: float) -> list[dict]:
    """Of a step of OLMo-1B, beside what was expected. What is left of `step_seconds`, which was not traced, is less than nothing where tracing costs more."""
    measured = [(share, sum(seconds for op, seconds in by_op.items() if re.fullmatch(share.ops, op))) for share in OLMO_1B_SHARES]
    measured += [(REST, step_seconds - sum(seconds for _, seconds in measured)),
                 (Share("the step", "", sum(share.milliseconds for share in (*OLMO_1B_SHARES, REST))), step_seconds)]
    return [{"share": share.name, "milliseconds": 1e3 * seconds, "expected": share.milliseconds, "over_expected": 1e3 * seconds / share.milliseconds,
             "is_off": abs(1e3 * seconds / share.milliseconds - 1) > SHARE_BAR} for share, seconds in measured]


def free_bytes() -> int:
    import torch

    return torch.cuda.mem_get_info(0)[0]


def peak_flops() -> float | None:
    import torch

    name = torch.cuda.get_device_name(0)
    return next((flops for word, flops in PEAK_FLOPS.items() if word in name), None)


def best_seconds(work: Callable[[], None], on_gpu: bool, repeats: int = 10) -> float:
    """Of one call."""
    import torch

    work()
    best = float("inf")
    for _ in range(repeats):
        if on_gpu:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            end.synchronize()
            best = min(best, begin.elapsed_time(end) / 1000)
        else:
            start = time.perf_counter()
            work()
            best = min(best, time.perf_counter() - start)
    return best


def isolated_seconds(config: dict, batch: int, seq_len: int, device: str) -> dict[str, float]:
    """The matrix products and the attention of a step, forward and backward, each by itself in bf16 as fast as PyTorch has it; all of a shape together."""
    import torch

    hidden, inner, heads, layers = (config[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers"))
    kv_heads, head_dim = config["num_key_value_heads"], config.get("head_dim", hidden // heads)
    # (inputs, outputs): how many of the model's linear layers.
    linear = [(hidden, heads * head_dim), *2 * [(hidden, kv_heads * head_dim)], (heads * head_dim, hidden), *2 * [(hidden, inner)], (inner, hidden)]
    counts = {shape: layers * linear.count(shape) for shape in linear}
    head = (hidden, config["vocab_size"])
    counts[head] = counts.get(head, 0) + 1
    options, on_gpu, tokens = {"dtype": torch.bfloat16, "device": device}, device == "cuda", batch * seq_len
    seconds: dict[str, float] = {}
    for (inputs, outputs), count in counts.items():
        x, w, dy = torch.randn(tokens, inputs, **options), torch.randn(outputs, inputs, **options), torch.randn(tokens, outputs, **options)
        for what, left, right in (("forward", x, w.t()), ("dx", dy, w), ("dw", dy.t(), x)):
            seconds[f"{count} linear {inputs} to {outputs}, {what}"] = count * best_seconds(functools.partial(torch.matmul, left, right), on_gpu)
        del x, w, dy, left, right
    seconds[f"{layers} attention"] = layers * attention_seconds(batch, seq_len, heads, kv_heads, head_dim, options, on_gpu)
    if on_gpu:
        torch.cuda.empty_cache()  # Other processes follow.
    return seconds


def attention_seconds(batch: int, seq_len: int, heads: int, kv_heads: int, head_dim: int, options: dict, on_gpu: bool) -> float:
    """Causal, forward and backward, by the fastest of PyTorch's implementations."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (torch.randn(batch, n, seq_len, head_dim, **options, requires_grad=True) for n in (heads, kv_heads, kv_heads))
    dout = torch.randn_like(q)

    def attend() -> None:
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)
        torch.autograd.grad(out, (q, k, v), dout)

    best = []
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION) if on_gpu else (None,):
        with contextlib.suppress(RuntimeError):  # Not for this shape, or not on this GPU.
            with sdpa_kernel(backend) if backend is not None else contextlib.nullcontext():
                best.append(best_seconds(attend, on_gpu))
    if not best:
        raise RuntimeError("PyTorch has no fused attention for this model on this GPU")
    return min(best)
