"""What is asked of a coordinator, and what its answers mean, for `tacc.Client` and `tacc.AsyncClient` alike. No call is made here."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import grpc
from google.protobuf.message import Message as ProtobufMessage

from tacc.config import Config
from tacc.config_base import plain_job
from tacc.errors import (
    AnswerTimeoutError,
    ConflictError,
    CoordinatorError,
    InputError,
    InvalidJobError,
    JobCancelledError,
    JobFailedError,
    JobNotFoundError,
    LimitError,
    Problem,
    TaccError,
    VersionError,
)
from tacc.messages import CoordinatorVersion, EvalMetrics, JobEvent, JobStatus, LogLine, StepMetrics, Worker
from tacc.v1 import coordinator_pb2 as pb
from tacc.v1 import job_pb2, options_pb2
from tacc.version import __version__

T = TypeVar("T")
Answer = TypeVar("Answer")
Spec = str | os.PathLike[str] | Mapping[str, Any] | Config
WatchItem = JobEvent | StepMetrics | EvalMetrics

log = logging.getLogger("tacc")

CALL_SECONDS = 10.0
LONG_CALL_SECONDS = 120.0  # Plans and submits may read a model's headers.
SUBMIT_RETRY_SECONDS = 10.0
CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 200),
    # By this name gRPC means how long one attempt to connect may take: a loaded machine needs more than the pause between two attempts.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.enable_http_proxy", 0),  # A coordinator is reached directly, whatever http_proxy says.
    ("grpc.max_receive_message_length", 64 << 20),
]
ENDED = ("finished", "failed", "cancelled")


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request: the service's method, what is sent, how long an answer may take, and what the answer means."""

    method: str
    request: ProtobufMessage
    convert: Callable[[Any], T]
    seconds: float = CALL_SECONDS


# --- Requests ---------------------------------------------------------------------------------------------------------


def get_version() -> Call[CoordinatorVersion]:
    return Call("GetVersion", pb.GetVersionRequest(), CoordinatorVersion.from_proto)


def get_job(job: str) -> Call[JobStatus]:
    return Call("Get", pb.GetRequest(job=job), lambda answer: JobStatus.from_proto(answer.job))


def list_jobs(limit: int) -> Call[list[JobStatus]]:
    return Call("List", pb.ListRequest(limit=limit), lambda answer: [JobStatus.from_proto(job) for job in answer.jobs])


def list_workers() -> Call[list[Worker]]:
    return Call("ListWorkers", pb.ListWorkersRequest(), lambda answer: [Worker.from_proto(worker) for worker in answer.workers])


def cancel_job(job: str, now: bool) -> Call[JobStatus]:
    mode = pb.CANCEL_MODE_NOW if now else pb.CANCEL_MODE_CHECKPOINT
    return Call("Cancel", pb.CancelRequest(job=job, mode=mode), lambda answer: JobStatus.from_proto(answer.job))


def submit_job(spec: job_pb2.JobSpec, request_id: str | None) -> Call[JobStatus]:
    request = pb.SubmitRequest(spec=spec, request_id=request_id or uuid.uuid4().hex)
    return Call("Submit", request, lambda answer: JobStatus.from_proto(answer.job), LONG_CALL_SECONDS)


def plan_job(spec: job_pb2.JobSpec, gpus: int | None, cluster: Mapping[str, Any] | None) -> Call[dict[str, Any]]:
    """Candidates of `gpus` GPUs of `cluster` (of nodes of 8 H100 SXM), or of the workers that are attached."""
    target = dict(cluster or ({"machine": "h100"} if gpus is not None else {}))
    if gpus is not None:
        target.pop("nodes", None)
        target["gpus"] = gpus
    request = pb.PlanRequest(spec=spec, cluster_json=json.dumps(target) if target else "")
    return Call("Plan", request, lambda answer: json.loads(answer.candidates_json), LONG_CALL_SECONDS)


def read_job(spec: Spec) -> Call[job_pb2.JobSpec]:
    """The job that a job file, a dict or a Config says. The answer's InvalidJobError has all that is wrong."""
    file = ""
    if isinstance(spec, Config):
        text, directory = _json(spec.to_dict()), spec.directory
    elif isinstance(spec, Mapping):
        text, directory = _json(plain_job(spec)), os.getcwd()
    elif isinstance(spec, str | os.PathLike):
        path = Path(spec)
        file, directory = os.fspath(path), str(path.absolute().parent)
        text = _read(path)
    else:
        raise InputError(f"a job is the path of a job file, a dict, or a tacc.Config, not {type(spec).__name__}")

    def convert(answer: pb.ReadJobResponse) -> job_pb2.JobSpec:
        if answer.problems:
            raise InvalidJobError([Problem(p.field, p.message, p.line if file else 0, p.column if file else 0) for p in answer.problems], file)
        return answer.spec

    return Call("ReadJob", pb.ReadJobRequest(text=text, directory=directory), convert)


def _json(values: dict[str, Any]) -> str:
    # JSON is YAML. The characters that only JSON may hold as they are, YAML wants escaped.
    return json.dumps(values, ensure_ascii=False).replace("\x7f", "\\u007f").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _read(path: Path) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path}: not a file; give the path of a job file (YAML)")
        with open(path, "rb") as file:
            return file.read(1 << 20).decode()  # The coordinator refuses less.
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; give the path of a job file (YAML), a dict, or a tacc.Config") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


# --- Streams ----------------------------------------------------------------------------------------------------------


class WatchStream:
    """Events and metrics of a job from a cursor on. `take` moves the cursor, so that a new call goes on behind what was taken."""

    method = "Watch"

    def __init__(self, job: str, cursor: int = 0, *, events: bool = True, metrics: bool = True, follow: bool = True):
        self.job = job
        self.follow = follow
        self.cursor = cursor
        self._events, self._metrics = events, metrics

    def request(self) -> pb.WatchRequest:
        return pb.WatchRequest(
            job=self.job, cursor=self.cursor, no_follow=not self.follow, no_events=not self._events, no_metrics=not self._metrics
        )

    def take(self, response: pb.WatchResponse) -> list[WatchItem]:
        self.cursor = response.cursor
        item = response.WhichOneof("item")
        if item == "event":
            return [JobEvent.from_proto(response.event)]
        if item == "step":
            return [StepMetrics.from_proto(response.step)]
        return [EvalMetrics.from_proto(response.eval)] if item == "eval" else []


class LogStream:
    """Log lines of a job's ranks, with its events between them; as WatchStream."""

    method = "Logs"

    def __init__(self, job: str, *, rank: int | None = None, tail: int = 0, follow: bool = True):
        self.job = job
        self.follow = follow
        self._rank, self._tail, self._cursor = rank, tail, 0

    def request(self) -> pb.LogsRequest:
        tail = 0 if self._cursor else self._tail
        return pb.LogsRequest(job=self.job, rank=self._rank, tail=tail, follow=self.follow, cursor=self._cursor)

    def take(self, response: pb.LogsResponse) -> list[LogLine]:
        self._cursor = response.cursor
        return [LogLine.from_proto(line) for line in response.lines]


class Patience:
    """Says how long to wait before a stream that broke is asked for again."""

    def __init__(self, address: str):
        self._address = address
        self._seconds = 0.0
        self._away = False

    def came(self) -> None:
        """Something was received."""
        if self._away:
            log.warning("the coordinator at %s is back", self._address)
        self._away, self._seconds = False, 0.0

    def after(self, error: TaccError) -> float:
        """Seconds to wait. Raises the error if waiting does not help."""
        if not isinstance(error, CoordinatorError):
            raise error
        if not self._away:
            log.warning("the coordinator at %s is away; jobs go on, trying to reconnect", self._address)
        self._away = True
        self._seconds = min(2.0, self._seconds * 2) if self._seconds else 0.2
        return self._seconds


# --- Answers ----------------------------------------------------------------------------------------------------------

_AWAY = {
    "Connection refused": "nothing listens there",
    "before receiving SETTINGS frame": "what listens there does not answer",
    "DNS resolution failed": "its host is not known",
    "Name or service not known": "its host is not known",
    "No route to host": "its host cannot be reached",
    "Network is unreachable": "its host cannot be reached",
    "http1": "what listens there is a web server, as a coordinator's metrics are",
    "imed out": "its host does not answer",
    "imeout": "its host does not answer",
    "Socket closed": "the connection broke",
    "Connection reset": "the connection broke",
    "Broken pipe": "the connection broke",
    "GOAWAY": "it is stopping",
}


def explain(error: grpc.RpcError, address: str, was_connected: bool) -> TaccError:
    """The error of this package that says what gRPC's means."""
    code, message = error.code(), error.details() or ""
    # A server that goes away while it answers is reported in several ways.
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED) or (code == grpc.StatusCode.UNKNOWN and "tream" in message):
        why = next((text for part, text in _AWAY.items() if part in message), message)
        if was_connected:
            return CoordinatorError(f"lost the coordinator at {address}: {why}")
        return CoordinatorError(
            f"no coordinator at {address}: {why}; start one on this machine with `taccctl up`, or say where it is: tacc.Client(address) or TACC_ADDRESS"
        )
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return AnswerTimeoutError(message if message != "Deadline Exceeded" else f"no answer in time from the coordinator at {address}")
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return VersionError(f"the coordinator at {address} cannot do that: it is of another version than this package, {__version__}")
    if code == grpc.StatusCode.INVALID_ARGUMENT:
        return InputError(message)
    of: dict[grpc.StatusCode, type[TaccError]] = {
        grpc.StatusCode.NOT_FOUND: JobNotFoundError,
        grpc.StatusCode.ALREADY_EXISTS: ConflictError,
        grpc.StatusCode.FAILED_PRECONDITION: ConflictError,
        grpc.StatusCode.RESOURCE_EXHAUSTED: LimitError,
    }
    return of.get(code, TaccError)(message or f"{code.name} from the coordinator at {address}")


def check_version(version: CoordinatorVersion, address: str) -> None:
    """VersionError: major or minor are others than the package's."""
    if version.version.split(".")[:2] != __version__.split(".")[:2]:
        raise VersionError(
            f"the coordinator at {address} is tacc {version.version}, this package is {__version__}; install the package of the "
            "coordinator's version, or start a coordinator of this one"
        )


def check_paths(spec: job_pb2.JobSpec, coordinator: CoordinatorVersion) -> None:
    """InvalidJobError: the coordinator is a process of this machine, and what the job reads is not here."""
    if not (coordinator.state_dir and os.path.exists(f"/proc/{coordinator.pid}") and os.path.exists(coordinator.state_dir)):
        return
    problems: list[Problem] = []
    _missing(spec, "", problems)
    if problems:
        raise InvalidJobError(problems)


def _missing(message: ProtobufMessage, path: str, problems: list[Problem]) -> None:
    for field, value in message.ListFields():
        name = f"{path}.{field.name}".lstrip(".")
        if field.is_repeated:
            continue
        if field.message_type is not None:
            _missing(value, name, problems)
            continue
        rule = field.GetOptions().Extensions[options_pb2.rule]
        if rule.is_read and value not in rule.path_word and not os.path.exists(value):
            problems.append(Problem(name, f"{name} = {value} does not exist; it is {rule.is_read}"))


def outcome(status: JobStatus) -> JobStatus:
    """The status of a job that finished. JobFailedError, JobCancelledError: it ended in another way."""
    if status.phase == "failed":
        raise JobFailedError(status)
    if status.phase == "cancelled":
        raise JobCancelledError(status)
    return status


def has_ended(status: JobStatus) -> bool:
    return status.phase in ENDED


def table(of: type[StepMetrics] | type[EvalMetrics], items: Iterable[WatchItem], every_attempt: bool) -> Any:
    """A pandas DataFrame, or where pandas is not installed a dict of lists, with a row for each step, in order.

    A step that a restart did again is the last attempt's, unless `every_attempt`.
    """
    rows: dict[Any, Any] = {(item.attempt, item.step) if every_attempt else item.step: item for item in items if isinstance(item, of)}
    columns = {field.name: [getattr(rows[key], field.name) for key in sorted(rows)] for field in dataclasses.fields(of)}
    try:
        import pandas as pd
    except ImportError:
        return columns
    return pd.DataFrame(columns)


def no_answer(job: str, seconds: float) -> NoReturn:
    raise AnswerTimeoutError(f"{job} has not ended after {seconds:g} s; it goes on")


