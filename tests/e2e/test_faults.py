"""Ranks, daemons and the coordinator are killed at random moments; the job ends with the parameters of an undisturbed run, to the bit.

TACC_KILLS: kills of each kind (3 in `make test`, 20 in `make soak`). TACC_SEED: the seed of their moments; printed.
"""

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from cluster import Cluster, write_job

KILLS = int(os.environ.get("TACC_KILLS", "3"))
SEED = int(os.environ.get("TACC_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
TRAIN = {"max_steps": 300, "learning_rate": 0.001, "deterministic": True}
CHECKPOINT = {"save_steps": 40}


# Dropout is on, inside attention too: a resumed run must draw the same masks.
MODEL = {
    "architectures": ["BloomForCausalLM"], "model_type": "bloom", "hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 97,
    "hidden_dropout": 0.1, "attention_dropout": 0.1, "layer_norm_epsilon": 1e-5, "initializer_range": 0.05,
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


RANK_FAILPOINTS = ["before_shard_write", "after_shard_write", "before_manifest", "after_manifest", "before_rename", "after_rename", "in_collective"]


@pytest.mark.parametrize("kill", range(KILLS))
def test_rank_killed_at_a_failpoint(undisturbed, tmp_path, kill):
    """A checkpoint that is cut anywhere gives way to the one before it."""
    moments = random.Random(SEED + 3000 + kill)
    name = RANK_FAILPOINTS[(SEED + kill) % len(RANK_FAILPOINTS)]
    # There are eight checkpoints, and more than a thousand collectives between two of them.
    failpoint = f"{name}=kill@{moments.randrange(1, 3000 if name == 'in_collective' else 8)}"
    print(failpoint)
    with Cluster(tmp_path / "cluster", workers=2, worker_env={"TACC_FAILPOINTS": failpoint}) as cluster:
        job = submit(cluster, write(tmp_path, "faults"))
        cause = cluster.wait(lambda: cluster.json("get", job)["restarts"], f"the rank's death at {failpoint}", 120)[0]["cause"]
        assert "SIGKILL" in cause, cause
        for worker in list(cluster.workers):  # no more failpoints
            cluster.workers[worker].stop()
            cluster.start_worker(worker)
        finish(cluster, job, 200)
        check(cluster, job, undisturbed)


@pytest.mark.parametrize("kill", range(KILLS))
def test_coordinator_killed_at_a_failpoint(undisturbed, tmp_path, kill):
    """Just before, or just after, a decision is on disk."""
    moments = random.Random(SEED + 4000 + kill)
    failpoint = f"{moments.choice(['before', 'after'])}_log_commit=kill@{moments.randrange(3, 15)}"
    print(failpoint)
    with Cluster(tmp_path / "cluster", workers=2, coordinator_env={"TACC_FAILPOINTS": failpoint}) as cluster:
        job = submit(cluster, write(tmp_path, "faults"))
        cluster.wait(lambda: cluster.coordinator.popen.poll() is not None, f"the coordinator's end at {failpoint}")
        cluster.coordinator_env = None
        cluster.start_coordinator()
        finish(cluster, job, 200)
        assert len(cluster.ctl("list", "-o", "json").stdout.splitlines()) == 1
        assert points(cluster, job) == undisturbed[1]
        check(cluster, job, undisturbed)


def test_folders_are_away_while_a_rank_starts_again(undisturbed, tmp_path):
    """Unmounted, mount points are empty folders: the job says so once, waits, and goes on from its last checkpoint when they are back."""
    with Cluster(tmp_path / "cluster", workers=2) as cluster:
        job = submit(cluster, write(tmp_path, "faults"))
        cluster.wait(lambda: step(cluster, job) >= 50, "a checkpoint")
        for name in ("runs", "model", "data"):
            (tmp_path / name).rename(tmp_path / f"{name}.away")
            (tmp_path / name).mkdir()
        for pid in rank_pids(cluster.workers["w0"].popen.pid):
            os.kill(pid, signal.SIGKILL)
        view = cluster.wait(lambda: (v := cluster.json("get", job))["phase"] == "waiting" and v, "a job that waits")
        for name in ("runs/faults/job.json", "model", "data"):
            assert f"{tmp_path / name}: " in view["reason"], view["reason"]
        time.sleep(4)  # it has looked again since
        assert cluster.json("get", job)["phase"] == "waiting"
        assert list((tmp_path / "runs").iterdir()) == []
        for name in ("runs", "model", "data"):
            (tmp_path / name).rmdir()
            (tmp_path / f"{name}.away").rename(tmp_path / name)
        finish(cluster, job, 200)
        assert len([e for e in cluster.events(job) if e["type"] == "waiting"]) == 1
        assert len(cluster.json("get", job)["restarts"]) == 1
        check(cluster, job, undisturbed)


@pytest.fixture
def read_only():
    """A function that makes a folder read-only, for root too, until the function that it returns is called."""
    mounted = []

    def make(folder: Path):
        result = subprocess.run(["mount", "--bind", folder, folder], capture_output=True, text=True)
        if result.returncode != 0:
            pytest.skip(f"needs root, to mount a folder: {result.stderr.strip()}")
        mounted.append(folder)
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        return lambda: subprocess.run(["umount", "-l", mounted.pop()], check=True)

    yield make
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)


def test_the_folder_is_read_only_while_a_rank_starts_again(undisturbed, read_only, tmp_path):
    with Cluster(tmp_path / "cluster", workers=2) as cluster:
        job = submit(cluster, write(tmp_path, "faults"))
        cluster.wait(lambda: step(cluster, job) >= 50, "a checkpoint")
        make_writable = read_only(tmp_path / "runs")
        for pid in rank_pids(cluster.workers["w1"].popen.pid):
            os.kill(pid, signal.SIGKILL)
        view = cluster.wait(lambda: (v := cluster.json("get", job))["phase"] == "waiting" and v, "a job that waits")
        assert f"{tmp_path}/runs/faults: not writable: Read-only file system" in view["reason"], view["reason"]
        make_writable()
        finish(cluster, job, 200)
        check(cluster, job, undisturbed)


def test_training_goes_on_without_the_coordinator(tmp_path):
    with Cluster(tmp_path / "cluster", workers=2, metrics=True) as cluster:
        job = submit(cluster, write_job(tmp_path, name="alone", train={"max_steps": 1_000_000}, checkpoint={"save_steps": 1_000_000}))
        cluster.wait(lambda: step(cluster, job) > 0, "a step")
        cluster.coordinator.kill()
        seen = [step_of_rank(cluster, "w0")]
        for _ in range(4):
            time.sleep(5)
            seen.append(step_of_rank(cluster, "w0"))
        assert all(later > earlier for earlier, later in zip(seen, seen[1:])), seen
        cluster.start_coordinator()
        cluster.wait(lambda: step(cluster, job) >= seen[-1], "the steps that were made meanwhile")
        cluster.ctl("cancel", job)
        cluster.finish(job)
        assert cluster.json("get", job)["restarts"] == []
        steps = [p["step"] for p in cluster.points(job)]
        assert steps == list(range(1, steps[-1] + 1)), "a metric point is missing or doubled"


def step_of_rank(cluster: Cluster, worker: str) -> int:
    text = urllib.request.urlopen(f"http://{cluster.metrics_of(worker)}/metrics", timeout=20).read().decode()
    return int(float(re.search(r"^tacc_rank_step{.*} (\S+)$", text, re.M).group(1)))


def test_restarts_without_a_new_step_end_the_job(tmp_path):
    with Cluster(tmp_path / "cluster", workers=1, worker_env={"TACC_FAILPOINTS": "after_load=kill"}) as cluster:
        job = submit(cluster, write_job(tmp_path, name="stuck", workers=1, max_restarts=2))
        assert cluster.finish(job).returncode == 100
        view = cluster.json("get", job)
        assert view["failure_code"] == "restarts" and len(view["restarts"]) == 2, view
        assert "SIGKILL" in view["reason"] and "after 2 restarts without a new step" in view["reason"]
        assert view["last_log_lines"] == ["failpoint after_load: killed"], view["last_log_lines"]
        assert "[3/0] failpoint after_load: killed" in cluster.ctl("logs", job).stdout


def test_a_worker_that_dies_again_and_again_ends_the_job(tmp_path):
    """Whatever takes the daemon down with its rank may be the job's doing."""
    with Cluster(tmp_path / "cluster", workers=1) as cluster:
        job = submit(cluster, write_job(tmp_path, name="deadly", workers=1, max_restarts=1, train={"max_steps": 1_000_000},
                                        checkpoint={"save_steps": 1_000_000}))
        for attempt, far in ((1, 500), (2, 0)):
            cluster.wait(lambda: (view := cluster.json("get", job))["phase"] == "running" and view["attempt"] == attempt and view["step"] >= far,
                         f"attempt {attempt}")
            cluster.workers["w0"].kill()
            cluster.start_worker("w0")
        assert cluster.finish(job).returncode == 100
        view = cluster.json("get", job)
        assert "lost" in view["reason"] and "after 1 restart without a new step" in view["reason"], view["reason"]


def test_rank_that_hangs_while_it_loads(tmp_path):
    """The rank and what it was doing are named, and the attempt starts again."""
    with Cluster(tmp_path / "cluster", workers=1, coordinator_options=("--collective-timeout", "3")) as cluster:
        cluster.start_worker("w1", env={"TACC_FAILPOINTS": "before_load=sleep:600"})
        job = submit(cluster, write_job(tmp_path, name="stuck", workers=2))
        restarts = cluster.wait(lambda: cluster.json("get", job)["restarts"], "a restart")
        assert "no progress for 3 s: rank 1 on w1 stands still binding its program" in restarts[0]["cause"]
        cluster.workers["w1"].kill()
        cluster.start_worker("w1")
        assert cluster.finish(job).returncode == 0


def test_a_stop_that_cannot_be_saved_says_so(tmp_path):
    with Cluster(tmp_path / "cluster", workers=2, worker_env={"TACC_FAILPOINTS": "before_manifest=error"}) as cluster:
        job = cluster.submit(write_job(tmp_path, workers=2, train={"max_steps": 1000000}, checkpoint={"save_steps": 1000000}))
        cluster.wait(lambda: cluster.json("get", job).get("step", 0) > 2, "a few steps")
        cluster.ctl("cancel", job)
        assert cluster.finish(job).returncode == 100
        view = cluster.json("get", job)
        assert view["phase"] == "cancelled" and view["failure_code"] == "checkpoint"
        assert re.search(r"training stopped at step \d+, but its checkpoint could not be written: .*before_manifest", view["reason"])
        assert "none was saved before" in view["reason"]
        assert "could not be written" in cluster.ctl("cancel", job).stdout


def test_an_export_is_tried_again(tmp_path):
    with Cluster(tmp_path / "cluster", workers=1, worker_env={"TACC_FAILPOINTS": "before_export=error@1"}) as cluster:
        job = cluster.submit(write_job(tmp_path, workers=1, train={"max_steps": 2}))
        assert cluster.finish(job).returncode == 0
        view = cluster.json("get", job)
        assert Path(view["exported_path"], "model.safetensors").exists() and not view.get("restarts")
        assert [e for e in cluster.events(job) if "export_failed" in e["message"] and "before_export" in e["message"]]


def test_what_comes_in_the_way_of_an_export_costs_no_training(tmp_path):
    """It is seen before the start; what comes later leaves a checkpoint, and no attempt trains nothing."""
    path = write_job(tmp_path, workers=1, train={"max_steps": 2})
    foreign = tmp_path / "runs/tiny/hf/README.md"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("# My model")
    with Cluster(tmp_path / "cluster", workers=1, worker_env={"TACC_FAILPOINTS": "before_export=sleep:2"}) as cluster:
        job = cluster.submit(path)
        assert cluster.finish(job).returncode == 2
        view = cluster.json("get", job)
        assert 'hf: exists and holds "README.md"' in view["reason"] and not view.get("attempt")
        foreign.unlink()
        job = cluster.submit(path)
        cluster.wait(lambda: cluster.json("get", job).get("last_checkpoint"), "the last checkpoint")
        foreign.write_text("# My model")
        assert cluster.finish(job).returncode == 100
        view = cluster.json("get", job)
        assert view["failure_code"] == "export" and not view.get("restarts") and view["last_checkpoint"]["step"] == 2
        assert f"taccctl export {job} --out DIR" in view["reason"]
        cluster.ctl("export", job, "--out", tmp_path / "elsewhere")
        assert (tmp_path / "elsewhere/model.safetensors").exists()
        foreign.unlink()
        job = cluster.submit(path)
        assert cluster.finish(job).returncode == 0 and not cluster.points(job)
