"""What the handle of tacc.accelerate costs: steps of a plain loop, against what the ranks say that they took.

    .venv/bin/python bench/accelerated.py [--steps 200] [--rounds 3]

For loops with the model's own loss (forward, backward, step, zero_grad), `model.step`, and a loss that the loop computes: the median of a step
beyond what the rank says that a whole step takes it (bar: 1 ms; a loss in the loop has a forward more); of that the processor's time of the loop's
own thread, the rest being wake-ups of client and rank, which share the machine's processors; and of a loader whose batches take half a step to
read, what the loop waits for them (bar: 2 %).
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "client/python"))
sys.path.insert(0, str(ROOT / "tests/e2e"))

import tacc  # noqa: E402
from cluster import Cluster  # noqa: E402

SAMPLES, WIDTH = 32, 256
BEFORE = 60  # whole steps of the session


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, 10))

    def forward(self, source: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.layers(source)
        return logits if labels is None else {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def own_loss(model: Any, optimizer: Any, batch: dict[str, torch.Tensor]) -> None:
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def one_call(model: Any, optimizer: Any, batch: dict[str, torch.Tensor]) -> None:
    model.step(batch)


def loss_here(model: Any, optimizer: Any, batch: dict[str, torch.Tensor]) -> None:
    nn.functional.cross_entropy(model(batch["source"]), batch["labels"]).backward()
    optimizer.step()
    optimizer.zero_grad()


WAYS: dict[str, Callable[[Any, Any, dict[str, torch.Tensor]], None]] = {
    "the model's loss": own_loss,
    "model.step": one_call,
    "a loss in the loop": loss_here,
}


def loop(way: str, ranks: int, steps: int, read_share: float) -> tuple[float, float, float, float]:
    """Medians of seconds: of a step of the loop, of the rank's part, of the processor in the loop's thread; and the share of the wait for the loader,
    whose batches take `read_share` of the step before to read."""
    config = {"dist": {"fsdp": {"size": ranks}}, "resources": {"workers": ranks}}
    batch = {"source": torch.randn(SAMPLES, WIDTH), "labels": torch.randint(0, 10, (SAMPLES,))}

    times, waits, own = [], [], []

    def loader() -> Iterator[dict[str, torch.Tensor]]:
        for _ in range(steps):
            time.sleep(times[-1] * read_share if times else 0.0)
            yield batch

    model, data = tacc.accelerate(Perceptron(), loader(), config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with model:
        model.start(**(batch if way != "a loss in the loop" else {"source": batch["source"]}))
        arrays = {name: torch.zeros(spec.shape).numpy() if name not in batch else batch[name].numpy() for name, spec in model.session.inputs.items()}
        for _ in range(BEFORE):
            model.session.step(arrays)
        before = time.perf_counter()
        for given in data:
            begin = time.perf_counter()
            waits.append(begin - before)
            worked = time.thread_time()
            WAYS[way](model, optimizer, given)
            own.append(time.thread_time() - worked)
            before = time.perf_counter()
            times.append(before - begin)
        points = [p.seconds - p.data_wait_seconds for p in model.job.watch(events=False, follow=False)]
    wait = sum(waits[10:]) / (sum(times[10:]) + sum(waits[10:]))
    return statistics.median(times[10:]), statistics.median(points[10:BEFORE]), statistics.median(own[10:]), wait


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--rounds", type=int, default=3)
    arguments = options.parse_args()
    print("| ranks | loop | step, ms | of the rank, ms | beyond it, ms | of the loop's thread, ms | waits for a loader that takes half a step |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as scratch, Cluster(Path(scratch) / "cluster", workers=2) as cluster:
        os.environ.update(TACC_ADDRESS=cluster.address, XDG_CACHE_HOME=scratch)
        os.chdir(scratch)
        for ranks in (1, 2):
            for way in WAYS:
                runs = [loop(way, ranks, arguments.steps, 0.0) for _ in range(arguments.rounds)]
                step, rank, own, _ = (statistics.median(column) for column in zip(*runs))
                wait = statistics.median(loop(way, ranks, arguments.steps, 0.5)[3] for _ in range(arguments.rounds))
                print(f"| {ranks} | {way} | {step * 1e3:.2f} | {rank * 1e3:.2f} | {(step - rank) * 1e3:.2f} | {own * 1e3:.2f} | {wait:.1%} |", flush=True)


if __name__ == "__main__":
    main()
