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


class Started(subprocess.Popen):
    """A command under way. Its stdout is a file: nobody has to read it for the command to go on, and no line is lost between two readers."""

    def __init__(self, command: list[str], stdout: Path, env: dict[str, str]):
        self.stdout_path = stdout
        with open(stdout, "wb") as file:
            super().__init__(command, stdout=file, stderr=subprocess.PIPE, text=True, env=env)

    def points(self) -> list[dict]:
        """The steps that it has told of in JSON, so far."""
        whole, _, _ = self.stdout_path.read_text().rpartition("\n")
        return [point for point in lines(whole) if "grad_norm" in point]

    def last(self) -> dict:
        """Its last line of JSON, when it has ended."""
        return lines(self.stdout_path.read_text())[-1]

    def ended(self, timeout: float = 120) -> str:
        """Waits for its end; what it wrote to stderr."""
        return self.communicate(timeout=timeout)[1]

    def wait_for_point(self, is_wanted, what: str) -> dict:
        """The newest step, once one is as wanted."""

        def look() -> dict | None:
            has_ended = self.poll() is not None
            points = self.points()
            if any(map(is_wanted, points)):
                return points[-1]
            assert not has_ended, f"ended before {what}: {self.stderr.read()}"

        return until(look, what)

    def wait_for_step(self, step: int) -> int:
        """The newest step, once it is this one or one after it."""
        return self.wait_for_point(lambda point: point["step"] >= step, f"step {step}")["step"]


class Shell:
    """Runs taccctl with a state folder of its own. Every process that descends from it is known by its TMPDIR, which ranks inherit too."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.mark = f"TMPDIR={folder}"
        self.state = folder / "state"
        self.env = {k: v for k, v in os.environ.items() if k != "TACC_ADDRESS"}
        self.env.update(XDG_STATE_HOME=str(self.state), TMPDIR=str(folder))

    def start(self, *arguments) -> "Started":
        return Started([str(BUILD / "taccctl"), *map(str, arguments)], self.folder / f"stdout-{uuid.uuid4()}", self.env)

    def run(self, *arguments, code: int = 0, env: dict | None = None) -> subprocess.CompletedProcess:
        result = subprocess.run([str(BUILD / "taccctl"), *map(str, arguments)], capture_output=True, text=True, timeout=240,
                                env={**self.env, **(env or {})})
        assert result.returncode == code, f"taccctl {arguments}: exit {result.returncode}, wanted {code}\n{result.stdout}\n{result.stderr}"
        return result

    def json(self, *arguments) -> dict:
        return json.loads(self.run(*arguments, "-o", "json").stdout)

    def processes(self, name: str = "") -> dict[int, str]:
        """Pid and command line of what descends from this shell and runs, but for copies of a process on their way to another program."""
        found = {}
        parents = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if self.mark.encode() in (folder / "environ").read_bytes().split(b"\0") and words[0].decode().endswith(name):
                    found[int(folder.name)] = b" ".join(words).decode()
                    parents[int(folder.name)] = parent
            except OSError:
                continue  # it has ended, or is not ours
        return {pid: command for pid, command in found.items() if found.get(parents[pid]) != command}

    def nothing_left(self) -> None:
        until(lambda: not self.processes(), f"the end of {self.processes()}", 30)

    def step(self, job: str) -> int:
        return self.json("get", job).get("step", 0)


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]
