"""Ranks, daemons and the coordinator are killed at random moments; the job ends with the parameters of an undisturbed run, to the bit.

TACC_KILLS: kills of each kind (3 in `make test`, 20 in `make soak`). TACC_SEED: the seed of their moments; printed.
"""

import hashlib
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from cluster import Cluster, write_job

KILLS = int(os.environ.get("TACC_KILLS", "3"))
SEED = int(os.environ.get("TACC_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
TRAIN = {"max_steps": 300, "learning_rate": 0.001}
CHECKPOINT = {"save_steps": 40}


# Dropout is on: a resumed run must draw the same masks.
MODEL = {
    "architectures": ["BloomForCausalLM"], "model_type": "bloom", "hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 97,
    "hidden_dropout": 0.1, "attention_dropout": 0.0, "layer_norm_epsilon": 1e-5, "initializer_range": 0.05,
    "apply_residual_connection_post_layernorm": False, "bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 2,
}


def write(folder: Path, name: str) -> Path:
    (folder / "model").mkdir(parents=True)
    (folder / "model/config.json").write_text(json.dumps(MODEL))
    # Dropout on: a resumed run must draw the same masks.
    return write_job(folder, name=name, workers=2, train=TRAIN, checkpoint=CHECKPOINT, max_restarts=1000)


def digest(cluster: Cluster, job: str) -> str:
    exported = Path(cluster.json("get", job)["exported_path"])
    return hashlib.sha256((exported / "model.safetensors").read_bytes()).hexdigest()


def points(cluster: Cluster, job: str) -> list[tuple]:
    lines = cluster.ctl("watch", job, "-o", "json").stdout.splitlines()
    return [(p["step"], p["loss"], p["batch_hash"]) for p in map(json.loads, lines) if "grad_norm" in p]


def submit(cluster: Cluster, path: Path) -> str:
    return json.loads(cluster.ctl("submit", path, "-o", "json").stdout.splitlines()[-1])["id"]


def finish(cluster: Cluster, job: str, timeout: float) -> None:
    cluster.ctl("watch", job, "-o", "json", "--timeout", timeout, timeout=timeout + 10)


def step(cluster: Cluster, job: str) -> int:
    return int(cluster.json("get", job).get("step", 0))


def rank_pids(worker_pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{worker_pid}/task/{worker_pid}/children").read_text().split()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    print(f"TACC_SEED={SEED}")
    folder = tmp_path_factory.mktemp("undisturbed")
    with Cluster(folder / "cluster", workers=2) as cluster:
        job = submit(cluster, write(folder, "faults"))
        finish(cluster, job, 200)
        return digest(cluster, job), points(cluster, job)


def last_of_each_step(series: list[tuple]) -> list[tuple]:
    """Steps repeated after a restart count once, as last reported; a repeat must have the same loss."""
    by_step: dict[int, tuple] = {}
    for point in series:
        assert by_step.setdefault(point[0], point) == point, "a step repeated after a restart has another loss"
    return [by_step[s] for s in sorted(by_step)]


def check(cluster: Cluster, job: str, undisturbed) -> None:
    want_digest, want_points = undisturbed
    assert last_of_each_step(points(cluster, job)) == want_points
    assert digest(cluster, job) == want_digest


@pytest.mark.parametrize("kill", range(KILLS))
def test_rank_killed(undisturbed, tmp_path, kill):
    moments = random.Random(SEED + kill)
    with Cluster(tmp_path / "cluster", workers=2) as cluster:
        job = submit(cluster, write(tmp_path, "faults"))
        at = moments.randrange(1, TRAIN["max_steps"] - 20)
        cluster.wait(lambda: step(cluster, job) >= at, f"step {at}")
        victims = rank_pids(cluster.workers[f"w{moments.randrange(2)}"].popen.pid)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        finish(cluster, job, 200)
        if victims:
            assert len(cluster.json("get", job)["restarts"]) == 1
        check(cluster, job, undisturbed)


@pytest.mark.parametrize("kill", range(KILLS))
def test_daemon_killed(undisturbed, tmp_path, kill):
    moments = random.Random(SEED + 1000 + kill)
    with Cluster(tmp_path / "cluster", workers=2) as cluster:
        job = submit(cluster, write(tmp_path, "faults"))
        at = moments.randrange(1, TRAIN["max_steps"] - 20)
        cluster.wait(lambda: step(cluster, job) >= at, f"step {at}")
        name = f"w{moments.randrange(2)}"
        cluster.workers[name].kill()
        time.sleep(moments.uniform(0, 2))
        cluster.start_worker(name)
        finish(cluster, job, 200)
        check(cluster, job, undisturbed)


@pytest.mark.parametrize("kill", range(KILLS))
def test_coordinator_killed(undisturbed, tmp_path, kill):
    moments = random.Random(SEED + 2000 + kill)
    with Cluster(tmp_path / "cluster", workers=2) as cluster:
        job = submit(cluster, write(tmp_path, "faults"))
        at = moments.randrange(1, TRAIN["max_steps"] - 20)
        cluster.wait(lambda: step(cluster, job) >= at, f"step {at}")
        cluster.coordinator.kill()
        time.sleep(moments.uniform(0, 3))
        cluster.start_coordinator()
        finish(cluster, job, 200)
        assert len(cluster.ctl("list", "-o", "json").stdout.splitlines()) == 1
        assert points(cluster, job) == undisturbed[1]  # no point missing, none doubled, no restart
        check(cluster, job, undisturbed)
