"""Training steps of models of about 1 B parameters in bf16 on a GPU against PyTorch: parts of scripts/gpu_check.

Each side is a process of its own; sides take turns (tacc, eager, compile, tacc, eager). The first 5 steps of a run are warm-up, the figure is the median of 20.
PyTorch: transformers' class with sdpa under torch.autocast in bf16, fused AdamW, clipping. On a CPU (a rehearsal) all of it is a tiny model's.
"""

import contextlib
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import trainings
from inputs import write_tokens
from parts import MIB, Context, used_bytes
from train_step import COUNTED, WARM_UP, run_torch

STEPS = WARM_UP + COUNTED
# Dense bf16, by words of the GPU's name; docs/metrics.md.
PEAK_FLOPS = {"A100": 312e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12}
SPEED_BARS = {"eager": 1.3, "compile": 1.0}


class Bench:
    def __init__(self, context: Context, name: str):
        self.context = context
        self.name = "rehearsal" if context.rehearses else name
        self.case = context.bundle / "bench" / self.name
        self.facts = json.loads((self.case / "bench.json").read_text())
        self.sides: dict[str, list[dict]] = {}

    def run(self, side: str, batches: list[int]) -> None:
        """Takes the first of `batches` that fits; of tacc there is one."""
        try:
            result = self.tacc(batches[0]) if side == "tacc" else self.torch(side, batches)
            self.sides.setdefault(side, []).append(result)
            print(f"{side}, micro-batch {result['batch']}: {self.tokens_per_second(side):.0f} tokens/s, {result['peak_bytes'] / MIB:.0f} MiB", flush=True)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            self.context.judge(f"{self.name}: {side}, micro-batch {batches}", False, " ".join(str(error).split())[:400], "a run to its end")

    def tokens(self, batch: int) -> Path:
        """A folder for both sides: the model's config and the tokens."""
        folder = self.context.work / f"tokens-{batch}"
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / "model").symlink_to(self.case / "model")
            write_tokens(folder, self.facts["vocab_size"], STEPS, batch, self.facts["seq_len"])
        return folder

    def tacc(self, batch: int) -> dict:
        measured = (lambda: 0) if self.context.rehearses else used_bytes
        before = measured()
        run = trainings.train(self.context.build, self.case, f"bf16-{batch}", self.context.device, self.context.work / f"tacc-{batch}-{len(self.sides)}",
                              threads=os.cpu_count() or 1, used_bytes=measured, train={"max_steps": STEPS}, checkpoint={"dir": ""},
                              data={"path": str(self.tokens(batch) / "data"), "global_batch_size": batch})
        if run.error:
            raise RuntimeError(run.error)
        steps = run.of("step")
        return {"seconds": [step["seconds"] for step in steps], "batch": batch, "peak_bytes": max(run.used_bytes) - before,
                "idle": [step["device_idle_share"] for step in steps[WARM_UP:] if "device_idle_share" in step]}

    def torch(self, mode: str, batches: list[int]) -> dict:
        more = ("--device", trainings.kind_of(self.context.device), "--batches", ",".join(map(str, batches)))
        return run_torch(self.tokens(max(batches)), mode, "bf16", threads=os.cpu_count() or 1, world=1, more=more)

    def seconds(self, side: str) -> float:
        """Of a step."""
        return statistics.median(s for run in self.sides[side] for s in run["seconds"][WARM_UP:])

    def tokens_per_second(self, side: str) -> float:
        return self.sides[side][0]["batch"] * self.facts["seq_len"] / self.seconds(side)

    def compare_speed(self, title: str) -> None:
        for mode, bar in SPEED_BARS.items():
            check = f"{self.name}: tokens/s over {mode}, {title}"
            if "tacc" not in self.sides or mode not in self.sides:
                self.context.skip(check, "a side did not run")
                continue
            ours, theirs = self.tokens_per_second("tacc"), self.tokens_per_second(mode)
            batches = f"micro-batches {self.sides['tacc'][0]['batch']} and {self.sides[mode][0]['batch']}"
            self.context.measure(check, ours / theirs >= bar, f"{ours / theirs:.2f}x: {ours:.0f} against {theirs:.0f} tokens/s, {batches}", f"at least {bar}x")


def equal(context: Context, name: str) -> None:
    """At equal micro-batches: speed, memory, MFU, idle GPU, and how near the step comes to its products."""
    bench = Bench(context, name)
    batch = bench.facts["equal"]
    for side in ("tacc", "eager", "compile") if context.rehearses else ("tacc", "eager", "compile", "tacc", "eager"):
        bench.run(side, [batch])
    bench.compare_speed("equal micro-batches")
    if "tacc" not in bench.sides:
        return
    ours = max(run["peak_bytes"] for run in bench.sides["tacc"])
    for mode in SPEED_BARS:
        check = f"{bench.name}: memory over {mode}'s peak reserved"
        if mode not in bench.sides or context.rehearses:
            context.skip(check, "no GPU" if context.rehearses else "PyTorch did not run")
            continue
        theirs = max(run["peak_bytes"] for run in bench.sides[mode])
        context.measure(check, ours / theirs <= 0.8, f"{ours / theirs:.2f}x: {ours / MIB:.0f} MiB with CUDA's own, {theirs / MIB:.0f} MiB without", "at most 0.8x")
    idle = [share for run in bench.sides["tacc"] for share in run["idle"]]
    if idle:
        context.measure(f"{bench.name}: GPU idle", statistics.median(idle) <= 0.01, f"{statistics.median(idle):.2%}", "at most 1 %")
    else:
        context.skip(f"{bench.name}: GPU idle", "tacc-rank does not report it")
    seconds = bench.seconds("tacc")
    summary = trainings.summary(bench.case, f"bf16-{batch}", context.device)
    peak = 1e12 if context.rehearses else peak_flops()
    if peak is None:
        context.skip(f"{bench.name}: MFU", "the GPU's peak is not in the table")
    else:
        mfu = summary["flops_per_step"] / seconds / peak
        context.measure(f"{bench.name}: MFU", mfu >= 0.45, f"{mfu:.1%} of {peak / 1e12:.0f} TFLOP/s, {seconds:.4f} s a step", "at least 45 %")
    best = isolated_seconds(json.loads((bench.case / "model/config.json").read_text()), batch, bench.facts["seq_len"], trainings.kind_of(context.device))
    context.measure(f"{bench.name}: best isolated products and attention over our step", best / seconds >= 0.8, f"{best / seconds:.2f}: {best:.4f} s of {seconds:.4f} s",
                    "at least 0.80")


def largest(context: Context, name: str) -> None:
    """With the largest micro-batch of those packed that fits each side."""
    bench = Bench(context, name)
    sizes = sorted(bench.facts["sizes"], reverse=True)
    ours = sizes
    if not context.rehearses:
        import torch

        room = torch.cuda.mem_get_info(0)[0] - (1 << 30)  # The reserve that a worker keeps beside a plan.
        needed = {size: trainings.summary(bench.case, f"bf16-{size}", context.device)["memory"] for size in sizes}
        ours = [size for size in sizes if needed[size]["arena_bytes"] + needed[size]["workspace_bytes"] <= room]
    if not ours:
        context.skip(f"{bench.name}: the largest micro-batch", "the GPU's memory takes none of those packed")
        return
    bench.run("tacc", ours[:1])
    for mode in ("eager",) if context.rehearses else SPEED_BARS:  # To compile takes half a minute.
        bench.run(mode, sizes)
    bench.compare_speed("largest micro-batches")


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


def isolated_seconds(config: dict, batch: int, seq_len: int, device: str) -> float:
    """The matrix products and the attention of a step, forward and backward, each by itself in bf16 as fast as PyTorch has it."""
    import torch

    hidden, inner, heads, layers = (config[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers"))
    kv_heads, head_dim = config["num_key_value_heads"], config.get("head_dim", hidden // heads)
    # (inputs, outputs): how many of the model's linear layers.
    linear = [(hidden, heads * head_dim), *2 * [(hidden, kv_heads * head_dim)], (heads * head_dim, hidden), *2 * [(hidden, inner)], (inner, hidden)]
    counts = {shape: layers * linear.count(shape) for shape in linear}
    head = (hidden, config["vocab_size"])
    counts[head] = counts.get(head, 0) + 1
    options, on_gpu, tokens, total = {"dtype": torch.bfloat16, "device": device}, device == "cuda", batch * seq_len, 0.0
    for (inputs, outputs), count in counts.items():
        x, w, dy = torch.randn(tokens, inputs, **options), torch.randn(outputs, inputs, **options), torch.randn(tokens, outputs, **options)
        for product in (lambda: x @ w.t(), lambda: dy @ w, lambda: dy.t() @ x):
            total += count * best_seconds(product, on_gpu)
        del x, w, dy
    return total + layers * attention_seconds(batch, seq_len, heads, kv_heads, head_dim, options, on_gpu)


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
