"""Compares training of LoRA adapters (r = 8, all linear modules) with peft on this machine's CPU; prints a table of ratios.

The LLaMA of bench/train_step.py, one rank of two threads, clipping and AdamW included. PyTorch's side is the fastest of its ways: eager and torch.compile, in bf16 under
autocast with the base model's weights in f32 and in bf16; all of them run in the first round, and the fastest goes on. Sides take turns, each in a process of its own.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from torch_train import TINY
from train_step import ROOT, SHAPES, VOCAB, WARM_UP, Training, figure, name_of, run_torch, write_inputs

RANK = 8
SHAPE = SHAPES["llama"]
BAR = 1.3


def write_weights(folder: Path) -> None:
    """Random ones: adapters need a base in files."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    for path in (folder, folder / "tiny"):
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path / "model")).save_pretrained(path / "model")


def ways(precision: str) -> list[tuple[str, ...]]:
    bases = ["f32"] if precision == "f32" else ["f32", "bf16"]
    return [("--mode", mode, "--lora", str(RANK), "--base", base) for mode in ("eager", "compile") for base in bases]


def run_tacc(folder: Path, build: Path, precision: str, steps: int) -> dict:
    """As train_step.run_tacc."""
    finetune = {"lora": {"r": RANK, "target_modules": ["all-linear"]}}
    result = {"seconds": [], "loaded_bytes": 0, "peak_bytes": 0}
    tiny = Training(build, folder / "tiny", TINY["vocab_size"], 32, SHAPE.batch, 2, precision, threads=2, weights="pretrained", finetune=finetune)
    whole = Training(build, folder, VOCAB, SHAPE.seq_len, SHAPE.batch, steps, precision, threads=2, weights="pretrained", finetune=finetune)
    with tiny.start() as ranks:
        for event in ranks.events():
            if event["event"] == "step":
                result["loaded_bytes"] = ranks.peak_bytes()
    with whole.start() as ranks:
        for event in ranks.events():
            if event["event"] == "step":
                result["seconds"].append(event["seconds"])
                result["peak_bytes"] = ranks.peak_bytes()
                if len(result["seconds"]) == WARM_UP:
                    ranks.reset_peaks()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6, help="of a run that are counted, after 3 of warm-up")
    parser.add_argument("--precisions", default="f32,bf16")
    args = parser.parse_args()
    rows, ratios = [], []
    with tempfile.TemporaryDirectory() as name:
        folder, steps = Path(name), WARM_UP + args.steps
        write_inputs(folder, SHAPE, steps)
        write_weights(folder)
        for precision in args.precisions.split(","):
            left = ways(precision)
            ours, theirs = [], {way: [] for way in left}
            for _ in range(args.rounds):
                ours.append(run_tacc(folder, args.build, precision, steps))
                for way in left:
                    theirs[way].append(run_torch(folder, way, precision, 2, 1, steps, WARM_UP))
                    print(f"{precision}, {name_of(way)}: {figure(theirs[way])[0]:.3f} s a step, tacc {figure(ours)[0]:.3f}", file=sys.stderr)
                left = [min(left, key=lambda way: figure(theirs[way])[0])]
            (our_seconds, our_bytes), (seconds, num_bytes) = figure(ours), figure(theirs[left[0]])
            tokens = SHAPE.batch * SHAPE.seq_len
            ratios.append(seconds / our_seconds)
            rows.append(f"| {precision} | {name_of(left[0])} | {tokens / our_seconds:.0f} | {tokens / seconds:.0f} | {ratios[-1]:.2f} | "
                        f"{our_bytes / 2**20:.0f} | {num_bytes / 2**20:.0f} | {our_bytes / num_bytes:.2f} |")
    print("| precision | against | tacc tokens/s | its tokens/s | ratio | tacc MiB | its MiB | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(rows))
    print(f"speed, geometric mean: {statistics.geometric_mean(ratios):.2f}; bar {BAR}")


if __name__ == "__main__":
    main()
