"""Another version comes to the coordinator and to the workers, one after the other, while a job trains: its losses are those of an undisturbed run, to the bit."""

import json
import shutil
import subprocess
import time
from pathlib import Path

from cluster import BUILD, Cluster, write_job

TRAIN = {"max_steps": 400, "learning_rate": 0.001, "deterministic": True}


def losses(cluster: Cluster, job: str) -> dict[int, tuple]:
    """Of each step, as it was done last."""
    return {p["step"]: (p["loss"], p["batch_hash"]) for p in cluster.points(job)}


def wait_for_step(cluster: Cluster, job: str, step: int) -> None:
    end = time.monotonic() + 60
    while int(cluster.json("get", job).get("step", 0)) < step:
        assert time.monotonic() < end, cluster.logs()
        time.sleep(0.05)


def ranks(cluster: Cluster) -> list[str]:
    """Process ids of the workers' ranks."""
    found = []
    for worker in cluster.workers.values():
        pid = worker.popen.pid
        found += Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return found


def test_upgrade_machine_by_machine(tmp_path):
    with Cluster(tmp_path / "cluster", workers=2) as cluster:
        undisturbed = cluster.submit(write_job(tmp_path / "one", name="undisturbed", train=TRAIN, checkpoint={"save_steps": 40}))
        assert cluster.finish(undisturbed).returncode == 0
        job = cluster.submit(write_job(tmp_path / "two", name="upgraded", train=TRAIN, checkpoint={"save_steps": 40}))
        wait_for_step(cluster, job, 20)

        copy = tmp_path / "backup.db"
        backup = [BUILD / "tacc-coordinator", "backup", "--state-dir", tmp_path / "cluster/coordinator", "--out", copy]
        assert "wrote" in subprocess.run(backup, check=True, capture_output=True, text=True).stdout
        again = subprocess.run([backup[0], *backup[2:4], backup[1], *backup[4:]], capture_output=True, text=True)  # The folder before the command.
        assert again.returncode == 2 and again.stderr == f"error: {copy} is there already\n"

        before = ranks(cluster)
        assert len(before) == 2
        cluster.coordinator.stop()
        cluster.release = "next"
        cluster.start_coordinator()
        wait_for_step(cluster, job, int(cluster.json("get", job)["step"]) + 5)
        assert ranks(cluster) == before and cluster.json("get", job)["attempt"] == 1
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
    with Cluster(tmp_path / "restored", workers=0) as cluster:
        assert losses(cluster, undisturbed)
        view = cluster.json("get", job)
        assert view["attempt"] == 1 and 20 <= int(view["step"]) < 400
