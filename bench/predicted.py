"""Compares predicted with measured step times on this machine's CPU; prints a table of ratios.

Layouts of 1, 2 and 4 ranks of an OLMo (4 layers, hidden 512, 8 heads, MLP 1408, vocabulary 8,000, batch 8 x 256), one thread a rank where there
are as many cores. Each run comes after a probe of its own, of as many ranks at once as there are cores for, and a prediction with what they found
(tacc-plan plan); layouts and rounds take turns, so that a machine whose speed drifts drifts alike for both. The first steps of a run are warm-up,
the figure is the median of the rest.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "client/python"), str(ROOT / "bench")]
from bare_ranks import Training  # noqa: E402
from train_step import CONFIG  # noqa: E402

WARM_UP, COUNTED = 2, 4
NEAR = 0.2  # of measured: what a prediction is good for
BATCH, SEQ, VOCAB = 8, 256, 8_000


@dataclass(frozen=True)
class Layout:
    name: str
    world: int
    dist: dict
    micro_batch: int  # samples of a rank at a time
    precision: str = "f32"

    def training(self, build: Path, folder: Path, cores: int) -> Training:
        return Training(build, folder, VOCAB, SEQ, BATCH, WARM_UP + COUNTED, self.precision, self.world, max(1, cores // self.world),
                        saves=False, dist=self.dist, micro_batch=self.micro_batch)


def sizes(**axes: int) -> dict:
    """The section `dist`, with nothing left to the planner: what is predicted is what runs."""
    dist = {axis: {"size": size} for axis, size in axes.items()}
    dist.setdefault("fsdp", {})["reshard_after_forward"] = True
    if "pp" in dist:
        dist["pp"]["schedule"] = "PIPELINE_SCHEDULE_1F1B"
    return dist


LAYOUTS = [
    Layout("one", 1, sizes(fsdp=1), 8),
    Layout("one", 1, sizes(fsdp=1), 2),
    Layout("one", 1, sizes(fsdp=1), 8, "bf16"),
    Layout("dp=2", 2, sizes(dp=2, fsdp=1), 4),
    Layout("fsdp=2", 2, sizes(fsdp=2), 4),
    Layout("fsdp=2", 2, sizes(fsdp=2), 1),
    Layout("fsdp=2", 2, sizes(fsdp=2), 4, "bf16"),
    Layout("tp=2", 2, sizes(tp=2), 8),
    Layout("pp=2", 2, sizes(pp=2), 2),
    Layout("cp=2", 2, sizes(cp=2), 8),
    Layout("sp=2", 2, sizes(sp=2), 8),
    Layout("fsdp=4", 4, sizes(fsdp=4), 2),
    Layout("dp=2 fsdp=2", 4, sizes(dp=2, fsdp=2), 2),
    Layout("fsdp=2 tp=2", 4, sizes(fsdp=2, tp=2), 4),
    Layout("pp=2 fsdp=2", 4, sizes(pp=2, fsdp=2), 1),
]


def write_inputs(folder: Path) -> None:
    from tacc.shards import DatasetWriter

    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 4, "vocab_size": VOCAB}))
    writer = DatasetWriter(folder / "data", VOCAB)
    writer.append(np.minimum(np.random.default_rng(0).zipf(1.2, size=BATCH * SEQ * 10), VOCAB) - 1)
    writer.close(tokenizer={"fingerprint": "", "eos_token": "", "eos_token_id": 0}, seq_len=SEQ)


def probe(training: Training, cores: int) -> dict:
    """What probes at once find, in the middle: as many as there are ranks and cores for them."""
    command = [training.build / "tacc-rank", "--probe", "--device", "cpu", "--threads", str(training.threads)]
    env = {**os.environ, "OMP_NUM_THREADS": str(training.threads)}
    at_once = min(training.world, max(1, cores // training.threads))
    probes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) for _ in range(at_once)]
    found = [json.loads(p.communicate()[0]) for p in probes]
    device = found[0]
    for key in ["matmul_fraction", "memory_bytes_per_second", "link_bytes_per_second", "link_latency_seconds"]:
        device[key] = statistics.median(d[key] for d in found)
    for dtype in device["matmul_flops_per_second"]:
        device["matmul_flops_per_second"][dtype] = statistics.median(d["matmul_flops_per_second"][dtype] for d in found)
    device["memory_bytes"] = 0
    device["cpus"] = cores / training.world
    return device


def predict(training: Training, device: dict) -> float:
    path = training.folder / "predict.json"
    path.write_text(json.dumps(training.request(device)))
    plan = subprocess.run([training.build / "tacc-plan", "plan", "--request", path], check=True, capture_output=True, text=True).stdout
    return json.loads(plan)["candidates"][0]["predicted_step_seconds"]


def measure(training: Training) -> float:
    with training.start() as ranks:
        seconds = [event["seconds"] for event in ranks.events() if event["event"] == "step"]
    return statistics.median(seconds[WARM_UP:])


def quantile(ratios: list[float], share: float) -> float:
    """The smallest measured/predicted that at least this share of the runs is at most (graph/planner/prediction_range.h)."""
    inverse = sorted(1 / ratio for ratio in ratios)
    return inverse[max(0, math.ceil(share * len(inverse)) - 1)]


def spread(medians: list[float], ratios: list[float]) -> str:
    """How far predicted/measured lie apart: of the layouts, and of all single runs."""
    middle = statistics.median(medians)
    near = sum(abs(ratio - 1) <= NEAR for ratio in ratios)
    return (f"median of predicted/measured {middle:.3f}; layouts from {min(medians):.2f} to {max(medians):.2f}, a range of {(max(medians) - min(medians)) / middle:.1%} of it; "
            f"measured/predicted of single runs, quantiles: 5 % {quantile(ratios, 0.05):.3f}, 95 % {quantile(ratios, 0.95):.3f}; "
            f"single runs from {min(ratios):.2f} to {max(ratios):.2f}, {near} of {len(ratios)} ({near / len(ratios):.0%}) within {NEAR:.0%} of measured")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    runs: list[list[tuple[float, float]]] = [[] for _ in LAYOUTS]  # predicted and measured seconds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        for number in range(args.rounds):
            for layout, taken in zip(LAYOUTS, runs):
                training = layout.training(args.build, folder, cores)
                taken.append((predict(training, probe(training, cores)), measure(training)))
                print(f"round {number}: {layout.name} {layout.precision} x {layout.micro_batch}: "
                      f"predicted {taken[-1][0]:.3f} s, measured {taken[-1][1]:.3f} s", file=sys.stderr)
    print("| ranks | layout | samples x accumulation | precision | predicted s | measured s | ratio, median | lowest | highest |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    medians = []
    for layout, taken in zip(LAYOUTS, runs):
        predicted, measured = (statistics.median(column) for column in zip(*taken))
        ratios = [p / m for p, m in taken]
        medians.append(statistics.median(ratios))
        accumulation = BATCH // layout.training(args.build, folder, cores).batch_ranks() // layout.micro_batch
        print(f"| {layout.world} | {layout.name} | {layout.micro_batch} x {accumulation} | {layout.precision} | {predicted:.3f} | {measured:.3f} | "
              f"{medians[-1]:.2f} | {min(ratios):.2f} | {max(ratios):.2f} |")
    print("\n" + spread(medians, [predicted / measured for taken in runs for predicted, measured in taken]))


if __name__ == "__main__":
    main()
