"""Trains on tacc-rank alone, without coordinator and daemons: for tests and benchmarks of a rank's speed and memory."""

import functools
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# As a probe finds it: where the processor cannot multiply bf16, such products go through f32.
MULTIPLIES_BF16 = re.search(r"^flags.* avx512_bf16\b", Path("/proc/cpuinfo").read_text(), re.MULTILINE) is not None


@dataclass(frozen=True)
class Training:
    build: Path
    folder: Path  # Holds `model` and `data`; programs and runs are put beside them.
    vocab_size: int
    seq_len: int
    global_batch_size: int
    max_steps: int
    precision: str = "f32"
    world: int = 1  # Ranks.
    threads: int = 1
    memory_bytes: int = 0  # 0: no limit.
    save_steps: int = 1_000_000
    saves: bool = True  # Not: no checkpoints, not even at the end.
    evaluates: bool = False  # At the end, on the training data.
    dist: dict | None = None  # As in the job file; None: fsdp over all ranks.
    learning_rate: float = 3e-4
    weights: str = "random"  # Or "pretrained".
    micro_batch: int = 0  # Samples of a rank at a time; 0: all of its share of the global batch, or what `dist` says.
    finetune: dict | None = None  # More keys of the section `train`: what of the model is trained.

    def layout(self) -> dict:
        """The section `dist`."""
        return self.dist if self.dist is not None else {"dp": {"size": 1}, "fsdp": {"size": self.world}}

    def batch_ranks(self) -> int:
        """Ranks that have samples of their own."""
        layout = self.layout()
        size = {axis: layout.get(axis, {}).get("size", 1) for axis in ("pp", "tp", "sp")}
        return self.world // size["pp"] // size["tp"] // layout.get("cp", {}).get("size", size["sp"])

    def request(self, device: dict | None = None) -> dict:
        """tacc-plan's request (docs/contracts.md); `device`: what a probe found."""
        train = {"max_steps": self.max_steps, "global_batch_size": self.global_batch_size, "seed": 1, "learning_rate": self.learning_rate,
                 "lr_scheduler_type": "LR_SCHEDULER_TYPE_CONSTANT", "weight_decay": 0.1, "adam_beta1": 0.9, "adam_beta2": 0.999,
                 "adam_epsilon": 1e-8, "max_grad_norm": 1.0, **(self.finetune or {})}
        if self.micro_batch or "num_micro_batches" not in self.layout().get("pp", {}):
            train["per_device_train_batch_size"] = self.micro_batch or self.global_batch_size // self.batch_ranks()
        return {
            "job": {"name": "bare", "model": {"path": str(self.folder / "model"), "weights": f"WEIGHTS_{self.weights.upper()}"},
                    "data": {"path": str(self.folder / "data"), "seq_len": self.seq_len},
                    "train": train, "compute": {"bf16": self.precision == "bf16", "fp16": self.precision == "f16"}, "dist": self.layout()},
            "world": self.world,
            "device": device or {"name": "cpu", "kind": "cpu", "threads": self.threads, "memory_bytes": 0,
                       "matmul_flops_per_second": {"f32": 1e11, "bf16": 2e11 if MULTIPLIES_BF16 else 1e11, "f16": 1e11},
                       "multiplies_bf16": MULTIPLIES_BF16, "memory_bytes_per_second": 1e10,
                       "link_bytes_per_second": 1e9, "link_latency_seconds": 1e-4},
            "data": {"vocab_size": self.vocab_size},
        }

    def compile(self) -> Path:
        """The folder with `summary.json` and a program for each stage."""
        out = self.folder / re.sub(r"\W+", "-", f"program {self.precision} {self.world} {self.micro_batch} {json.dumps(self.layout())} {json.dumps(self.finetune)}")
        if out.exists():
            return out
        path = self.folder / f"{out.name}.json"
        path.write_text(json.dumps(self.request()))
        subprocess.run([self.build / "tacc-plan", "compile", "--request", path, "--out", out], check=True)
        return out

    def program(self, rank: int) -> Path:
        """The compiled program that this rank runs: that of its stage."""
        num_stages = self.layout().get("pp", {}).get("size", 1)
        return self.compile() / f"stage{rank * num_stages // self.world}.program"

    def start(self, environment: dict[str, str] | None = None) -> "Ranks":
        """`environment` is added to rank 0's."""
        self.compile()
        runs = Path(tempfile.mkdtemp(dir=self.folder, prefix="run-"))
        version = version_of(self.build)
        ranks = []
        for rank in range(self.world):
            start = {
                "version": version, "job": "bare-1", "attempt": 1, "rank": rank, "world": self.world, "device": "cpu",
                "threads": self.threads, "memory_bytes": self.memory_bytes, "advertise": "127.0.0.1",
                "program": str(self.program(rank)), "model_dir": str(self.folder / "model"), "weights": self.weights, "seed": 1,
                "data": {"path": str(self.folder / "data"), "eval_path": str(self.folder / "data") if self.evaluates else "",
                         "seq_len": self.seq_len, "global_batch_size": self.global_batch_size},
                "train": {"max_steps": self.max_steps, "eval_steps": 1_000_000, "deterministic": False}, "compute": {"tf32": False},
                "checkpoint": {"dir": str(runs) if self.saves else "", "save_steps": self.save_steps, "resume": "", "export": ""},
                "collective_timeout_seconds": 300,
            }
            path = runs / f"start-{rank}.json"
            path.write_text(json.dumps(start))
            env = {**os.environ, "OMP_NUM_THREADS": str(self.threads), "GOMP_SPINCOUNT": "1000", **(environment if environment and rank == 0 else {})}
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
                    other.stdin.write(json.dumps({"command": "rendezvous", "host": "127.0.0.1", "port": event["port"], "secret": event["secret"]}) + "\n")
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
        return self.peaks()[0]

    def reset_peaks(self) -> None:
        """VmHWM of each rank begins again from what it holds now."""
        for rank in self.processes:
            Path(f"/proc/{rank.pid}/clear_refs").write_text("5")

    def peaks(self) -> list[int]:
        """VmHWM of each rank; 0 of one that has ended."""
        return [peak_bytes(rank.pid) for rank in self.processes]


@functools.cache
def version_of(build: Path) -> str:
    return subprocess.run([build / "tacc-rank", "--version"], check=True, capture_output=True, text=True).stdout.split()[1]


def peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0  # it has ended, and is waited for


@functools.cache
def idle_bytes(build: Path) -> int:
    """VmHWM of a rank with its libraries loaded that waits for its start file."""
    with tempfile.TemporaryDirectory() as folder:
        never = Path(folder) / "never"
        os.mkfifo(never)
        with Ranks([subprocess.Popen([build / "tacc-rank", "--start", never], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)]) as rank:
            assert json.loads(rank.processes[0].stdout.readline())["event"] == "started"
            return rank.peak_bytes()
