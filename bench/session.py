"""What a session costs: a training that a client drives, against the same one on a data folder.

    .venv/bin/python bench/session.py [--steps 60] [--rounds 3]

For one rank and two, over shared memory and over TCP: the median step by the rank, what Python adds to it (bar: 1 ms), the share of a step in
which the rank waits for its batch (bar: 2 %), and bytes of the batch on each link.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "client/python"))
sys.path.insert(0, str(ROOT / "tests/e2e"))

import tacc  # noqa: E402
from cluster import Cluster, write_data, write_model  # noqa: E402

SAMPLES, SEQ_LEN, VOCAB = 8, 256, 2048
MODEL = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": VOCAB, "max_position_embeddings": SEQ_LEN}


def job(folder: Path, ranks: int, name: str, data: dict, steps: int) -> dict:
    return {"name": name, "model": {"path": str(folder / "model"), "weights": "random"}, "data": {"seq_len": SEQ_LEN, **data},
            "train": {"max_steps": steps, "global_batch_size": SAMPLES, "per_device_train_batch_size": SAMPLES // ranks}, "compute": {"bf16": False},
            "dist": {"dp": {"size": 1}, "fsdp": {"size": ranks}}, "checkpoint": {"dir": str(folder / "runs" / name), "save_steps": 1000000},
            "resources": {"workers": ranks}}


def measured(points: list) -> tuple[float, float]:
    """Median seconds of a step without its wait, and the share of the wait, of the steps behind the first ten."""
    points = points[10:]
    return (statistics.median(p.seconds - p.data_wait_seconds for p in points), sum(p.data_wait_seconds for p in points) / sum(p.seconds for p in points))


def by_folder(client: tacc.Client, folder: Path, ranks: int, name: str, steps: int) -> dict:
    run = client.submit(job(folder, ranks, name, {"path": str(folder / "data")}, steps))
    run.wait(progress=False)
    seconds, wait = measured(list(run.watch(events=False)))
    return {"rank": seconds, "wait": wait, "python": None, "link": "-"}


def by_session(client: tacc.Client, folder: Path, ranks: int, name: str, steps: int, *, shared_memory: bool) -> dict:
    run = client.submit(job(folder, ranks, name, {"client": {}}, steps))
    random = np.random.default_rng(1)
    calls = []
    with tacc.Session(run, shared_memory=shared_memory) as session:
        tokens = random.integers(2, VOCAB, (SAMPLES, SEQ_LEN), dtype=np.int32)
        batch = {"tokens": tokens, "targets": np.pad(tokens[:, 1:], ((0, 0), (0, 1)), constant_values=-1)}
        for _ in range(steps):
            begin = time.perf_counter()
            session.step(batch)
            calls.append(time.perf_counter() - begin)
        once, by_rank = session.bytes_per_step
        session.finish()
    run.wait(progress=False)
    seconds, wait = measured(list(run.watch(events=False)))
    link = f"{once} in memory" if shared_memory else f"{by_rank[0]} to each rank"
    return {"rank": seconds, "wait": wait, "python": statistics.median(calls[10:]) - seconds, "link": link}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--rounds", type=int, default=3)
    arguments = options.parse_args()
    ways = {"folder": by_folder, "memory": lambda *a: by_session(*a, shared_memory=True), "tcp": lambda *a: by_session(*a, shared_memory=False)}
    rows: dict[tuple, list[dict]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_model(folder / "model", **MODEL)
        write_data(folder / "data", vocab_size=VOCAB, num_tokens=SAMPLES * SEQ_LEN * 8)
        with Cluster(folder / "cluster", workers=2) as cluster, tacc.Client(cluster.address) as client:
            for turn in range(arguments.rounds):
                for ranks in (1, 2):
                    for way, run in ways.items():
                        rows.setdefault((ranks, way), []).append(run(client, folder, ranks, f"{way}-{ranks}-{turn}", arguments.steps))
    print("| ranks | batches by | step of the rank, ms | Python beyond it, ms | wait for data | bytes of a batch |\n| --- | --- | --- | --- | --- | --- |")
    for (ranks, way), runs in rows.items():
        middle = {key: statistics.median(run[key] for run in runs) if runs[0][key] is not None else None for key in ("rank", "wait", "python")}
        python = "-" if middle["python"] is None else f"{middle['python'] * 1e3:.2f}"
        print(f"| {ranks} | {way} | {middle['rank'] * 1e3:.2f} | {python} | {middle['wait']:.2%} | {runs[0]['link']} |")


if __name__ == "__main__":
    main()
