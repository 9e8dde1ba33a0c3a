"""Two services that do not know each other, on one file system: one at a time trains in a folder, and one that died does not keep it."""

import json
import os
import signal
import socket
from pathlib import Path

import pytest
from cluster import Cluster, write_job

LONG = {"train": {"max_steps": 1_000_000}, "checkpoint": {"save_steps": 50}}


@pytest.fixture
def services(tmp_path):
    with Cluster(tmp_path / "first", workers=1) as first, Cluster(tmp_path / "second", workers=1) as second:
        yield first, second


def processes(cluster: Cluster) -> list[int]:
    """All of it: the coordinator, the daemon, its rank."""
    daemon = cluster.workers["w0"].popen.pid
    ranks = Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split()
    return [cluster.coordinator.popen.pid, daemon, *map(int, ranks)]


def train(cluster: Cluster, path: Path) -> str:
    job = cluster.submit(path)
    cluster.wait(lambda: "last_checkpoint" in cluster.json("get", job), "a checkpoint", 120)
    return job


def goes_on(cluster: Cluster, job: str) -> None:
    step = cluster.json("get", job)["step"]
    cluster.wait(lambda: cluster.json("get", job)["step"] > step + 20, "further steps")


def writer(folder: Path) -> dict:
    return json.loads((folder / "writer.json").read_text())


def steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines() if "grad_norm" in line]


def used_by(folder: Path, job: str, attempt: int) -> str:
    its = writer(folder)
    assert (its["job"], its["attempt"], its["host"]) == (job, attempt, socket.gethostname())
    return f"checkpoint.dir {folder} is used by job {job} of another service (attempt {attempt}, pid {its['pid']} on {its['host']}, since 2"


def test_the_second_is_refused_and_the_first_goes_on(services, tmp_path):
    first, second = services
    path, folder = write_job(tmp_path, workers=1, **LONG), tmp_path / "runs/tiny"
    job = train(first, path)
    # Who trains says so, not its coordinator.
    os.kill(first.coordinator.popen.pid, signal.SIGSTOP)
    try:
        refused = second.ctl("submit", "--follow", path, check=False)
    finally:
        os.kill(first.coordinator.popen.pid, signal.SIGCONT)
    assert refused.returncode == 2, refused.stderr
    assert used_by(folder, job, 1) in refused.stderr and "cancel that one or wait for its end, or give another checkpoint.dir" in refused.stderr
    goes_on(first, job)
    view = first.json("get", job)
    assert (view["phase"], view["attempt"], view["restarts"]) == ("running", 1, [])
    assert {name.name.split(".")[1] for name in folder.glob("step-*")} == {"a1"}

    # Nor does it lose the folder between two attempts.
    other = second.submit(path)
    second.wait(lambda: used_by(folder, job, 1) in second.json("get", other).get("reason", ""), "the reason why it waits")
    os.kill(processes(first)[-1], signal.SIGKILL)
    first.wait(lambda: first.json("get", job)["attempt"] == 2 and first.json("get", job)["phase"] == "running", "the next attempt")
    assert second.finish(other).returncode == 2
    goes_on(first, job)

    # When it has ended, the folder is anybody's at once.
    first.ctl("cancel", job)
    first.finish(job)
    saved = first.json("get", job)["last_checkpoint"]
    assert writer(folder)["ended"]
    last = train(second, path)
    (started,) = [e["message"] for e in second.events(last) if e["type"] == "attempt_started"]
    assert started.endswith(f"from {saved['name']}") and not [e for e in second.events(last) if e["type"] == "waiting"]
    second.ctl("cancel", last)
    second.finish(last)
    written = steps(folder)
    assert written == list(range(1, len(written) + 1))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "paused"])
def test_one_that_does_not_live_is_taken_over_from(services, tmp_path, end):
    first, second = services
    path, folder = write_job(tmp_path, workers=1, **LONG), tmp_path / "runs/tiny"
    job = train(first, path)
    victims = processes(first)
    for pid in victims:
        os.kill(pid, end)
    try:
        other = second.submit(path)
        # What the other one might still write has other names.
        second.wait(lambda: second.json("get", other).get("last_checkpoint", {}).get("name", "").endswith(".a2"), "a checkpoint of the second", 120)
        (waited,) = [e["message"] for e in second.events(other) if e["type"] == "waiting"]
        assert f"is used by job {job} of another service (attempt 1, pid {victims[-1]} on " in waited, waited
        assert "it loses the folder when it has not renewed writer.json for 30 s" in waited, waited
        taken = writer(folder)
        assert (taken["attempt"], taken["ended"]) == (2, False) and taken["pid"] == processes(second)[-1]
    finally:
        if end == signal.SIGSTOP:
            for pid in victims:
                os.kill(pid, signal.SIGCONT)
    if end == signal.SIGKILL:
        first.coordinator.popen.wait()
        first.start_coordinator()
        first.workers["w0"].popen.wait()
        first.start_worker("w0")
    # It finds out, writes nothing, and waits.
    view = first.wait(lambda: (found := first.json("get", job))["phase"] == "waiting" and "another service (attempt 2, pid" in found["reason"] and found,
                      "the first to wait", 90)
    assert f"checkpoint.dir {folder} is used by job {other} of another service" in view["reason"], view["reason"]
    goes_on(second, other)
    assert second.json("get", other)["restarts"] == []
    assert writer(folder)["pid"] == taken["pid"]
    second.ctl("cancel", "--now", other)
    second.finish(other)
    written = steps(folder)
    assert written == list(range(1, len(written) + 1)), "one has written into the other's metrics"
    first.ctl("cancel", job)
    assert first.finish(job).returncode == 101
