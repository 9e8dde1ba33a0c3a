"""A job's metrics in MLflow and Weights & Biases: `Job.report`, `Job.wait(report_to=...)`, `tacc.fit(..., report_to=...)`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tacc.calls import WatchItem
from tacc.errors import InputError
from tacc.messages import EvalMetrics, JobStatus, StepMetrics

# Fields of a point by the names that TensorBoard's files have them under.
_TRAIN = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/learning_rate",
    "loss_scale": "train/loss_scale",
    "expert_overflow": "train/expert_overflow",
    "tokens_per_second": "perf/tokens_per_second",
    "mfu": "perf/mfu",
    "seconds": "perf/step_seconds",
    "data_wait_seconds": "perf/data_wait_seconds",
    "communication_seconds": "perf/communication_seconds",
    "device_idle_share": "perf/device_idle_share",
    "device_memory_used_bytes": "perf/device_memory_used_bytes",
}
_EVAL = {"eval_loss": "eval/loss", "seconds": "eval/seconds"}
_NOTE = "report.json"  # In the run's folder: which run of the trackers has its metrics.


class Tracker(Protocol):
    """A run at a tracker. Points come in the order of their steps."""

    done: int  # Steps that it has; those up to this one are not logged again.
    done_eval: int

    def log(self, step: int, time: float, values: Mapping[str, float], *, is_eval: bool) -> None: ...

    def flush(self) -> None:
        """Called every few seconds."""
        ...

    def close(self, phase: str) -> None: ...


class WandbTracker:
    def __init__(self, status: JobStatus, run: str, settings: Mapping[str, Any]):
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "tacc"), id=run, name=status.name, resume="allow", reinit="create_new", tags=["tacc"]
        )
        self._run.config.update({**settings, "tacc_job": status.id}, allow_val_change=True)
        # The rows of a run have ascending steps; one that goes on begins behind what it has.
        self.done = self.done_eval = max(0, self._run.step - 1)

    def log(self, step: int, time: float, values: Mapping[str, float], *, is_eval: bool) -> None:
        self._run.log(dict(values), step=step)

    def flush(self) -> None:
        pass  # It has a process of its own that sends.

    def close(self, phase: str) -> None:
        self._run.finish(exit_code=0 if phase == "finished" else 1)


class MlflowTracker:
    def __init__(self, status: JobStatus, run: str, settings: Mapping[str, Any]):
        import mlflow
        from mlflow.entities import Metric, Param, RunTag

        self._mlflow, self._metric, self._tag = mlflow, Metric, RunTag
        found = mlflow.search_runs(filter_string=f"tags.`tacc.run` = '{run}'", max_results=1, output_format="list")
        nested = mlflow.active_run() is not None
        if found:
            self.id = mlflow.start_run(run_id=found[0].info.run_id, nested=nested).info.run_id
        else:
            self.id = mlflow.start_run(run_name=status.name, nested=nested, tags={"tacc.run": run}).info.run_id
        self._client = mlflow.MlflowClient()
        data = self._client.get_run(self.id).data
        self.done, self.done_eval = (int(data.tags.get(tag, 0)) for tag in ("tacc.step", "tacc.eval_step"))
        params = [Param(key, str(value)[:6000]) for key, value in settings.items() if key not in data.params]
        for i in range(0, len(params), 100):  # As many as one call may have.
            self._client.log_batch(self.id, params=params[i : i + 100])
        self._client.set_tag(self.id, "tacc.job", status.id)
        self._waiting: list[Any] = []

    def log(self, step: int, time: float, values: Mapping[str, float], *, is_eval: bool) -> None:
        self._waiting += [self._metric(key, value, int(1000 * time), step) for key, value in values.items()]
        self.done, self.done_eval = (self.done, step) if is_eval else (step, self.done_eval)
        if len(self._waiting) > 900:  # One call may have 1000.
            self.flush()

    def flush(self) -> None:
        if self._waiting:  # With the points goes how far they are, so that none comes twice.
            tags = [self._tag("tacc.step", str(self.done)), self._tag("tacc.eval_step", str(self.done_eval))]
            self._client.log_batch(self.id, metrics=self._waiting, tags=tags)
            self._waiting = []

    def close(self, phase: str) -> None:
        self.flush()
        of = {"finished": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}
        self._mlflow.end_run(of.get(phase, "RUNNING"))


TRACKERS: dict[str, Callable[[JobStatus, str, Mapping[str, Any]], Tracker]] = {"mlflow": MlflowTracker, "wandb": WandbTracker}


def check_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """The trackers' names. InputError: there is no such tracker. ImportError: it is not installed."""
    names = (names,) if isinstance(names, str) else tuple(names)
    for name in names:
        if name == "tensorboard":
            raise InputError('report_to: leave "tensorboard" out: its files are always written, into DIR/tensorboard beside the checkpoints')
        if name not in TRACKERS:
            raise InputError(f'report_to: no tracker {name!r}; there are {", ".join(f"{known!r}" for known in TRACKERS)}')
        try:
            __import__(name)
        except ImportError as error:
            raise ImportError(f"report_to: {name} is not installed here: pip install {name}") from error
    return names


class Reporter:
    """Logs each step and evaluation once to trackers, in runs that a later reporter of the same training goes on with.

    A step that a restart does again was logged already, and is not logged again. A job that continues an earlier one of its folder goes on in
    that one's runs, if the folder can be seen from here; a training that begins at step 1 has new ones.
    """

    seconds = 2.0  # Between two flushes.

    def __init__(self, status: JobStatus, address: str, names: Sequence[str]):
        self._status, self._address, self._names = status, address, names
        self._trackers: list[Tracker] | None = None
        self._flushed = time.monotonic()

    def take(self, item: WatchItem) -> None:
        if not isinstance(item, StepMetrics | EvalMetrics) or not self._names:
            return
        is_eval = isinstance(item, EvalMetrics)
        values = {key: value for name, key in (_EVAL if is_eval else _TRAIN).items() if (value := getattr(item, name)) is not None}
        for tracker in self._opened(item.step):
            if item.step > (tracker.done_eval if is_eval else tracker.done):
                tracker.log(item.step, item.time, values, is_eval=is_eval)
                if is_eval:
                    tracker.done_eval = item.step
                else:
                    tracker.done = item.step
        if time.monotonic() > self._flushed + self.seconds:
            self._flushed = time.monotonic()
            for tracker in self._opened(item.step):
                tracker.flush()

    def close(self, phase: str) -> None:
        """The job has ended so, or in another phase: it is no longer followed."""
        trackers, self._trackers = self._trackers or [], []
        with contextlib.ExitStack() as stack:  # Each, also where another one's server is away.
            for tracker in trackers:
                stack.callback(tracker.close, phase)

    def _opened(self, first_step: int) -> list[Tracker]:
        if self._trackers is None:
            run = self._run_id(first_step)
            settings = flat(self._status.spec or {})
            self._trackers = []
            for name in self._names:  # Those that are open are closed, also if the next one cannot be opened.
                self._trackers.append(TRACKERS[name](self._status, run, settings))
        return self._trackers

    def _run_id(self, first_step: int) -> str:
        """The same for all reporters of a training."""
        job = f"{self._address} {self._status.id} {self._status.submitted_time:.6f}"
        own = hashlib.sha256(job.encode()).hexdigest()[:16]
        note = Path(self._status.checkpoint_dir) / _NOTE
        try:
            known = json.loads(note.read_text())
            if known["job"] == own or first_step > 1:
                own_run = str(known["run"])
            else:
                own_run = own
        except (OSError, ValueError, KeyError, TypeError):
            own_run = own
        try:
            note.write_text(json.dumps({"run": own_run, "job": own}) + "\n")
        except OSError:
            pass  # The folder is of another machine.
        return own_run


def flat(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Settings by their names in full: {"train.max_steps": 1000}."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        dotted = f"{path}.{name}" if path else name
        if isinstance(value, Mapping):
            out |= flat(value, dotted)
        else:
            out[dotted] = value
    return out
