"""Starts a coordinator and workers of the build under test, and talks to them through taccctl. Everything lives in one folder."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TACC_BUILD", ROOT / "build"))
sys.path.insert(0, str(ROOT / "client/python"))

TINY_MODEL = {
    "architectures": ["OlmoForCausalLM"], "model_type": "olmo", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "intermediate_size": 48, "vocab_size": 97, "max_position_embeddings": 64, "hidden_act": "silu",
    "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": 1, "initializer_range": 0.05,
}


def write_model(folder: Path, **changes) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**TINY_MODEL, **changes}))
    return folder


def write_data(folder: Path, *, vocab_size: int = 97, num_tokens: int = 4096, period: int = 256, seed: int = 0) -> Path:
    """A short cycle of random tokens, repeated: a small model learns it in a few steps."""
    import numpy as np
    from tacc.shards import DatasetWriter, file_sha256
    from tokenizers import Tokenizer, models

    cycle = np.random.default_rng(seed).integers(2, vocab_size, size=period)
    writer = DatasetWriter(folder, vocab_size)
    writer.append(np.resize(cycle, num_tokens))
    tokenizer = folder / "tokenizer/tokenizer.json"
    tokenizer.parent.mkdir()
    Tokenizer(models.WordLevel({str(i): i for i in range(vocab_size)}, unk_token="0")).save(str(tokenizer))
    writer.close(tokenizer={"fingerprint": file_sha256(tokenizer), "eos_token": "", "eos_token_id": 0}, seq_len=16)
    return folder


def write_job(folder: Path, *, name: str = "tiny", workers: int = 2, **changes) -> Path:
    """A job file with its model and data beside it. Keyword arguments replace sections' keys: train={"max_steps": 9}."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model").exists():
        write_model(folder / "model")
    if not (folder / "data").exists():
        write_data(folder / "data")
    job = {
        "name": name,
        "model": {"path": "model", "weights": "random"},
        "data": {"path": "data", "seq_len": 16},
        "train": {"max_steps": 12, "global_batch_size": 8, "learning_rate": 0.003, "seed": 3},
        "compute": {"bf16": False},
        "dist": {"dp": {"size": 1}, "fsdp": {"size": workers}},
        "checkpoint": {"save_steps": 4},
        "resources": {"workers": workers},
    }
    for section, values in changes.items():
        if isinstance(values, dict):
            job[section] = {**job.get(section, {}), **values}
        else:
            job[section] = values
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(job, indent=1))  # JSON is YAML
    return path


def binary(name: str, env: dict | None, release: str = "") -> Path:
    """The users' binaries have no failpoints. `release`: "next" for those that say that they are of another version, or a folder with others."""
    return BUILD / ("failpoints" if "TACC_FAILPOINTS" in (env or {}) else release) / name


class Process:
    """A child that prints one line when it is up."""

    def __init__(self, command: list, log: Path, ready: str, env: dict | None = None):
        self.log = log
        with open(log, "ab") as stderr:
            self.popen = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=stderr, text=True,
                                          env={**os.environ, **(env or {})})
        line = self.popen.stdout.readline().strip()
        if not line.startswith(ready):
            self.stop()
            raise AssertionError(f"{command[0]}: wanted '{ready} ...', got '{line}'; log:\n{log.read_text()[-3000:]}")
        self.answer = line[len(ready):].strip()

    def kill(self) -> None:
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()

    def stop(self) -> int:
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.kill()
        self.popen.stdout.close()
        return self.popen.returncode


def rank_of(worker: Process) -> int:
    """The pid of a worker's rank; 0: none."""
    pid = worker.popen.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else 0


class Cluster:
    def __init__(self, folder: Path, *, workers: int = 2, worker_env: dict | None = None, coordinator_env: dict | None = None,
                 memory: str = str(2 << 30), metrics: bool = False, coordinator_options: tuple = (), worker_options: tuple = (), device: str = "cpu", threads: int = 1, release: str = ""):
        self.folder = folder
        self.memory = memory
        self.device = device
        self.threads = threads
        self.metrics = ["--metrics-listen", "127.0.0.1:0"] if metrics else []
        folder.mkdir(parents=True, exist_ok=True)
        self.coordinator_env = coordinator_env
        self.coordinator_options = coordinator_options
        self.worker_options = worker_options
        self.address = "127.0.0.1:0"
        self.release = release  # Of what is started from now on, as `binary` has it.
        self.workers: dict[str, Process] = {}
        self.start_coordinator()
        for i in range(workers):
            self.start_worker(f"w{i}", env=worker_env)

    def start_coordinator(self) -> None:
        self.coordinator = Process([binary("tacc-coordinator", self.coordinator_env, self.release), "--listen", self.address, "--insecure", "--state-dir", self.folder / "coordinator", *self.metrics,
                                    *self.coordinator_options],
                                   self.folder / "coordinator.log", "listening", env=self.coordinator_env)
        self.address = self.coordinator.answer

    def start_worker(self, name: str, env: dict | None = None, *, programs: Path | None = None) -> None:
        """`programs`: the folder with tacc-worker; None: that of the release."""
        if "TACC_FAILPOINTS" in (env or {}):  # A probe of its own: its tacc-rank is another one.
            env = {**env, "XDG_CACHE_HOME": str(BUILD / "failpoints/cache")}
        self.workers[name] = Process(
            [programs / "tacc-worker" if programs else binary("tacc-worker", env, self.release), "--coordinator", self.address, "--insecure", "--name", name, "--device", self.device, "--threads", self.threads, "--memory", self.memory,
             "--advertise", "127.0.0.1", "--state-dir", self.folder / name, *self.metrics, *self.worker_options],
            self.folder / f"{name}.log", "attached", env=env)

    def ctl(self, *arguments, check: bool = True, timeout: float = 120, env: dict | None = None) -> subprocess.CompletedProcess:
        of_release = binary("taccctl", None, self.release)
        result = subprocess.run([str(of_release if of_release.exists() else BUILD / "taccctl"), *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
                                env={**os.environ, "TACC_ADDRESS": self.address, **(env or {})})
        if check and result.returncode != 0:
            raise AssertionError(f"taccctl {' '.join(map(str, arguments))}: exit {result.returncode}\n{result.stdout}\n{result.stderr}\n{self.logs()}")
        return result

    def json(self, *arguments) -> dict:
        return json.loads(self.ctl(*arguments, "-o", "json").stdout)

    def submit(self, path: Path) -> str:
        """The id of the job."""
        return json.loads(self.ctl("submit", path, "-o", "json").stdout.splitlines()[0])["id"]

    def finish(self, job: str, timeout: float = 200) -> subprocess.CompletedProcess:
        """Follows a job to its end, whatever that is."""
        return self.ctl("watch", job, "-o", "json", "--timeout", timeout, timeout=timeout + 30, check=False)

    def points(self, job: str) -> list[dict]:
        """The step metrics of a job that has ended."""
        return [p for p in map(json.loads, self.ctl("watch", job, "-o", "json", check=False).stdout.splitlines()) if "grad_norm" in p]

    def events(self, job: str) -> list[dict]:
        return [json.loads(line) for line in self.ctl("events", job, "-o", "json").stdout.splitlines()]

    def warnings(self, job: str) -> list[dict]:
        """Not that the machine is busy, which is not the job's doing."""
        return [e for e in self.events(job) if e["type"] == "warning" and ": busy_cpu: " not in e["message"]]

    def metrics_of(self, worker: str) -> str:
        """Address of a worker's /metrics, in a cluster with metrics."""
        return re.search(r"metrics at http://([^/]+)/metrics", (self.folder / f"{worker}.log").read_text()).group(1)

    def wait(self, predicate, what: str, timeout: float = 60):
        """The first true value of predicate(), polled."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            value = predicate()
            if value:
                return value
            time.sleep(0.1)
        raise AssertionError(f"timed out waiting for {what}\n{self.logs()}")

    def logs(self) -> str:
        return "\n".join(f"== {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.folder.glob("*.log")))

    def stop(self) -> None:
        for worker in self.workers.values():
            worker.stop()
        self.coordinator.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
