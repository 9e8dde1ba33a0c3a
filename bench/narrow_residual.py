"""The quickstart trained with its residual stream kept for the backward in float32 and in bfloat16 (`compute.residual_dtype`), from the same seeds.

Prints a table: of each seed the losses at some steps, the held-out loss at the end, and how far the two lie apart; below it how far seeds lie apart
by themselves, which is what a difference is to be held against. Ends with 1 when the first losses, which no update has moved, are not equal; when no later
loss differs, for then nothing was kept narrower; or when, of three seeds and more, held-out losses lie further apart than half the deviation of seeds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def train(args: argparse.Namespace, folder: Path, seed: int, residual: str) -> tuple[dict[int, float], float]:
    """The loss of each step, and the held-out loss after the last."""
    import yaml

    job = yaml.safe_load((args.quickstart / "job.yaml").read_text())
    data = args.data.resolve()
    job["name"] = f"residual-{residual}-{seed}"
    job["model"]["path"] = str((args.quickstart / "model").resolve())
    job["data"] = {"path": str(data), "eval_path": str(data / "eval"), "seq_len": args.seq_len}
    job["train"] |= {"learning_rate": float(job["train"]["learning_rate"]),  # PyYAML reads 1e-3 as text
                     "max_steps": args.steps, "warmup_steps": min(args.steps // 5, job["train"]["warmup_steps"]), "eval_steps": args.steps,
                     "global_batch_size": args.batch, "seed": seed}
    job["eval"] = {"max_batches": args.eval_batches}
    job["compute"] = {"bf16": True, "residual_dtype": residual}
    job["memory"] = {"gc": args.gc}
    job["dist"] = {"fsdp": {"size": args.workers}}
    job["resources"] = {"workers": args.workers}
    (folder / "job.yaml").write_text(json.dumps(job))
    out = subprocess.run([args.build / "taccctl", "submit", "--local", "--follow", "-o", "json", folder / "job.yaml"], check=True, stdout=subprocess.PIPE,
                         text=True).stdout
    events = [json.loads(line) for line in out.splitlines()]
    losses = {e["step"]: e["loss"] for e in events if "grad_norm" in e}
    return losses, [e["eval_loss"] for e in events if "eval_loss" in e][-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--quickstart", type=Path, default=ROOT / "examples/quickstart")
    parser.add_argument("--data", type=Path, default=ROOT / "examples/quickstart/data", help="prepared by `make quickstart`")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--eval-batches", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gc", action="store_true", help="with memory.gc")
    args = parser.parse_args()

    shown = sorted({1, max(1, args.steps // 10), max(1, args.steps // 2), args.steps})
    print("| seed | kept in | " + " | ".join(f"loss of step {step}" for step in shown) + " | held-out |", flush=True)
    print("| --- | --- |" + " --- |" * (len(shown) + 1))
    ends: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    equal, moved = True, False
    for seed in range(1, args.seeds + 1):
        first, curves = set(), []
        for residual, held_out in ends.items():
            with tempfile.TemporaryDirectory() as folder:
                losses, end = train(args, Path(folder), seed, residual)
            first.add(losses[1])
            curves.append(losses)
            held_out.append(end)
            print(f"| {seed} | {residual} | " + " | ".join(f"{losses[step]:.4f}" for step in shown) + f" | {end:.4f} |", flush=True)
        equal &= len(first) == 1
        moved |= curves[0] != curves[1]
    apart = [narrow - wide for wide, narrow in zip(ends["float32"], ends["bfloat16"])]
    print(f"\nheld-out loss of bfloat16 less that of float32: {', '.join(f'{d:+.4f}' for d in apart)}; mean {statistics.mean(apart):+.4f}")
    deviation = statistics.stdev(ends["float32"]) if args.seeds > 1 else 0
    if args.seeds > 1:
        print(f"standard deviation between seeds, of float32: {deviation:.4f}")
    if not equal:
        sys.exit("error: first losses differ: the forward is not the same")
    if not moved:
        sys.exit("error: all losses are equal: nothing was kept in bfloat16")
    if args.seeds > 2 and max(map(abs, apart)) > deviation / 2:
        sys.exit("error: held-out losses lie further apart than half the deviation between seeds")


if __name__ == "__main__":
    main()
