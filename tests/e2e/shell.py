"""taccctl as its users run it, with a state folder of its own; every process that comes of it can be found."""

import json
import os
import subprocess
import time
import uuid
from pathlib import Path

from cluster import BUILD


def until(predicate, what: str, timeout: float = 90):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if value := predicate():
            return value
        time.sleep(0.1)
    raise AssertionError(f"timed out waiting for {what}")


class Shell:
    """Runs taccctl with a state folder of its own. Every process that descends from it is known by a mark in its environment."""

    def __init__(self, folder: Path):
        self.mark = f"TACC_TEST_MARK={uuid.uuid4()}"
        self.state = folder / "state"
        self.env = {k: v for k, v in os.environ.items() if k != "TACC_ADDRESS"}
        self.env.update([self.mark.split("=")], XDG_STATE_HOME=str(self.state), TMPDIR=str(folder))

    def start(self, *arguments, stdout=subprocess.PIPE) -> subprocess.Popen:
        return subprocess.Popen([str(BUILD / "taccctl"), *map(str, arguments)], stdout=stdout, stderr=subprocess.PIPE, text=True, env=self.env)

    def run(self, *arguments, code: int = 0, env: dict | None = None) -> subprocess.CompletedProcess:
        result = subprocess.run([str(BUILD / "taccctl"), *map(str, arguments)], capture_output=True, text=True, timeout=240,
                                env={**self.env, **(env or {})})
        assert result.returncode == code, f"taccctl {arguments}: exit {result.returncode}, wanted {code}\n{result.stdout}\n{result.stderr}"
        return result

    def json(self, *arguments) -> dict:
        return json.loads(self.run(*arguments, "-o", "json").stdout)

    def processes(self, name: str = "") -> dict[int, str]:
        """Pid and command line of what descends from this shell and runs."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if self.mark.encode() in (folder / "environ").read_bytes().split(b"\0") and words[0].decode().endswith(name):
                    found[int(folder.name)] = b" ".join(words).decode()
            except OSError:
                continue  # it has ended, or is not ours
        return found

    def nothing_left(self) -> None:
        until(lambda: not self.processes(), f"the end of {self.processes()}", 30)

    def step(self, job: str) -> int:
        return self.json("get", job).get("step", 0)


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def wait_for_step(local: subprocess.Popen, step: int) -> int:
    """Reads JSON lines of a following command up to this step or one after it."""
    for line in local.stdout:
        if "grad_norm" in line and (seen := json.loads(line)["step"]) >= step:
            return seen
    raise AssertionError(f"ended before step {step}: {local.stderr.read()}")
