"""A coordinator with TLS: who has a certificate of it trains, who has none learns and changes nothing."""

import asyncio
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import tacc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster import BUILD, Process, write_job

ALICE, BOB = 61_119, 61_120  # Users of this machine.


def run(*command, env=None, check=True) -> subprocess.CompletedProcess:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=200, env={**os.environ, **(env or {})})
    assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A coordinator and a worker, started as `init` has printed; the folder of certificates and the address."""
    folder = tmp_path_factory.mktemp("identity")
    pki = folder / "pki"
    said = run(BUILD / "tacc-coordinator", "init", "--out", pki).stdout
    run(BUILD / "tacc-coordinator", "init", "certificate", "--out", pki, "--role", "user", "--name", "alice", "--project", "vision")
    run(BUILD / "tacc-coordinator", "init", "certificate", "--out", pki, "--role", "user", "--name", "bob", "--project", "audio")
    address = f"127.0.0.1:{free_port()}"
    commands = {shlex.split(line)[0].rpartition("/")[2]: shlex.split(line.replace("127.0.0.1:7070", address))
                for line in said.splitlines() if line.startswith("  ") and " init " not in line}
    assert list(commands) == ["tacc-coordinator", "tacc-worker", "taccctl"], said
    env = {"XDG_STATE_HOME": str(folder / "state")}
    coordinator = Process(commands["tacc-coordinator"], folder / "coordinator.log", "listening", env)
    worker = Process([*commands["tacc-worker"], "--threads", "1", "--memory", "2GiB"], folder / "worker.log", "attached", env)
    assert run(*commands["taccctl"], env=env).stdout.startswith("JOB")
    yield pki, address
    assert worker.stop() == 0
    assert coordinator.stop() == 0


@pytest.fixture(autouse=True)
def of_no_other_service(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("TACC_ADDRESS", "TACC_TLS_DIR", "TACC_TLS_SERVER_NAME", "TACC_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


def ctl(service, who, *arguments, check=True, **env) -> subprocess.CompletedProcess:
    pki, address = service
    certificate = {"TACC_TLS_DIR": str(pki / who)} if who else {}
    return run(BUILD / "taccctl", *arguments, check=check, env={"TACC_ADDRESS": address, **certificate, **env})


def test_a_user_trains_and_others_of_its_project_alone_see_it(service, tmp_path):
    done = ctl(service, "alice", "submit", "--follow", write_job(tmp_path, workers=1))
    job = json.loads(ctl(service, "alice", "get", "tiny", "-o", "json").stdout)
    assert job["phase"] == "finished" and job["project"] == "vision", done.stderr
    assert [rank["worker"] for rank in job["ranks"]] == ["worker.cpu"]
    assert "project: " in ctl(service, "alice", "get", "tiny").stdout
    assert "vision" in ctl(service, "admin", "list").stdout
    assert "tiny" not in ctl(service, "bob", "list").stdout
    for command in (["get", "tiny-1"], ["cancel", "tiny-1"], ["logs", "tiny-1"], ["events", "tiny"]):
        refused = ctl(service, "bob", *command, check=False)
        assert refused.returncode == 3 and "no job tiny" in refused.stderr, command


def test_a_follower_comes_back_to_a_coordinator_that_was_away(tmp_path):
    """By TLS, for longer than a pause between two tries; with watch and logs."""
    pki, address = tmp_path / "pki", f"127.0.0.1:{free_port()}"
    run(BUILD / "tacc-coordinator", "init", "--out", pki)
    command = [BUILD / "tacc-coordinator", "--listen", address, "--tls-dir", pki / "server", "--state-dir", tmp_path / "coordinator", "--allow-path", "/"]
    coordinator = Process(command, tmp_path / "first.log", "listening", {})
    ctl((pki, address), "admin", "submit", write_job(tmp_path, workers=1))
    env = {**os.environ, "TACC_ADDRESS": address, "TACC_TLS_DIR": str(pki / "admin")}
    followers = [subprocess.Popen([BUILD / "taccctl", *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                 for words in (["watch", "tiny"], ["logs", "--follow", "tiny"])]
    time.sleep(1)
    coordinator.kill()
    time.sleep(2.5)
    coordinator = Process(command, tmp_path / "second.log", "listening", {})
    ctl((pki, address), "admin", "cancel", "tiny")
    for follower in followers:
        said, _ = follower.communicate(timeout=30)
        assert "trying to reconnect" in said
    assert coordinator.stop() == 0


def test_who_has_no_certificate_gets_nothing(service, tmp_path):
    for command in (["list"], ["submit", write_job(tmp_path, workers=1)], ["version"]):
        refused = ctl(service, "", *command, check=False)
        assert "tiny" not in refused.stdout
        assert refused.returncode == 5 or command == ["version"], refused.stderr
    run(BUILD / "tacc-coordinator", "init", "--out", tmp_path / "other")
    assert ctl(service, "", "list", check=False, TACC_TLS_DIR=str(tmp_path / "other/admin")).returncode == 5
    worker = run(BUILD / "tacc-worker", "--coordinator", service[1], "--tls-dir", service[0] / "admin", check=False)
    assert worker.returncode == 2 and "is of admin admin, which cannot be worker" in worker.stderr


def test_python_takes_a_certificate(service, monkeypatch):
    pki, address = service
    with tacc.Client(address, tls_dir=pki / "alice") as client:
        assert [worker.name for worker in client.workers()] == ["worker.cpu"]
    monkeypatch.setenv("TACC_TLS_DIR", str(pki / "bob"))
    monkeypatch.setenv("TACC_ADDRESS", address)
    with tacc.Client() as client:
        assert client.jobs() == []
    with pytest.raises(tacc.CoordinatorError):
        tacc.Client(address, tls_server_name="elsewhere")
    with pytest.raises(tacc.InputError, match="tls_dir"):
        tacc.Client(address, tls_dir=pki / "nobody")


def replace(pki, who, folder) -> None:
    """Puts another certificate into a folder, as `init renew` does it: at once."""
    (folder / "new").write_bytes((pki / who / "tls.pem").read_bytes())
    (folder / "new").chmod(0o600)
    (folder / "new").rename(folder / "tls.pem")


def copy_of(pki, who, folder) -> Path:
    """A holder's folder, as it is copied to the holder's machine."""
    shutil.copytree(pki / who, folder)
    folder.chmod(0o700)
    return folder


def test_python_takes_a_new_certificate_without_a_new_client(service, tmp_path):
    pki, address = service
    mine = copy_of(pki, "alice", tmp_path / "mine")
    path = write_job(tmp_path, workers=1, train={"max_steps": 1_000_000}, checkpoint={"save_steps": 1_000_000})
    job = json.loads(ctl(service, "alice", "submit", "-o", "json", path).stdout.splitlines()[0])["id"]
    with tacc.Client(address, tls_dir=mine) as client:
        watch = client.job(job).watch(events=False)
        next(watch)
        for turn in range(20):
            replace(pki, ("bob", "alice")[turn % 2], mine)
            # Each sees the jobs of its own project alone.
            assert (job in [found.id for found in client.jobs()]) == (turn % 2 == 1), turn
        (mine / "tls.pem").unlink()
        assert job in [found.id for found in client.jobs()], "the one before is good still"
        client.job(job).cancel(now=True)
        assert list(watch), "the stream went on all the time"


def test_python_takes_a_new_certificate_in_asyncio(service, tmp_path):
    pki, address = service
    mine = copy_of(pki, "alice", tmp_path / "mine")
    ctl(service, "alice", "submit", "--follow", write_job(tmp_path, workers=1))

    async def sees_jobs() -> list[bool]:
        async with tacc.AsyncClient(address, tls_dir=mine) as client:
            found = [bool(await client.jobs())]
            replace(pki, "bob", mine)
            return [*found, bool(await client.jobs())]

    assert asyncio.run(sees_jobs()) == [True, False]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be other users")
def test_another_user_of_the_machine_needs_a_certificate(service):
    pki, address = service
    # Not pytest's folder, which other users may not enter.
    home = Path(tempfile.mkdtemp(prefix="tacc-alice-", dir="/tmp"))
    try:
        home.chmod(0o755)
        job = write_job(home / "job", name="hers", workers=1)
        mine = copy_of(pki, "alice", home / "mine")
        for path in [mine, *mine.iterdir()]:
            os.chown(path, ALICE, ALICE)

        def as_user(user, *arguments, **env) -> subprocess.CompletedProcess:
            return subprocess.run([str(BUILD / "taccctl"), *map(str, arguments)], capture_output=True, text=True, timeout=200, user=user, group=user,
                                  extra_groups=[], cwd=home, env={"HOME": str(home), "PATH": "/usr/bin:/bin", "TACC_ADDRESS": address, **env})

        done = as_user(ALICE, "submit", "--follow", job, TACC_TLS_DIR=str(mine))
        assert done.returncode == 0, done.stderr
        assert json.loads(ctl(service, "alice", "get", "hers", "-o", "json").stdout)["project"] == "vision"
        before = ctl(service, "admin", "list").stdout
        for user, env, code in ((ALICE, {}, 5), (BOB, {}, 5), (BOB, {"TACC_TLS_DIR": str(mine)}, 2), (BOB, {"TACC_TLS_DIR": str(pki / "alice")}, 2)):
            for command in (["list"], ["submit", job], ["cancel", "hers"]):
                refused = as_user(user, *command, **env)
                assert refused.returncode == code and "hers" not in refused.stdout, (user, env, command, refused.stderr)
        assert ctl(service, "admin", "list").stdout == before
    finally:
        shutil.rmtree(home)


@pytest.fixture
def trust(service, tmp_path):
    """A folder with the coordinator's ca.crt and a user's token."""
    pki, _ = service
    folder = tmp_path / "trust"
    folder.mkdir(0o700)
    (folder / "ca.crt").write_bytes((pki / "alice/ca.crt").read_bytes())
    write_token(pki, folder / "token", "--role", "user", "--name", "alice", "--project", "vision")
    return folder


def write_token(pki, path, *holder) -> None:
    path.write_text(run(BUILD / "tacc-coordinator", "init", "token", "--out", pki, *holder).stdout)
    path.chmod(0o600)


def test_a_token_stands_for_a_certificate(service, trust, tmp_path):
    with_token = ("--tls-dir", trust, "--token-file", trust / "token")
    done = ctl(service, "", *with_token, "submit", write_job(tmp_path, workers=1))
    assert json.loads(ctl(service, "alice", "get", "tiny", "-o", "json").stdout)["project"] == "vision", done.stderr
    ctl(service, "", *with_token, "cancel", "tiny")
    assert "tiny" not in ctl(service, "bob", "list").stdout
    write_token(service[0], trust / "token", "--role", "viewer", "--name", "v")
    refused = ctl(service, "", "cancel", "tiny", check=False, TACC_TLS_DIR=str(trust), TACC_TOKEN_FILE=str(trust / "token"))
    assert refused.returncode == 1 and "viewer v may not end a job" in refused.stderr
    (trust / "token").write_text("x.y.z")
    refused = ctl(service, "", *with_token, "list", check=False)
    assert refused.returncode == 1 and "the token is none of this service's" in refused.stderr
    (trust / "token").chmod(0o644)
    refused = ctl(service, "", *with_token, "list", check=False)
    assert refused.returncode == 2 and "chmod 600" in refused.stderr
    refused = ctl(service, "", "--token-file", trust / "token", "list", check=False)
    assert refused.returncode == 2 and "a token goes over TLS alone" in refused.stderr


def test_python_takes_a_token(service, trust, monkeypatch):
    pki, address = service
    token = trust / "token"
    with tacc.Client(address, tls_dir=trust, token_file=token) as client:
        assert [worker.name for worker in client.workers()] == ["worker.cpu"]
        write_token(pki, token, "--role", "metrics", "--name", "m")
        with pytest.raises(tacc.TaccError, match="metrics m may not"):
            client.workers()
        token.chmod(0o644)
        with pytest.raises(tacc.InputError, match="chmod 600"):
            client.workers()
    with pytest.raises(tacc.InputError, match="chmod 600"):
        tacc.Client(address, tls_dir=trust, token_file=token)
    monkeypatch.setenv("TACC_TOKEN_FILE", str(token))
    with pytest.raises(tacc.InputError, match="a token goes over TLS alone"):
        tacc.Client(address)


def test_init_gives_no_worker_a_token(service):
    for wrong in (["worker", "--name", "w"], ["user", "--name", "w", "--hours", "25"], ["user", "--name", "*"], ["admin", "--name", "a", "--project", "p"]):
        refused = run(BUILD / "tacc-coordinator", "init", "token", "--out", service[0], "--role", *wrong, check=False)
        assert refused.returncode == 2 and refused.stdout == "", wrong


def test_a_key_that_everybody_may_read_is_not_used(service, tmp_path):
    pki, _ = service
    (tmp_path / "mixed").mkdir()
    for name in ("ca.crt", "tls.pem"):
        (tmp_path / "mixed" / name).write_bytes((pki / "alice" / name).read_bytes())
    (tmp_path / "mixed/tls.pem").chmod(0o644)
    refused = ctl(service, "", "--tls-dir", tmp_path / "mixed", "list", check=False)
    assert refused.returncode == 2 and "chmod 600" in refused.stderr
    with pytest.raises(tacc.InputError, match="chmod 600"):
        tacc.Client(service[1], tls_dir=tmp_path / "mixed")


def test_init_says_what_it_did_and_overwrites_nothing(tmp_path):
    made = run(BUILD / "tacc-coordinator", "init", "--out", tmp_path / "pki", "--host", "10.0.0.1", "--days", "30")
    assert "--listen 10.0.0.1:7070" in made.stdout and "--insecure" in made.stdout
    assert re.search(r"until \d{4}-\d\d-\d\d", made.stdout)
    by_ipv6 = run(BUILD / "tacc-coordinator", "init", "--out", tmp_path / "pki-6", "--host", "2001:db8::1").stdout
    assert shlex.split(by_ipv6[by_ipv6.index("--listen ") :])[1] == "[2001:db8::1]:7070"
    key = (tmp_path / "pki/ca/ca.key").read_bytes()
    for command in (["init"], ["init", "certificate", "--role", "admin", "--name", "admin"]):
        again = run(BUILD / "tacc-coordinator", *command, "--out", tmp_path / "pki", check=False)
        assert again.returncode == 2 and "is there already; nothing was changed" in again.stderr
    assert (tmp_path / "pki/ca/ca.key").read_bytes() == key
    before = (tmp_path / "pki/worker/tls.pem").read_bytes()
    run(BUILD / "tacc-coordinator", "init", "renew", "--out", tmp_path / "pki", "--name", "worker")
    assert (tmp_path / "pki/worker/tls.pem").read_bytes() != before
    wrong = run(BUILD / "tacc-coordinator", "init", "certificate", "--out", tmp_path / "pki", "--role", "user", "--name", "Eve*", check=False)
    assert wrong.returncode == 2 and 'name = "Eve*"' in wrong.stderr
    assert run(BUILD / "tacc-coordinator", "init", check=False).returncode == 2
