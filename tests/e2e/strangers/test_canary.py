"""No secret of a service is in anything that it says, shows or leaves, but in files that their holder alone can read, and those are listed here."""

import base64
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import urllib.request
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import tacc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster import BUILD, ROOT, Process, rank_of, write_model

CANARY = "canary-7d1f0c5a2b"
ENVIRONMENT = {name: CANARY for name in ("TACC_TOKEN", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY")}
SAMPLES, SEQ_LEN = 8, 16
# Who holds which, beneath the test's folder. Nothing else may.
HOLDERS = {
    "key": r"pki/(ca/ca\.key|(server|worker|admin|user|alice)/tls\.pem)",
    "token": r"coordinator/tacc\.db(-wal|-shm)?",
    "bearer": r"trust/token",
}


@pytest.fixture
def crashes_leave_files(tmp_path, monkeypatch):
    """Of whoever lets them, as far as the system does: in the folder in which the daemons were started."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def run(*command, **env) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=100, env={**os.environ, **env})
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def forms(text: str) -> set[bytes]:
    """As it may be written down: base64 and hexadecimal too."""
    raw = text.encode()
    return {raw, base64.b64encode(raw).rstrip(b"="), raw.hex().encode()}


def keys(pki: Path) -> set[bytes]:
    """Of each private key a line that no other has, and the bytes that it stands for."""
    found = set()
    for path in (p for p in pki.rglob("*") if p.is_file()):
        for body in re.findall(r"-----BEGIN [A-Z ]*PRIVATE KEY-----\n(.*?)-----END", path.read_text(), re.S):
            lines = body.split()
            middle = lines[len(lines) // 2]
            found |= {middle.encode(), base64.b64decode(middle + "=" * (-len(middle) % 4))}
    return found


def tokens(database: Path) -> set[str]:
    """What the coordinator has handed on: the secret by which ranks find one another, and the tokens for the job's client."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        known = resources.files("grpc_tools") / "_proto"
        assert protoc.main(["protoc", f"-I{ROOT}/proto", f"-I{known}", f"--descriptor_set_out={folder}/set", "--include_imports", "tacc/v1/fact.proto"]) == 0
        files = descriptor_pb2.FileDescriptorSet.FromString(Path(folder, "set").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    fact_class = message_factory.GetMessageClass(pool.FindMessageTypeByName("tacc.v1.Fact"))
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        facts = [fact_class.FromString(fact) for (fact,) in connection.execute("SELECT fact FROM facts")]
    secrets = {fact.rank_listening.secret for fact in facts if fact.HasField("rank_listening")}
    clients = {fact.rank_ready.endpoint.token for fact in facts if fact.HasField("rank_ready")}
    assert secrets and clients and all(len(text) == 32 for text in secrets | clients), (secrets, clients)
    return secrets | clients


def is_private(path: Path, root: Path) -> bool:
    """It, or a folder on the way to it, is its owner's alone."""
    way = [path, *path.parents]
    return any(step.stat().st_mode & 0o077 == 0 for step in way[: way.index(root)])


def metrics_address(log: Path) -> str:
    return re.search(r"metrics (?:at|on) (http://\S+/metrics)", log.read_text()).group(1)


class Service:
    """A coordinator with certificates and metrics, and two workers that let ranks touch one folder."""

    def __init__(self, folder: Path):
        self.folder, self.pki = folder, folder / "pki"
        self.said = [run(BUILD / "tacc-coordinator", "init", "--out", self.pki)]
        self.said.append(run(BUILD / "tacc-coordinator", "init", "certificate", "--out", self.pki, "--role", "user", "--name", "alice", "--project", "vision"))
        metrics, roots = ("--metrics-listen", "127.0.0.1:0"), ("--allow-path", folder / "inputs", "--allow-path", folder / "runs")
        self.coordinator = Process([BUILD / "tacc-coordinator", "--tls-dir", self.pki / "server", "--listen", "127.0.0.1:0", "--state-dir", folder / "coordinator", *metrics, *roots],
                                   folder / "coordinator.log", "listening", ENVIRONMENT)
        self.address = self.coordinator.answer
        self.workers = {name: Process([BUILD / "tacc-worker", "--tls-dir", self.pki / "worker", "--coordinator", self.address, "--name", f"worker.{name}", "--threads", 1, "--memory", "2GiB",
                                       "--state-dir", folder / name, *metrics, *roots], folder / f"{name}.log", "attached", ENVIRONMENT)
                        for name in ("a", "b")}

    def ctl(self, who: str, *arguments) -> None:
        self.said.append(run(BUILD / "taccctl", *arguments, TACC_TLS_DIR=str(self.pki / who), TACC_ADDRESS=self.address))

    def call_by_token(self) -> str:
        """The token of a user, who has called by it."""
        token = self.folder / "trust/token"
        token.parent.mkdir()
        shutil.copy(self.pki / "alice/ca.crt", token.parent)
        token.touch(mode=0o600)
        token.write_text(run(BUILD / "tacc-coordinator", "init", "token", "--out", self.pki, "--role", "user", "--name", "alice", "--project", "vision"))
        for command, code in ((("list",), 0), (("get", "missing"), 3)):
            done = subprocess.run([BUILD / "taccctl", "--address", self.address, "--tls-dir", token.parent, "--token-file", token, *command], capture_output=True, text=True, timeout=100)
            assert done.returncode == code, done.stderr
            self.said.append(done.stdout + done.stderr)
        return token.read_text().strip()

    def crash(self) -> None:
        """A coordinator and a worker; a rank has crashed before."""
        for process in (self.workers["a"], self.coordinator):
            process.popen.send_signal(signal.SIGSEGV)
            assert process.popen.wait(timeout=30) == -signal.SIGSEGV
        assert self.workers["b"].stop() == 0, self.workers["b"].log.read_text()[-3000:]

    def look(self, job: str) -> None:
        """At all that is shown."""
        for who in ("alice", "admin"):
            for command in (("get", job), ("get", job, "-o", "json"), ("events", job, "-o", "json"), ("logs", job), ("list",), ("workers", "-o", "json"), ("version",)):
                self.ctl(who, *command)
        for log in ("coordinator.log", "a.log", "b.log"):
            self.said.append(urllib.request.urlopen(metrics_address(self.folder / log)).read().decode())
        for worker in self.workers.values():
            for process in (worker.popen.pid, rank_of(worker)):
                self.said.append(Path(f"/proc/{process}/cmdline").read_text())
            self.said.append(Path(f"/proc/{rank_of(worker)}/environ").read_text())


def core_limits(process: int) -> tuple[str, ...]:
    """The soft and the hard limit of the size of its core files, in bytes."""
    return re.search(r"^Max core file size +(\S+) +(\S+)", Path(f"/proc/{process}/limits").read_text(), re.M).groups()


def test_secrets_are_with_their_holders_alone(tmp_path, crashes_leave_files):
    write_model(tmp_path / "inputs/model")
    (tmp_path / "runs").mkdir()
    service = Service(tmp_path)
    spec = {"name": "canary", "model": {"path": str(tmp_path / "inputs/model"), "weights": "random"}, "data": {"client": {}, "seq_len": SEQ_LEN},
            "train": {"max_steps": 100, "global_batch_size": SAMPLES, "learning_rate": 0.003}, "compute": {"bf16": False}, "dist": {"dp": {"size": 1}, "fsdp": {"size": 2}},
            "checkpoint": {"dir": str(tmp_path / "runs/canary"), "save_steps": 2}, "resources": {"workers": 2}}
    batch = {name: np.full((SAMPLES, SEQ_LEN), 5, np.int32) for name in ("tokens", "targets")}
    with tacc.Client(service.address, tls_dir=service.pki / "alice") as client:
        job = client.submit(spec)
        with tacc.Session(job) as session:
            for _ in range(3):
                session.step(batch)
            service.look(job.id)
            starts = [tmp_path / name / "run/start.json" for name in service.workers]
            assert all(is_private(start, tmp_path) for start in starts)
            for process in (service.coordinator.popen.pid, service.workers["a"].popen.pid, rank_of(service.workers["b"])):
                assert core_limits(process) == ("1", "1")
            os.kill(rank_of(service.workers["b"]), signal.SIGSEGV)
            with pytest.raises(tacc.SessionRestartedError):
                session.step(batch)
            session.step(batch)  # Of the next attempt, which has tokens of its own.
            service.look(job.id)
        assert job.status().restarts
        job.cancel(now=True)
        with pytest.raises(tacc.JobCancelledError):
            job.wait(timeout=60, progress=False)
        service.ctl("admin", "get", job.id, "-o", "json")
    bearer = service.call_by_token()
    service.crash()
    assert not list((tmp_path / "cwd").iterdir())

    secrets = {"bearer": forms(bearer) | forms(bearer.rpartition(".")[2]), "key": keys(service.pki), "token": set().union(*map(forms, tokens(tmp_path / "coordinator/tacc.db"))), "environment": forms(CANARY)}
    assert len(secrets["key"]) == 2 * 6
    said = "\0".join(service.said).encode()
    for kind, values in secrets.items():
        assert not [value for value in values if value in said], f"a {kind} is shown"
    held = set()
    for path in (p for p in tmp_path.rglob("*") if p.is_file()):
        content, name = path.read_bytes(), str(path.relative_to(tmp_path))
        for kind in (kind for kind, values in secrets.items() if any(value in content for value in values)):
            may = [holder for holder in (kind, "crash") if re.fullmatch(HOLDERS.get(holder, "(?!)"), name)]
            assert may, f"{name} has a {kind}"
            assert is_private(path, tmp_path), f"others can read {name}, which has a {kind}"
            held.add(kind)
    assert held == {"bearer", "key", "token"}  # It finds what is there.
