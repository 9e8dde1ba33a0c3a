"""Compares predicted with measured step times on this machine's CPU; prints a table of ratios.

Layouts of 1, 2 and 4 ranks, one thread a rank where there are as many cores. Each round probes as many ranks at once as will run, predicts with
what they found (tacc-plan plan), and runs; layouts and rounds take turns, so that a machine whose speed drifts drifts alike for both. The first
steps of a run are warm-up, the figure is the median of the rest.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "client/python"), str(ROOT / "bench")]
from bare_ranks import Training  # noqa: E402
from train_step import SEQ, VOCAB, write_inputs  # noqa: E402

WARM_UP, COUNTED = 2, 6
BATCH = 8
# world, dp, samples of a rank at a time, precision
LAYOUTS = [(1, 1, 8, "f32"), (1, 1, 2, "f32"), (1, 1, 4, "bf16"), (2, 2, 4, "f32"), (2, 1, 4, "f32"), (2, 1, 2, "bf16"), (4, 4, 2, "f32"),
           (4, 2, 2, "f32"), (4, 1, 2, "f32"), (4, 1, 1, "f32")]


def probe(build: Path, world: int, threads: int) -> dict:
    """What `world` probes at once find, in the middle."""
    command = [build / "tacc-rank", "--probe", "--device", "cpu", "--threads", str(threads)]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    probes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) for _ in range(world)]
    found = [json.loads(p.communicate()[0]) for p in probes]
    device = found[0]
    for key in ["memory_bytes_per_second", "link_bytes_per_second", "link_latency_seconds"]:
        device[key] = statistics.median(d[key] for d in found)
    for dtype in device["matmul_flops_per_second"]:
        device["matmul_flops_per_second"][dtype] = statistics.median(d["matmul_flops_per_second"][dtype] for d in found)
    device["memory_bytes"] = 0
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    ratios: dict[tuple, list[float]] = {layout: [] for layout in LAYOUTS}
    seconds: dict[tuple, list[tuple[float, float]]] = {layout: [] for layout in LAYOUTS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        for number in range(args.rounds):
            for layout in LAYOUTS:
                world, dp, micro_batch, precision = layout
                training = Training(args.build, folder, VOCAB, SEQ, BATCH, WARM_UP + COUNTED, precision, world, max(1, cores // world), dp=dp,
                                    micro_batch=micro_batch)
                predicted = predict(training, probe(args.build, world, training.threads))
                measured = measure(training)
                seconds[layout].append((predicted, measured))
                ratios[layout].append(predicted / measured)
                print(f"round {number}: {layout}: predicted {predicted:.3f} s, measured {measured:.3f} s", file=sys.stderr)
    print("| ranks | dp | fsdp | samples x accumulation | precision | predicted s | measured s | ratio, median | lowest | highest |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for (world, dp, micro_batch, precision), values in ratios.items():
        predicted, measured = (statistics.median(column) for column in zip(*seconds[world, dp, micro_batch, precision]))
        print(f"| {world} | {dp} | {world // dp} | {micro_batch} x {BATCH // world // micro_batch} | {precision} | {predicted:.3f} | {measured:.3f} | "
              f"{statistics.median(values):.2f} | {min(values):.2f} | {max(values):.2f} |")
    medians = [statistics.median(values) for values in ratios.values()]
    middle = statistics.median(medians)
    print(f"\nmedian of predicted/measured {middle:.3f}; spread of the layouts {(max(medians) - min(medians)) / 2 / middle:.1%} to either side")


if __name__ == "__main__":
    main()
