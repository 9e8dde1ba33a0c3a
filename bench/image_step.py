"""Compares training of ResNet-50 with PyTorch, eager and compiled, on this machine's CPU; prints a table of ratios.

    .venv/bin/python bench/image_step.py [--size 64] [--samples 16] [--steps 6] [--rounds 2]

fp32, one thread, SGD with momentum, clipping and batch norms included, random images. Sides take turns, each in a process of its own. Beside the time of a step
stands that of the processor, which other work on the machine changes less; memory is the peak of the process.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BAR, MEMORY_BAR = 1.0, 0.8
WARM_UP = 2
OPTIMIZER = {"optim": "sgd", "momentum": 0.9, "learning_rate": 0.01, "lr_scheduler_type": "constant"}


def resnet50():
    import torch
    from torchvision.models import resnet50

    torch.manual_seed(0)
    return resnet50(num_classes=10).train()


def batch(args: argparse.Namespace):
    import torch

    generator = torch.Generator().manual_seed(1)
    return torch.randn(args.samples, 3, args.size, args.size, generator=generator), torch.randint(0, 10, (args.samples,), generator=generator)


def processor_seconds(pid: int | str) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_bytes(pid: int | str) -> int:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def timed(pid: int | str, step, steps: int) -> dict:
    seconds, processor = [], []
    for i in range(WARM_UP + steps):
        start, began = time.perf_counter(), processor_seconds(pid)
        step()
        if i >= WARM_UP:
            seconds.append(time.perf_counter() - start)
            processor.append(processor_seconds(pid) - began)
    return {"seconds": statistics.median(seconds), "processor": statistics.median(processor), "bytes": peak_bytes(pid)}


def run_torch(args: argparse.Namespace) -> None:
    """Of a process of its own; prints what it measured."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(1)
    model = resnet50()
    optimizer = torch.optim.SGD(model.parameters(), OPTIMIZER["learning_rate"], momentum=OPTIMIZER["momentum"])
    images, labels = batch(args)
    forward = torch.compile(model) if args.torch == "compile" else model

    def step():
        optimizer.zero_grad()
        F.cross_entropy(forward(images), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    print(json.dumps(timed("self", step, args.steps)))


def run_tacc(args: argparse.Namespace, folder: Path, name: str) -> dict:
    import tacc
    from cluster import Cluster

    images, labels = batch(args)
    with Cluster(folder / name, workers=1, memory=str(8 << 30)) as cluster, tacc.Client(cluster.address) as client:
        job = client.submit({
            "name": name, "model": {"graph": str(folder / "model/model.graph")}, "data": {"client": {}},
            "train": {"max_steps": WARM_UP + args.steps, "global_batch_size": args.samples, **OPTIMIZER}, "compute": {"bf16": False},
            "checkpoint": {"dir": str(folder / name / "run"), "save_steps": 1000000},
        })
        with tacc.Session(job) as session:
            parent = cluster.workers["w0"].popen.pid
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            rank = next(pid for pid in children if "tacc-rank" in Path(f"/proc/{pid}/comm").read_text())
            values = {"x": images.numpy(), "input1": labels.numpy()}
            found = timed(rank, lambda: session.step(values), args.steps)
        job.cancel(now=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=64, help="of an image")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--steps", type=int, default=6, help="that are counted")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--modes", default="eager,compile")
    parser.add_argument("--torch", choices=["eager", "compile"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.torch:
        return run_torch(args)
    sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests/e2e")]
    import tacc
    import torch.nn.functional as F

    given = ["--size", str(args.size), "--samples", str(args.samples), "--steps", str(args.steps)]
    runs: dict[str, list[dict]] = {way: [] for way in ("tacc", *args.modes.split(","))}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tacc.export_model(resnet50(), batch(args), folder / "model", loss=lambda logits, taken: F.cross_entropy(logits, taken[1]))
        for i in range(args.rounds):
            for way, found in runs.items():
                if way == "tacc":
                    found.append(run_tacc(args, folder, f"round-{i}"))
                else:
                    said = subprocess.run([sys.executable, __file__, "--torch", way, *given], check=True, capture_output=True, text=True)
                    found.append(json.loads(said.stdout))
                print(way, found[-1], file=sys.stderr)
    best = {way: {key: min(run[key] for run in found) for key in found[0]} for way, found in runs.items()}
    print("| way | samples/s | processor s a step | peak MiB | tacc's speed over it | by processor time | tacc's memory over it |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    ours = best["tacc"]
    for way, found in best.items():
        ratios = (found["seconds"] / ours["seconds"], found["processor"] / ours["processor"], ours["bytes"] / found["bytes"])
        print(f"| {way} | {args.samples / found['seconds']:.2f} | {found['processor']:.2f} | {found['bytes'] / 2**20:.0f} | "
              + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")
    print(f"bars: speed {BAR} over the better, memory {MEMORY_BAR} of eager's")


if __name__ == "__main__":
    main()
