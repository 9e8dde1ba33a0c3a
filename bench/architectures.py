"""Prints the table of docs/architectures.md: PyTorch models of many architectures, small, what becomes of them as graphs and how exactly they train.

    .venv/bin/python bench/architectures.py [--only LLaMA,T5] [--build build]

The models are those of tests/exporting, of unmodified classes. Errors are relative. In float64 the graph is computed by an interpreter, beside PyTorch. In fp32 the
daemon trains it ten steps, on one rank and with FSDP on two, beside a plain PyTorch loop. Export is the process's time, so that other processes change it little.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests/exporting"), str(ROOT / "tests/e2e"), str(ROOT / "client/python")]

HEAD = ("architecture", "parameters", "mapped ops", "`aten` nodes", "FLOPs in mapped ops", "loss, float64", "gradients, float64", "ten losses, fp32", "FSDP 2 to 1 rank, fp32", "s to export")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--only", help="names of architectures, by commas")
    args = parser.parse_args()
    os.environ["TACC_BUILD"] = str(args.build.resolve())
    import tacc
    from architecture_models import ARCHITECTURES
    from cluster import Cluster

    names = args.only.split(",") if args.only else list(ARCHITECTURES)
    if unknown := [name for name in names if name not in ARCHITECTURES]:
        parser.error(f"--only: no architecture is called {unknown[0]}; there are {', '.join(ARCHITECTURES)}")
    print("| " + " | ".join(HEAD) + " |\n" + "| --- " * len(HEAD) + "|")
    all_flops = all_aten = 0.0
    with tempfile.TemporaryDirectory() as scratch, Cluster(Path(scratch) / "cluster", workers=2) as cluster, tacc.Client(cluster.address) as client:
        for number, name in enumerate(names):
            cells, flops, aten = row(client, ARCHITECTURES[name], Path(scratch) / str(number))
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
            all_flops, all_aten = all_flops + flops, all_aten + aten
    print(f"\nOf the FLOPs of all of them, {1 - all_aten / all_flops:.3%} are in mapped ops.")


def row(client: Any, make: Callable, folder: Path) -> tuple[list[str], float, float]:
    """The cells after the name; the FLOPs of a forward, and those of `aten` nodes."""
    import tacc
    from comparison import errors
    from exported_training import optimizer_for, spec, steps, train_in_torch

    model = make()
    start = time.process_time()
    exported = tacc.export_model(model.module, model.batch, folder / "graph", **model.options)
    seconds = time.process_time() - start
    loss_error, gradient_error = errors(exported, model)
    trained = train_in_torch(model, exported, optimizer_for(model.module))
    losses = []
    for workers in (1, 2):
        job = client.submit(spec(trained, f"ranks-{folder.name}-{workers}", folder, {"fsdp": {"size": workers}}, workers))
        with tacc.Session(job) as session:
            losses.append([loss for loss, _ in steps(session, trained.batches)])
            session.finish()
        job.wait(progress=False)
    one, two = losses
    coverage = exported.coverage
    nodes = sum(coverage.ops.values())
    aten = coverage.ops.get("aten", 0)
    parameters = sum(p.numel() for p in model.module.parameters())
    cells = [f"{parameters:,}", str(nodes - aten), str(aten), f"{coverage.share:.2%}", f"{loss_error:.0e}", f"{gradient_error:.0e}",
             f"{furthest(one, trained.losses):.0e}", f"{furthest(two, one):.0e}", f"{seconds:.1f}"]
    return cells, coverage.flops, coverage.aten_flops


def furthest(got: list[float], wanted: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(got, wanted))


if __name__ == "__main__":
    main()
