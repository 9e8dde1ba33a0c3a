"""Another user of this machine gets nothing of a service of `taccctl up`, of `submit --local` and of a client's session, and harms none of them."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster import BUILD, ROOT, write_job
from shell import Shell, lines, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two other users")

OWNER, STRANGER = 61_117, 61_118
FEW = ("--threads", "1", "--memory", "2GiB")
COMPARED_STEPS = 12
# The same steps, however many there are.
FLAT = {"train": {"max_steps": COMPARED_STEPS, "lr_scheduler_type": "constant"}}
LONG = {"train": {**FLAT["train"], "max_steps": 1_000_000}, "checkpoint": {"save_steps": 1_000_000}}

# Drives a job step by step, as it is told by lines on stdin; says each loss.
SESSION = """
import json, sys
import numpy as np
import tacc
with tacc.Client(sys.argv[1]) as client:
    job = client.submit(json.loads(sys.argv[2]))
    with tacc.Session(job) as session:
        print(job.id, flush=True)
        tokens = np.arange(8 * 16, dtype=np.int32).reshape(8, 16) % 97
        for _ in sys.stdin:
            print(session.step({"tokens": tokens, "targets": tokens}).loss, flush=True)
    job.cancel(now=True)
"""


class Owner(Shell):
    """A user with a home that everybody may enter, and without a umask."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.home = folder / "home"
        self.home.mkdir()
        self.env.update(HOME=str(self.home), PYTHONPATH=str(ROOT / "client/python"), PYTHONDONTWRITEBYTECODE="1")
        for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
            self.env.pop(name, None)
        self.take(folder)

    def take(self, folder: Path) -> None:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, OWNER, OWNER, follow_symlinks=False)

    def popen(self, command: list, **options) -> subprocess.Popen:
        return subprocess.Popen([str(word) for word in command], env=self.env, user=OWNER, group=OWNER, extra_groups=[], umask=0, text=True,
                                stdout=subprocess.PIPE, cwd=self.folder, **options)

    def run(self, *arguments, code: int = 0) -> subprocess.CompletedProcess:
        process = self.popen([BUILD / "taccctl", *arguments], stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=240)
        assert process.returncode == code, f"taccctl {arguments}: exit {process.returncode}, wanted {code}\n{out}\n{err}"
        return subprocess.CompletedProcess(arguments, code, out, err)

    def kept(self) -> list[Path]:
        """Where runs leave what stays, and what workers know of this machine."""
        return [self.folder / "jobs/runs", self.home / ".cache"]

    def local_folder(self) -> Path:
        return next(self.folder.glob("tacc-local-*"))

    def job(self, name: str, **changes) -> Path:
        path = write_job(self.folder / "jobs", name=name, **changes)
        self.take(self.folder / "jobs")
        return path


@pytest.fixture
def owner():
    # Not pytest's folder, which other users may not enter: what keeps them out is what is tested.
    folder = Path(tempfile.mkdtemp(prefix="tacc-owner-", dir="/tmp"))
    folder.chmod(0o755)
    owner = Owner(folder)
    try:
        yield owner
        owner.nothing_left()
    finally:
        for pid in owner.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        shutil.rmtree(folder)


def links(pid: int) -> list[str]:
    found = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(fd))
    return found


def there_is(owner: Owner, address: str, *folders: Path) -> dict:
    """All that the owner's processes have, as root sees it: sockets, ports, shared memory; and all below these folders."""
    pids = [pid for pid, command in owner.processes().items() if any(f"/{name}" in command.split()[0] for name in ("tacc-coordinator", "tacc-worker", "tacc-rank"))]
    open_files = [link for pid in pids for link in links(pid)]
    inodes = {link[len("socket:["):-1] for link in open_files if link.startswith("socket:[")}
    unix = [words[7] for words in map(str.split, Path("/proc/net/unix").read_text().splitlines()[1:]) if len(words) > 7 and words[6] in inodes]
    listening = [words for table in ("tcp", "tcp6") for words in map(str.split, Path(f"/proc/net/{table}").read_text().splitlines()[1:])
                 if words[3] == "0A" and words[9] in inodes]
    assert all(words[1].startswith("0100007F:") for words in listening), "a port that other machines reach"
    ports_of = {pid: sum(f"socket:[{words[9]}]" in links(pid) for words in listening) for pid in pids}
    mapped = {line.split()[-1] for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if " /dev/shm/" in line}
    shared = [Path(path) for path in mapped] + [path for prefix in {Path(path).name.rsplit("-", 2)[0] for path in mapped} for path in Path("/dev/shm").glob(f"{prefix}-local")]
    roots = [*folders, *shared]
    below = [path for root in roots for path in [root, *(root.rglob("*") if root.is_dir() else [])]]
    for path in below:
        with contextlib.suppress(FileNotFoundError):  # It has gone meanwhile.
            assert path.lstat().st_uid == OWNER, f"{path} is not the owner's"
    for root in roots:
        assert root.stat().st_mode & 0o077 == 0, f"{root}: mode {root.stat().st_mode:o}"
    return {"address": address, "taccctl": str(BUILD / "taccctl"), "unix": sorted(set(unix)), "ports": [int(words[1].rpartition(":")[2], 16) for words in listening],
            "files": [str(path) for path in below if not path.is_dir()], "folders": [str(path) for path in below if path.is_dir()], "pids": pids, "ports_of": ports_of}


def try_all(there: dict) -> dict:
    """What a stranger gets of it."""
    done = subprocess.run([sys.executable, ROOT / "tests/other_user.py"], input=json.dumps(there), capture_output=True, text=True, timeout=300,
                          user=STRANGER, group=STRANGER, extra_groups=[], cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def losses(output: str) -> list[float]:
    return [point["loss"] for point in lines(output) if "grad_norm" in point][:COMPARED_STEPS]


def test_a_service_and_a_job_of_it(owner):
    up = owner.json("up", *FEW, "--workers", "2")
    state = Path(up["state_dir"])
    try:
        assert up["address"].startswith("unix:/") and up["metrics_address"] == ""
        idle = there_is(owner, up["address"], state)
        assert idle["ports"] == [], "an idle service has no port"
        assert try_all(idle)["got"] == []

        alone = losses(owner.run("submit", "--follow", "-o", "json", owner.job("alone", **FLAT)).stdout)
        assert len(alone) == COMPARED_STEPS
        job = owner.json("submit", owner.job("watched", **LONG))["id"]
        until(lambda: owner.step(job) > 0, "a step")
        there = there_is(owner, up["address"], state, *owner.kept())
        for kind in ("alone/step-", "alone/hf/", "alone/logs/", "watched/writer.json", ".cache/tacc/"):
            assert any(f"/{kind}" in name for name in there["files"]), kind
        # What Gloo listens on, and nothing else: SECURITY.md says so.
        assert sorted(there["ports_of"].values()) == [0, 0, 0, 1, 1], there["ports_of"]
        answer = try_all(there)
        assert answer["got"] == []
        assert answer["tried"]["unix"] > 0 and answer["tried"]["files"] > 10 and answer["tried"]["pids"] == 5
        before = owner.step(job)
        until(lambda: owner.step(job) > max(before, COMPARED_STEPS), "further steps")
        owner.run("cancel", "--now", job)
        watched = owner.run("watch", "-o", "json", job, code=101)
        assert losses(watched.stdout) == alone
        assert owner.json("get", job)["attempt"] == 1
        assert "of other users refused" not in (state / "coordinator.log").read_text(), "the folder keeps them out"
    finally:
        owner.run("down")


def test_a_local_job(owner):
    alone = losses(owner.run("submit", "--local", "-o", "json", *FEW, owner.job("alone", **FLAT)).stdout)
    local = owner.popen([BUILD / "taccctl", "submit", "--local", "-o", "json", *FEW, owner.job("watched", **LONG)], stderr=subprocess.DEVNULL)

    def points(count: int) -> list[str]:
        found: list[str] = []
        while len(found) < count:
            line = local.stdout.readline()
            assert line, "it has ended"
            found += [line] if "grad_norm" in line else []
        return found

    first = points(2)
    folder = owner.local_folder()
    there = there_is(owner, f"unix:{folder}/coordinator.sock", folder, *owner.kept())
    assert any("/watched/writer.json" in name for name in there["files"])
    assert sorted(there["ports_of"].values()) == [0, 0, 0, 1, 1], there["ports_of"]
    assert try_all(there)["got"] == []
    first += points(COMPARED_STEPS - len(first))
    local.terminate()
    local.communicate(timeout=120)
    assert local.returncode == 101
    assert losses("".join(first)) == alone


def test_a_session(owner):
    up = owner.json("up", *FEW, "--workers", "2")
    try:
        owner.job("inputs")
        spec = {"name": "driven", "model": {"path": str(owner.folder / "jobs/model"), "weights": "random"}, "data": {"client": {}, "seq_len": 16},
                "train": {"max_steps": 1000, "global_batch_size": 8, "learning_rate": 0.003, "seed": 3}, "compute": {"bf16": False},
                "dist": {"dp": {"size": 1}, "fsdp": {"size": 2}}, "checkpoint": {"dir": str(owner.folder / "jobs/driven"), "save_steps": 1000}, "resources": {"workers": 2}}
        driven = []
        for is_watched in (False, True):
            client = owner.popen([sys.executable, "-c", SESSION, up["address"], json.dumps({**spec, "checkpoint": {**spec["checkpoint"], "dir": f"{owner.folder}/jobs/driven-{is_watched}"}})],
                                 stdin=subprocess.PIPE)
            job = client.stdout.readline().strip()
            assert job, "the session has not begun"

            def step(client=client) -> float:
                client.stdin.write("\n")
                client.stdin.flush()
                return float(client.stdout.readline())

            found = [step()]
            if is_watched:
                there = there_is(owner, up["address"], Path(up["state_dir"]), owner.folder / "jobs/driven-True", owner.home / ".cache")
                # No port for the client: the ranks' two are Gloo's.
                assert sorted(there["ports_of"].values()) == [0, 0, 0, 1, 1], there["ports_of"]
                assert any("-local/" in name for name in there["unix"]) and not any(name.startswith("@tacc-rank") for name in there["unix"]), there["unix"]
                assert try_all(there)["got"] == []
            found += [step() for _ in range(5)]
            client.communicate(timeout=60)
            assert client.returncode == 0
            assert owner.json("get", job)["attempt"] == 1
            driven.append(found)
        assert driven[0] == driven[1]
    finally:
        owner.run("down")
