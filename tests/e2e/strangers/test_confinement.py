"""A service that allows folders trains beneath them as ever, and touches nothing else."""

import json
import os
import pwd
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import tacc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster import Cluster, rank_of, write_job

SECRET = "root:x:not for a job"


def options(folder: Path, *more) -> dict:
    roots = ("--allow-path", str(folder))
    return {"coordinator_options": roots, "worker_options": (*roots, *map(str, more))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("allowed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, folder):
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2, **options(folder)) as c:
        yield c


def failure(cluster: Cluster, path: Path) -> str:
    """Of a job that is refused without an attempt."""
    result = cluster.ctl("submit", "--follow", path, check=False)
    assert result.returncode == 2, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}\n{cluster.logs()}"
    assert SECRET not in result.stdout + result.stderr + cluster.logs()
    return result.stderr


def refusal(cluster: Cluster, path: Path) -> str:
    """The same of a client that leaves it to the service to look at the files. taccctl looks itself, with its user's rights."""
    with tacc.Client(cluster.address, start=False) as client:
        job = client.submit(path)
        with pytest.raises(tacc.JobFailedError) as failed:
            job.wait(progress=False)
        assert SECRET not in f"{failed.value} {job.events()} {job.status()} {cluster.logs()}"
        assert job.status().attempt == 0
    return str(failed.value)


def test_a_job_beneath_the_folder_trains_saves_and_exports(cluster, folder):
    job = cluster.submit(write_job(folder / "job", name="confined"))
    assert cluster.finish(job).returncode == 0, cluster.logs()
    got = cluster.json("get", job)
    assert (Path(got["exported_path"]) / "model.safetensors").exists()
    assert not cluster.warnings(job)
    assert (folder / "job/runs/confined/logs").is_dir()
    # And the checkpoint is one to go on from.
    again = cluster.submit(write_job(folder / "job", name="confined", train={"max_steps": 16}))
    assert cluster.finish(again).returncode == 0, cluster.logs()
    assert [point["step"] for point in cluster.points(again)][0] > 8


@pytest.mark.parametrize("changes", [
    {"model": {"path": "OUTSIDE"}},
    {"data": {"path": "OUTSIDE"}},
    {"data": {"eval_path": "OUTSIDE"}},
    {"checkpoint": {"dir": "OUTSIDE/run"}},
    {"checkpoint": {"dir": "runs/../../../up/run"}},
    {"checkpoint": {"resume_from_checkpoint": "OUTSIDE"}},
    {"model": {"path": None, "graph": "OUTSIDE/model.graph"}},
    {"train": {"lr_factors_path": "OUTSIDE/factors.txt"}},
    {"train": {"lora": {"init_from": "OUTSIDE"}}, "model": {"weights": "pretrained"}},
])
def test_a_path_elsewhere_is_refused_by_name(cluster, folder, tmp_path, changes):
    outside = tmp_path / "outside"
    outside.mkdir()
    # Whoever reads one of them says what it found.
    for name in ("adapter_config.json", "adapter_model.safetensors", "config.json", "factors.txt", "index.json", "manifest.json", "model.graph", "model.safetensors"):
        (outside / name).write_text(SECRET)
    before = {path: path.read_text() for path in outside.rglob("*")}
    path = write_job(folder / "elsewhere", name="elsewhere")
    job = json.loads(path.read_text())
    for section, values in changes.items():
        # None: without that field.
        job[section] = {k: v for k, v in (job[section] | values).items() if v is not None}
    path.write_text(json.dumps(job).replace("OUTSIDE", str(outside)))
    message = refusal(cluster, path)
    assert "not in a folder that is allowed" in message or "leads" in message, message
    assert str(folder) in message and "--allow-path" in message
    assert {path: path.read_text() for path in outside.rglob("*")} == before
    assert not (folder.parent / "up").exists()


def test_a_link_out_of_the_folder_is_refused(cluster, folder, tmp_path):
    write_job(tmp_path / "source")
    job = write_job(folder / "linked", name="linked", model={"path": "link"})
    (folder / "linked/link").symlink_to(tmp_path / "source/model")
    assert "symbolic link" in failure(cluster, job)


def test_what_a_file_holds_that_is_no_graph_is_not_told(cluster, folder):
    path = write_job(folder / "graph", name="graph")
    (folder / "graph/secret").write_text(SECRET + "\n")
    path.write_text(json.dumps({**json.loads(path.read_text()), "model": {"graph": "secret", "weights": "random"}}))
    assert "secret:1:1: the text must start with" in failure(cluster, path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts ranks as another user")
def test_ranks_run_as_another_user_and_so_are_their_files():
    nobody = pwd.getpwnam("nobody")
    folder = Path(tempfile.mkdtemp(prefix="tacc-rank-user-"))
    try:
        folder.chmod(0o755)
        path = write_job(folder / "job", name="user", workers=1, train={"max_steps": 4000}, checkpoint={"save_steps": 20})
        os.makedirs(folder / "job/runs")
        os.chown(folder / "job/runs", nobody.pw_uid, nobody.pw_gid)
        with Cluster(folder / "cluster", workers=1, **options(folder / "job", "--rank-user", "nobody")) as cluster:
            job = cluster.submit(path)
            cluster.wait(lambda: cluster.json("get", job)["step"] > 25, "some steps")
            status = dict(line.split(":", 1) for line in Path(f"/proc/{rank_of(cluster.workers['w0'])}/status").read_text().splitlines())
            assert status["Uid"].split() == [str(nobody.pw_uid)] * 4
            assert status["Gid"].split() == [str(nobody.pw_gid)] * 4
            assert status["NoNewPrivs"].strip() == "1" and int(status["CapEff"], 16) == 0
            cluster.ctl("cancel", job)
            cluster.finish(job)
        run = folder / "job/runs/user"
        checkpoints = list(run.glob("step-*"))
        assert checkpoints
        assert {p.stat().st_uid for p in (run, run / "job.json", run / "logs", *checkpoints)} == {nobody.pw_uid}
    finally:
        shutil.rmtree(folder)


def test_a_daemon_says_what_it_cannot_do(tmp_path):
    cluster = Cluster(tmp_path / "cluster", workers=0)
    try:
        for flags, message in ((("--allow-path", "/no/such/folder"), "not a folder"), (("--rank-user", "no-such-user"), "no-such-user")):
            cluster.worker_options = flags
            with pytest.raises(AssertionError, match=message):
                cluster.start_worker("w0")
    finally:
        cluster.stop()


def test_a_newline_in_a_path_forges_no_line(cluster, folder):
    message = failure(cluster, write_job(folder / "newline", name="newline", checkpoint={"dir": "runs/a\nerror: forged"}))
    assert "\nerror: forged" not in message
    assert all("\nerror: forged" not in log.read_text() for log in cluster.folder.glob("*.log"))
