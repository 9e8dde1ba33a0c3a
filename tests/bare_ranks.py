"""Trains on tacc-rank alone, without coordinator and daemons: for tests and benchmarks of a rank's speed and memory."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Training:
    build: Path
    folder: Path  # Holds `model` and `data`; programs and runs are put beside them.
    vocab_size: int
    seq_len: int
    global_batch_size: int
    max_steps: int
    precision: str = "f32"
    world: int = 1  # Ranks: dp x fsdp.
    threads: int = 1
    memory_bytes: int = 0  # 0: no limit.
    save_steps: int = 1_000_000
    evaluates: bool = False  # At the end, on the training data.
    dp: int = 1
    micro_batch: int = 0  # Samples of a rank at a time; 0: all of its share of the global batch.

    def request(self, device: dict | None = None) -> dict:
        """tacc-plan's request (docs/contracts.md); `device`: what a probe found."""
        return {
            "job": {"name": "bare", "model": {"path": str(self.folder / "model"), "weights": "WEIGHTS_RANDOM"},
                    "data": {"path": str(self.folder / "data"), "seq_len": self.seq_len},
                    "train": {"max_steps": self.max_steps, "global_batch_size": self.global_batch_size,
                              "per_device_train_batch_size": self.micro_batch or self.global_batch_size // self.world, "seed": 1,
                              "learning_rate": 3e-4, "lr_scheduler_type": "LR_SCHEDULER_TYPE_CONSTANT", "weight_decay": 0.1,
                              "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8, "max_grad_norm": 1.0},
                    "compute": {"bf16": self.precision == "bf16"}, "dist": {"dp": {"size": self.dp}, "fsdp": {"size": self.world // self.dp}}},
            "world": self.world,
            "device": device or {"name": "cpu", "kind": "cpu", "threads": self.threads, "memory_bytes": 0,
                       "matmul_flops_per_second": {"f32": 1e11, "bf16": 1e11}, "memory_bytes_per_second": 1e10,
                       "link_bytes_per_second": 1e9, "link_latency_seconds": 1e-4},
            "data": {"vocab_size": self.vocab_size},
        }

    def compile(self) -> Path:
        """The folder with `stage0.program` and `summary.json`."""
        out = self.folder / f"program-{self.precision}-{self.world}-{self.dp}-{self.micro_batch}"
        if out.exists():
            return out
        path = self.folder / f"{out.name}.json"
        path.write_text(json.dumps(self.request()))
        subprocess.run([self.build / "tacc-plan", "compile", "--request", path, "--out", out], check=True)
        return out

    def start(self, environment: dict[str, str] | None = None) -> "Ranks":
        """`environment` is added to rank 0's."""
        program = self.compile()
        runs = Path(tempfile.mkdtemp(dir=self.folder, prefix="run-"))
        version = subprocess.run([self.build / "tacc-rank", "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
        ranks = []
        for rank in range(self.world):
            start = {
                "version": version, "job": "bare-1", "attempt": 1, "rank": rank, "world": self.world, "device": "cpu",
                "threads": self.threads, "memory_bytes": self.memory_bytes, "advertise": "127.0.0.1",
                "program": str(program / "stage0.program"), "model_dir": str(self.folder / "model"), "weights": "random", "seed": 1,
                "data": {"path": str(self.folder / "data"), "eval_path": str(self.folder / "data") if self.evaluates else "",
                         "seq_len": self.seq_len, "global_batch_size": self.global_batch_size},
                "train": {"max_steps": self.max_steps, "eval_steps": 1_000_000},
                "checkpoint": {"dir": str(runs), "save_steps": self.save_steps, "resume": "", "export": ""},
                "collective_timeout_seconds": 300,
            }
            path = runs / f"start-{rank}.json"
            path.write_text(json.dumps(start))
            env = {**os.environ, "OMP_NUM_THREADS": str(self.threads), **(environment if environment and rank == 0 else {})}
            ranks.append(subprocess.Popen([self.build / "tacc-rank", "--start", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                          text=True, env=env))
        return Ranks(ranks)


class Ranks:
    """The processes of one run; use as a context manager."""

    def __init__(self, processes: list[subprocess.Popen]):
        self.processes = processes

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_) -> None:
        for rank in self.processes:
            rank.kill()
            rank.communicate()

    def events(self) -> Iterator[dict]:
        """Rank 0's, to its end. Raises RuntimeError when a rank ends badly."""
        for line in self.processes[0].stdout:
            event = json.loads(line)
            if event["event"] == "listening":
                for other in self.processes[1:]:
                    other.stdin.write(json.dumps({"command": "rendezvous", "host": "127.0.0.1", "port": event["port"]}) + "\n")
                    other.stdin.flush()
            yield event
            if event["event"] == "failed":
                raise RuntimeError(f"tacc-rank failed: {event['message']}")
        for rank in self.processes:
            if rank is not self.processes[0]:
                rank.stdout.read()
            if rank.wait() != 0:
                raise RuntimeError(f"tacc-rank ended with {rank.returncode}")

    def peak_bytes(self) -> int:
        """VmHWM of rank 0."""
        return peak_bytes(self.processes[0].pid)


def peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no VmHWM of process {pid}")


def idle_bytes(build: Path) -> int:
    """VmHWM of a rank with its libraries loaded that waits for its start file."""
    with tempfile.TemporaryDirectory() as folder:
        never = Path(folder) / "never"
        os.mkfifo(never)
        with Ranks([subprocess.Popen([build / "tacc-rank", "--start", never], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)]) as rank:
            assert json.loads(rank.processes[0].stdout.readline())["event"] == "started"
            return rank.peak_bytes()
