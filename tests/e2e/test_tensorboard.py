"""A run's event files, read by TensorBoard itself: every step once, also where a killed rank did steps again and where the run went on."""

import os
import signal
from pathlib import Path

import pytest
import tacc
from cluster import Cluster, write_job
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={SCALARS: 0})
    events.Reload()
    return {tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def rank_pids(worker) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{worker.popen.pid}/task/{worker.popen.pid}/children").read_text().split()]


def test_every_step_once(tmp_path):
    with Cluster(tmp_path / "cluster", workers=1) as cluster, tacc.Client(cluster.address) as client:
        changes = {"workers": 1, "checkpoint": {"save_steps": 300}, "data": {"path": "data", "eval_path": "data", "seq_len": 16}, "eval": {"max_batches": 1}}
        job = client.submit(write_job(tmp_path, train={"max_steps": 2000, "eval_steps": 500}, **changes))
        cluster.wait(lambda: job.status().step > 450, "steps")
        for pid in rank_pids(cluster.workers["w0"]):
            os.kill(pid, signal.SIGKILL)
        status = job.wait(timeout=120, progress=False)
        assert len(status.restarts) == 1 and len(job.metrics(every_attempt=True)) > 2000
        on = client.submit(write_job(tmp_path, train={"max_steps": 2100, "eval_steps": 500}, **changes))
        on.wait(timeout=120, progress=False)
        read = scalars(Path(status.checkpoint_dir))
        losses = [*job.metrics()["loss"], *on.metrics()["loss"]]
        assert [step for step, _ in read["train/loss"]] == list(range(1, 2101))
        assert [value for _, value in read["train/loss"]] == pytest.approx(losses, rel=1e-6)
        assert [step for step, _ in read["eval/loss"]] == [500, 1000, 1500, 2000, 2100]
        assert len(read["perf/tokens_per_second"]) == 2100
