"""taccctl as a user has it: everything on this machine, by --local and by up and down."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from cluster import BUILD, write_job


def descendants(pid: int) -> dict[int, str]:
    """The processes below `pid`, with their names."""
    parents, names = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        child = int(stat.parent.name)
        names[child] = text[text.index("(") + 1:text.rindex(")")]
        parents[child] = int(text[text.rindex(")") + 2:].split()[1])
    found: dict[int, str] = {}
    level = {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found |= {child: names[child] for child in level}
    return found


def gone(pids, seconds: float = 15) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(is_running(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for(condition, seconds: float, what: str):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (value := condition()):
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


@pytest.fixture
def env(tmp_path):
    """Nothing of the user's: state and scratch folders of the test's own."""
    (tmp_path / "tmp").mkdir()
    variables = {k: v for k, v in os.environ.items() if k != "TACC_ADDRESS"}
    return {**variables, "XDG_STATE_HOME": str(tmp_path / "state"), "TMPDIR": str(tmp_path / "tmp")}


def ctl(env, *arguments, timeout: float = 180) -> subprocess.CompletedProcess:
    return subprocess.run([str(BUILD / "taccctl"), *map(str, arguments)], capture_output=True, text=True, timeout=timeout, env=env)


def local(env, job, log: Path) -> subprocess.Popen:
    with open(log, "wb") as stream:
        return subprocess.Popen([str(BUILD / "taccctl"), "submit", "--local", str(job), "-o", "json"], stdout=stream, stderr=subprocess.PIPE, text=True,
                                env=env)


def steps(log: Path) -> list[int]:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
    return [line["step"] for line in lines if line["kind"] == "step"]


# Long enough to be interrupted.
LONG = {"train": {"max_steps": 100000}, "checkpoint": {"save_steps": 1000}}


def test_local_trains_and_leaves_nothing(tmp_path, env):
    result = ctl(env, "submit", "--local", "--follow", write_job(tmp_path, workers=2))
    assert result.returncode == 0, result.stderr
    assert "step 12/12 100.0%" in result.stdout
    assert "\x1b" not in result.stdout + result.stderr
    assert (tmp_path / "runs/tiny/hf/config.json").exists()
    assert list((tmp_path / "tmp").iterdir()) == []
    # A finished job run again is fine.
    assert ctl(env, "submit", "--local", write_job(tmp_path, workers=2)).returncode == 0


def test_ctrl_c_stops_after_a_checkpoint_and_a_rerun_goes_on(tmp_path, env):
    job, log = write_job(tmp_path, workers=2, **LONG), tmp_path / "log"
    process = local(env, job, log)
    wait_for(lambda: len(steps(log)) >= 3, 60, "three steps")
    children = descendants(process.pid)
    assert sorted(name for name in children.values() if name.startswith("tacc")) == ["tacc-coordinato", "tacc-rank", "tacc-rank", "tacc-worker", "tacc-worker"]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 101, err
    assert "stopping after a checkpoint" in err
    assert gone(children)
    last = steps(log)[-1]
    names = [path.name for path in (tmp_path / "runs/tiny").glob("step-*")]
    assert f"step-{last:08}.a1" in names
    process = local(env, job, tmp_path / "log2")
    try:
        wait_for(lambda: steps(tmp_path / "log2"), 60, "a step")
        assert steps(tmp_path / "log2")[0] == last + 1
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 101


def test_nothing_outlives_a_killed_taccctl(tmp_path, env):
    log = tmp_path / "log"
    process = local(env, write_job(tmp_path, workers=2, **LONG), log)
    wait_for(lambda: steps(log), 60, "a step")
    children = descendants(process.pid)
    assert len(children) >= 5
    process.kill()
    process.communicate()
    assert gone(children)


def test_a_killed_worker_and_coordinator_come_back(tmp_path, env):
    log = tmp_path / "log"
    process = local(env, write_job(tmp_path, workers=2, train={"max_steps": 3000}, checkpoint={"save_steps": 20}), log)
    try:
        wait_for(lambda: len(steps(log)) >= 30, 60, "thirty steps")
        for name in ("tacc-coordinato", "tacc-worker"):
            before = len(steps(log))
            os.kill(next(pid for pid, n in descendants(process.pid).items() if n == name), signal.SIGKILL)
            wait_for(lambda: len(steps(log)) > before + 100, 90, f"steps after the {name} was killed")
        done = steps(log)
        assert sorted(set(done)) == list(range(1, max(done) + 1))
    finally:
        process.terminate()
        process.communicate(timeout=60)


def free_address() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


def test_up_and_down(tmp_path, env):
    address = free_address()
    up = ctl(env, "up", "--listen", address, "--metrics-listen", "127.0.0.1:0", "--workers", "2", "--threads", "1", "--memory", "1GiB", "-o", "json")
    assert up.returncode == 0, up.stderr
    try:
        started = json.loads(up.stdout)
        assert started["address"] == address
        again = ctl(env, "up", "--listen", free_address())
        assert (again.returncode, again.stderr) == (2, f"already up at {address}; stop it with `taccctl down`\n")
        # Commands find it without TACC_ADDRESS.
        workers = [json.loads(line) for line in ctl(env, "workers", "-o", "json").stdout.splitlines()]
        assert [w["state"] for w in workers] == ["idle", "idle"]
        submitted = ctl(env, "submit", write_job(tmp_path, workers=2, **LONG))
        assert (submitted.returncode, submitted.stdout) == (0, "tiny-1\n"), submitted.stderr
        get = lambda: json.loads(ctl(env, "get", "tiny-1", "-o", "json").stdout)
        wait_for(lambda: get()["step"] >= 5, 60, "five steps")
        assert "running" in ctl(env, "list").stdout
        assert "attempt 1" in ctl(env, "events", "tiny-1").stdout
        assert ctl(env, "watch", "tiny-1", "--timeout", "1").returncode == 7
        assert ctl(env, "get", "other-1").returncode == 3
        metrics = urllib.request.urlopen(f"http://{started['metrics_address']}/metrics", timeout=10).read().decode()
        assert 'training_job="' in metrics
        assert ctl(env, "cancel", "tiny-1").returncode == 0
        assert ctl(env, "watch", "tiny-1", "-o", "json").returncode == 101
        out = tmp_path / "exported"
        exported = ctl(env, "export", "tiny-1", "--out", out)
        assert (exported.returncode, exported.stdout) == (0, f"{out}\n"), exported.stderr
        assert (out / "config.json").exists()
        shown = ctl(env, "data", "show", "tiny-1", "--step", "2", "-o", "json")
        assert shown.returncode == 0, shown.stderr
        watched = [json.loads(line) for line in ctl(env, "watch", "tiny-1", "-o", "json").stdout.splitlines()]
        assert json.loads(shown.stdout)["batch_hash"] == next(p["batch_hash"] for p in watched if p["kind"] == "step" and p["step"] == 2)
        planned = ctl(env, "plan", tmp_path / "tiny.yaml", "-o", "json")
        assert planned.returncode == 0, planned.stderr
        assert json.loads(planned.stdout.splitlines()[0])["memory"]["total_bytes"] > 0
        pids = [p["pid"] for p in json.loads((tmp_path / "state/tacc/up/up.json").read_text())["processes"]]
        assert len(pids) == 3
        # One that is running is stopped, too.
        assert ctl(env, "submit", write_job(tmp_path, name="second", workers=2, **LONG)).returncode == 0
        wait_for(lambda: json.loads(ctl(env, "get", "second", "-o", "json").stdout)["step"] >= 1, 60, "a step")
    finally:
        down = ctl(env, "down")
    assert down.returncode == 0, down.stderr
    assert "stopping second-" in down.stderr
    assert gone(pids, 1)
    assert list((tmp_path / "state").rglob("*")) == []
    assert ctl(env, "down").returncode == 3
    assert ctl(env, "list").returncode == 5


def test_up_on_a_port_in_use(tmp_path, env):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        address = f"127.0.0.1:{s.getsockname()[1]}"
        up = ctl(env, "up", "--listen", address, "--metrics-listen", "127.0.0.1:0")
        assert up.returncode == 2, up.stderr
        assert address in up.stderr
        assert ctl(env, "down").returncode == 3


def test_plan_without_a_coordinator(tmp_path, env):
    planned = ctl(env, "plan", "--local", write_job(tmp_path, workers=1))
    assert planned.returncode == 0, planned.stderr
    assert "dp=1 fsdp=1" in planned.stdout
