"""Another version comes to the coordinator and to the workers, one after the other, while a job trains: its losses are those of an undisturbed run, to the bit."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from cluster import BUILD, Cluster, binary, write_job

# From this build to the same one that says that it is of another version; and, where there is a build of the release before, from that one to this.
RELEASES = [("", "next")] + [(previous, "") for previous in [os.environ.get("TACC_PREVIOUS_BUILD")] if previous]
TRAIN = {"max_steps": 400, "learning_rate": 0.001, "deterministic": True}


def losses(cluster: Cluster, job: str) -> dict[int, tuple]:
    """Of each step, as it was done last."""
    return {p["step"]: (p["loss"], p["batch_hash"]) for p in cluster.points(job)}


def wait_for_step(cluster: Cluster, job: str, step: int) -> None:
    end = time.monotonic() + 60
    while int(cluster.json("get", job).get("step", 0)) < step:
        assert time.monotonic() < end, cluster.logs()
        time.sleep(0.05)


def versions(cluster: Cluster) -> set[str]:
    """Of the workers' daemons, once all are attached."""
    end = time.monotonic() + 60
    while "" in (found := {json.loads(line)["version"] for line in cluster.ctl("workers", "-o", "json").stdout.splitlines()}):
        assert time.monotonic() < end, cluster.logs()
        time.sleep(0.05)
    return found


def ranks(cluster: Cluster) -> list[str]:
    """Process ids of the workers' ranks."""
    found = []
    for worker in cluster.workers.values():
        pid = worker.popen.pid
        found += Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return found


@pytest.mark.parametrize(("before", "after"), RELEASES, ids=["next", "previous"][: len(RELEASES)])
def test_upgrade_machine_by_machine(tmp_path, before, after):
    with Cluster(tmp_path / "cluster", workers=2, release=before) as cluster:
        undisturbed = cluster.submit(write_job(tmp_path / "one", name="undisturbed", train=TRAIN, checkpoint={"save_steps": 40}))
        assert cluster.finish(undisturbed).returncode == 0
        job = cluster.submit(write_job(tmp_path / "two", name="upgraded", train=TRAIN, checkpoint={"save_steps": 40}))
        wait_for_step(cluster, job, 20)

        copy = tmp_path / "backup.db"
        backup = [binary("tacc-coordinator", None, before), "backup", "--state-dir", tmp_path / "cluster/coordinator", "--out", copy]
        assert "wrote" in subprocess.run(backup, check=True, capture_output=True, text=True).stdout
        again = subprocess.run([backup[0], *backup[2:4], backup[1], *backup[4:]], capture_output=True, text=True)  # The folder before the command.
        assert again.returncode == 2 and again.stderr == f"error: {copy} is there already\n"

        running = ranks(cluster)
        assert len(running) == 2
        cluster.coordinator.stop()
        cluster.release = after
        cluster.start_coordinator()
        wait_for_step(cluster, job, int(cluster.json("get", job)["step"]) + 5)
        assert ranks(cluster) == running and cluster.json("get", job)["attempt"] == 1
        workers = [json.loads(line) for line in cluster.ctl("workers", "-o", "json").stdout.splitlines()]
        assert {worker["state"] for worker in workers} == {"busy"}
        assert all("nothing is started there before both are the same" in worker["trouble"] for worker in workers)

        cluster.workers["w0"].stop()
        cluster.start_worker("w0")
        cluster.workers["w1"].stop()
        cluster.start_worker("w1")
        assert cluster.finish(job).returncode == 0
        ended = cluster.json("get", job)
        assert ended["phase"] == "finished" and ended["attempt"] == 2, ended
        assert any("another version of tacc compiled it" in event["message"] for event in cluster.events(job))
        assert losses(cluster, job) == losses(cluster, undisturbed)

    # A coordinator with the backup knows the job as it was then.
    restored = tmp_path / "restored/coordinator"
    restored.mkdir(parents=True)
    shutil.copy(copy, restored / "tacc.db")
    with Cluster(tmp_path / "restored", workers=0, release=after) as cluster:
        assert losses(cluster, undisturbed)
        view = cluster.json("get", job)
        assert view["attempt"] == 1 and 20 <= int(view["step"]) < 400


def test_daemons_are_replaced_beside_their_ranks(tmp_path):
    """No rank ends: both programs of a worker lie behind a link that then leads to the next version's, and SIGUSR2 tells its daemon."""
    programs = tmp_path / "programs"
    programs.symlink_to(BUILD)
    with Cluster(tmp_path / "cluster", workers=0) as cluster:
        for name in ("w0", "w1"):
            cluster.start_worker(name, programs=programs)
        undisturbed = cluster.submit(write_job(tmp_path / "one", name="undisturbed", train=TRAIN, checkpoint={"save_steps": 40}))
        assert cluster.finish(undisturbed).returncode == 0
        job = cluster.submit(write_job(tmp_path / "two", name="upgraded", train=TRAIN, checkpoint={"save_steps": 40}))
        wait_for_step(cluster, job, 20)
        before, running = versions(cluster), ranks(cluster)
        cluster.coordinator.stop()
        cluster.release = "next"
        cluster.start_coordinator()

        cluster.workers["w0"].popen.send_signal(signal.SIGUSR2)  # The same version, as of a new configuration of its machine.
        wait_for_step(cluster, job, int(cluster.json("get", job)["step"]) + 5)
        assert versions(cluster) == before
        (tmp_path / "link").symlink_to(BUILD / "next")
        (tmp_path / "link").rename(programs)
        for worker in cluster.workers.values():
            worker.popen.send_signal(signal.SIGUSR2)
        end = time.monotonic() + 60
        while versions(cluster) & before:
            assert time.monotonic() < end, cluster.logs()
            time.sleep(0.05)
        assert ranks(cluster) == running
        assert cluster.finish(job).returncode == 0
        ended = cluster.json("get", job)
        assert ended["phase"] == "finished" and ended["attempt"] == 1, ended
        assert losses(cluster, job) == losses(cluster, undisturbed)
