"""Runs trainings that lie ready: a folder with compiled programs, a start file, weights and data, on tacc-rank alone.

PROGRAM-KIND/stage0.program.gz  for each precision and layout PROGRAM, and each KIND of device, cpu and cuda, it was compiled for
PROGRAM-KIND/summary.json       what tacc-plan says of it
start.json                      the start file without paths and device
model*/, data/                  as its paths want them
"""

import gzip
import json
import math
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bare_ranks import Ranks

LIMIT_SECONDS = 90


@dataclass(frozen=True)
class Sample:
    """What was seen of rank 0's process when it had told the end of a step."""

    step: int
    host_seconds: float  # Processor time of the rank's own thread until then; NaN where it is not known.
    used_bytes: int = 0  # Of the device, where the caller measures it.


@dataclass
class Run:
    """What became of a training: rank 0's events, and what was seen of its process meanwhile."""

    folder: Path
    events: list[dict] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    error: str = ""  # Empty: it ended well. Else what rank 0 said of it, or how it ended.
    timed_out: bool = False  # It was ended when its time was over.
    log: str = ""  # The last of what all ranks wrote to stderr.

    def of(self, kind: str) -> list[dict]:
        return [event for event in self.events if event["event"] == kind]

    def losses(self) -> list[float]:
        return [event["loss"] for event in self.of("step")]

    def sampled(self, first: int, last: int) -> list[Sample]:
        """From the end of step `first` to that of step `last`."""
        return [sample for sample in self.samples if first <= sample.step <= last]

    def host_seconds_per_step(self, first: int, last: int) -> float:
        """Of the rank's own thread, after step `first` and until step `last`; NaN where it is not known."""
        counted = self.sampled(first, last)
        if len(counted) < 2:
            return math.nan
        return (counted[-1].host_seconds - counted[0].host_seconds) / (counted[-1].step - counted[0].step)

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("step-*"))

    def digest(self, checkpoint: str) -> list[str]:
        """What the files of a checkpoint hold."""
        return [file["sha256"] for file in json.loads((self.folder / checkpoint / "manifest.json").read_text())["files"]]


def kind_of(device: str) -> str:
    return device.partition(":")[0]


def program_folder(case: Path, program: str, device: str) -> Path:
    return case / f"{program}-{kind_of(device)}"


def summary(case: Path, program: str, device: str) -> dict:
    return json.loads((program_folder(case, program, device) / "summary.json").read_text())


def start_files(case: Path, program: str, device: str, run: Path, *, world: int, model: str, threads: int, changes: dict) -> list[Path]:
    """`changes`: keys of the start file, or of its sections."""
    run.mkdir(parents=True, exist_ok=True)
    program_path = run / "stage0.program"
    program_path.write_bytes(gzip.decompress((program_folder(case, program, device) / "stage0.program.gz").read_bytes()))
    paths = []
    for rank in range(world):
        start = json.loads((case / "start.json").read_text())
        start |= {"rank": rank, "world": world, "device": device, "threads": threads, "advertise": "127.0.0.1", "memory_bytes": 0,
                  "program": str(program_path), "model_dir": str(case / model)}
        start["data"]["path"] = str(case / "data")
        start["checkpoint"]["dir"] = str(run)
        for key, value in changes.items():
            start[key] = {**start.get(key, {}), **value} if isinstance(value, dict) else value
        paths.append(run / f"start-{start['attempt']}-{rank}.json")
        paths[-1].write_text(json.dumps(start))
    return paths


def host_seconds(pid: int) -> float:
    """Processor time of a process's first thread, as finely as the kernel counts it; NaN where it has ended."""
    task = Path(f"/proc/{pid}/task/{pid}")
    try:
        return int((task / "schedstat").read_text().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        pass
    try:
        user, system = (task / "stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return math.nan


def train(build: Path, case: Path, program: str, device: str, run: Path, *, world: int = 1, model: str = "model", threads: int = 1,
          kill_at: int = 0, used_bytes: Callable[[], int] | None = None, sample_every: int = 1, wrapper: tuple[str, ...] = (),
          arguments: tuple[str, ...] = (), limit: float = LIMIT_SECONDS, **changes) -> Run:
    """Trains to the end, or until step `kill_at`, at which rank 0 is killed, at most for `limit` seconds. Samples are taken of step 2 and of each
    `sample_every`-th. `used_bytes`: a function that measures the device's memory; `wrapper`: a tool's command that runs the rank's; `arguments`: of tacc-rank;
    `changes`: keys of the start file, or of its sections."""
    if used_bytes is not None:
        used_bytes()  # Its first call loads libraries and makes a context of its own: it takes seconds, and memory that is none of the rank's.
    result = Run(run)
    files = start_files(case, program, device, run, world=world, model=model, threads=threads, changes=changes)
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    logs = [open(path.with_suffix(".log"), "w") for path in files]
    ranks = [subprocess.Popen([*wrapper, build / "tacc-rank", "--start", path, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                              errors="replace", env=env)
             for path, log in zip(files, logs)]
    is_over = threading.Event()

    def end_all() -> None:
        is_over.set()
        for rank in ranks:
            rank.kill()

    clock = threading.Timer(limit, end_all)
    clock.start()
    try:
        with Ranks(ranks) as under_way:
            for event in under_way.events():
                result.events.append(event)
                if event["event"] == "step":
                    step = event["step"]
                    if step == 2 or step % sample_every == 0:
                        result.samples.append(Sample(step, host_seconds(ranks[0].pid), 0 if used_bytes is None else used_bytes()))
                    if step == kill_at:
                        ranks[0].kill()
    except (RuntimeError, ValueError, TypeError, KeyError, OSError) as error:  # Not JSON, or not an event; OSError: a pipe whose reader has gone.
        result.error = str(error) if isinstance(error, RuntimeError) else f"rank 0 wrote what is no event: {error!r}"
    finally:
        clock.cancel()
        for log in logs:
            log.close()
    last = f"after {json.dumps(result.events[-1])[:200]}" if result.events else "without a word"
    result.timed_out = is_over.is_set()
    if result.timed_out:
        result.error = f"not done in {limit:.0f} s; stopped {last}"
    elif failed := result.of("failed"):
        result.error = f"tacc-rank failed ({failed[0].get('code')}): {failed[0].get('message')}"
    elif result.error:
        result.error += f", {last}"
    result.log = "".join(path.with_suffix(".log").read_text(errors="replace")[-4000:] for path in files)
    return result


def norm(values: list[float]) -> float:
    return math.sqrt(math.fsum(value * value for value in values))


def distance(a: list[float], b: list[float]) -> float:
    """Infinite where they are not of equal length."""
    return norm([x - y for x, y in zip(a, b)]) if len(a) == len(b) else math.inf
