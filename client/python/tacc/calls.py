"""What is asked of a coordinator, and what its answers mean, for `tacc.Client` and `tacc.AsyncClient` alike. No call is made here."""

from __future__ import annotations

import codecs
import dataclasses
import json
import logging
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message as ProtobufMessage

from tacc.config import Config
from tacc.config_base import plain_job, quoted
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
    printable,
)
from tacc.live.session_link import Endpoint
from tacc.message_base import word
from tacc.messages import CoordinatorVersion, EvalMetrics, JobEvent, JobStatus, LogLine, StepMetrics, Worker
from tacc.v1 import coordinator_pb2 as pb
from tacc.v1 import job_pb2, options_pb2, worker_pb2
from tacc.version import __version__

T = TypeVar("T")
Answer = TypeVar("Answer")
Spec = str | os.PathLike[str] | Mapping[str, Any] | Config
WatchItem = JobEvent | StepMetrics | EvalMetrics

log = logging.getLogger("tacc")

CALL_SECONDS = 10.0
LONG_CALL_SECONDS = 120.0  # Plans and submits may read a model's headers.
RETRY_SECONDS = 10.0  # How long what does not follow a job is asked for again while the coordinator is away.
UPLOAD_PREFIX = "upload:"  # Of what a client has uploaded, where a path may be.
MAX_TEXT = 1 << 20  # Of a job; the coordinator refuses less.
CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 200),
    # By this name gRPC means how long one attempt to connect may take: a loaded machine needs more than the pause between two attempts.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # A stream whose coordinator hangs, or whose machine is gone without a word, breaks after this long.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # Counts where it is longer.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # Each channel has a connection of its own.
    ("grpc.enable_http_proxy", 0),  # A coordinator is reached directly, whatever http_proxy says.
    ("grpc.max_receive_message_length", 64 << 20),
    # An error's text comes as metadata, of which gRPC lets 8 KiB pass.
    ("grpc.max_metadata_size", 1 << 20),
    ("grpc.absolute_max_metadata_size", 1 << 20),
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
    return Call("Get", pb.GetRequest(job=_sent(job, "a job's name")), lambda answer: JobStatus.from_proto(answer.job))


def get_endpoints(job: str) -> Call[tuple[str, int, list[Endpoint]]]:
    """The job's phase, its attempt, and where the ranks listen for a session, once they do."""

    def convert(answer: pb.GetEndpointsResponse) -> tuple[str, int, list[Endpoint]]:
        phase = word(pb.GetEndpointsResponse.DESCRIPTOR.fields_by_name["phase"], answer.phase)
        return phase, answer.attempt, [Endpoint(e.rank, e.local, e.host, e.port, e.token) for e in answer.endpoints]

    return Call("GetEndpoints", pb.GetEndpointsRequest(job=_sent(job, "a job's name")), convert)


def list_jobs(limit: int) -> Call[list[JobStatus]]:
    if limit < 1:
        raise ValueError(f"limit = {limit} is less than 1")
    return Call("List", pb.ListRequest(limit=limit), lambda answer: [JobStatus.from_proto(job) for job in answer.jobs])


def put_folder(files: Iterable[worker_pb2.UploadFile]) -> Call[pb.PutFolderResponse]:
    return Call("PutFolder", pb.PutFolderRequest(files=files), lambda answer: answer, LONG_CALL_SECONDS)


def list_workers() -> Call[list[Worker]]:
    return Call("ListWorkers", pb.ListWorkersRequest(), lambda answer: [Worker.from_proto(worker) for worker in answer.workers])


def cancel_job(job: str, now: bool) -> Call[JobStatus]:
    mode = pb.CANCEL_MODE_NOW if now else pb.CANCEL_MODE_CHECKPOINT
    return Call("Cancel", pb.CancelRequest(job=job, mode=mode), lambda answer: JobStatus.from_proto(answer.job))


def submit_job(spec: job_pb2.JobSpec, request_id: str | None) -> Call[JobStatus]:
    request = pb.SubmitRequest(spec=spec, request_id=_sent(request_id or uuid.uuid4().hex, "request_id"))
    return Call("Submit", request, lambda answer: JobStatus.from_proto(answer.job), LONG_CALL_SECONDS)


def plan_job(spec: job_pb2.JobSpec, gpus: int | None, cluster: Mapping[str, Any] | None) -> Call[dict[str, Any]]:
    """Candidates of `gpus` GPUs of `cluster` (of nodes of 8 H100 SXM), or of the workers that are attached."""
    if not isinstance(cluster, Mapping | None):
        raise InputError(f'cluster = {cluster!r} is not the fields of a cluster file, as {{"machine": "a100", "nodes": 4}}')
    target = dict(cluster or ({"machine": "h100"} if gpus is not None else {}))
    if gpus is not None:
        target.pop("nodes", None)
        target["gpus"] = gpus
    try:
        text = json.dumps(target) if target else ""
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"cluster = {cluster!r} is not the fields of a cluster file: {error}") from error
    request = pb.PlanRequest(spec=spec, cluster_json=text)
    return Call("Plan", request, lambda answer: json.loads(answer.candidates_json), LONG_CALL_SECONDS)


def read_job(spec: Spec) -> Call[job_pb2.JobSpec]:
    """The job that a job file, a dict or a Config says. The answer's InvalidJobError has all that is wrong."""
    file = ""
    if isinstance(spec, Config | Mapping):
        try:
            text = quoted(spec.to_dict() if isinstance(spec, Config) else plain_job(spec))
        except RecursionError as error:
            raise InputError("the job holds itself, or far too many levels of fields") from error
        directory = spec.directory if isinstance(spec, Config) else os.getcwd()
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

    request = pb.ReadJobRequest(text=_sent(text[:MAX_TEXT], "a job"), directory=_sent(directory, "the path of the folder"))
    return Call("ReadJob", request, convert)


def _sent(text: str, what: str) -> str:
    """The text. InputError: it is none that can be sent."""
    if not isinstance(text, str):
        raise InputError(f"{what} is text, not {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{what} holds {text[error.start : error.end]!r}, which is no character of Unicode") from error
    return text


def _read(path: Path) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path}: not a file; give the path of a job file (YAML)")
        with open(path, "rb") as file:
            data = file.read(MAX_TEXT)
        # What is cut may end within a character.
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=len(data) < MAX_TEXT)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; give the path of a job file (YAML), a dict, or a tacc.Config") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    except UnicodeEncodeError as error:
        raise InputError(f"{os.fspath(path)!r} is no path of a file") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # A character 0.
        raise InputError(f"{os.fspath(path)!r} is no path of a file: {error}") from error


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


class Deadline:
    """The end of the seconds that a caller gives for a job to end in; None: it may take as long as it will."""

    def __init__(self, job: str, seconds: float | None):
        self._job, self._seconds = job, seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Seconds that are left. AnswerTimeoutError: none are."""
        if self._end is None:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise AnswerTimeoutError(f"{self._job} has not ended after {self._seconds:g} s; it goes on")
        return left

    def pause(self, seconds: float) -> float:
        """So many seconds, or what is left of them."""
        return seconds if self._end is None else max(0.0, min(seconds, self._end - time.monotonic()))


class Patience:
    """Says how long to wait before a coordinator that is away, or hangs, is asked again.

    Args:
        address: The coordinator's.
        seconds: How long it may be away; None: as long as it will.
    """

    def __init__(self, address: str, seconds: float | None = None):
        self._address = address
        self._give_up = seconds
        self._away_since: float | None = None
        self._pause = 0.0

    def came(self) -> None:
        """Something was received."""
        if self._away_since is not None:
            log.warning("the coordinator at %s is back", self._address)
        self._away_since, self._pause = None, 0.0

    def after(self, error: TaccError) -> float:
        """Seconds to wait. Raises the error if waiting does not help, or was long enough."""
        if not isinstance(error, CoordinatorError | AnswerTimeoutError):
            raise error
        now = time.monotonic()
        self._pause = min(2.0, self._pause * 2) if self._pause else 0.2
        if self._give_up is not None and now + self._pause > (self._away_since or now) + self._give_up:
            raise error
        if self._away_since is None:
            self._away_since = now
            log.warning("the coordinator at %s is away; jobs go on, trying to reconnect", self._address)
        return self._pause


# --- Answers ----------------------------------------------------------------------------------------------------------

_AWAY = {
    "Connection refused": "nothing listens there",
    "No such file or directory": "nothing listens there",
    "Permission denied": "it is another user's",
    "Hostname Verification": "its certificate has not that host; say which name it has: tls_server_name or TACC_TLS_SERVER_NAME",
    "CERTIFICATE_VERIFY_FAILED": "no authority in your ca.crt has signed its certificate",
    "WRONG_VERSION_NUMBER": "it is without TLS",
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

_NO_TOKEN = "Getting metadata from plugin failed with error: "  # gRPC's words before those of tls.py.


def explain(error: grpc.RpcError, address: str, was_connected: bool) -> TaccError:
    """The error of this package that says what gRPC's means."""
    code, message = error.code(), printable(error.details() or "")
    if problem := message.partition(_NO_TOKEN)[2]:
        return InputError(problem)
    if message.startswith("the token cannot be checked now: "):
        return CoordinatorError(message)
    # A server that goes away while it answers is reported in several ways.
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED) or (code == grpc.StatusCode.UNKNOWN and "tream" in message):
        why = next((text for part, text in _AWAY.items() if part in message), message)
        if was_connected:
            return CoordinatorError(f"lost the coordinator at {address}: {why}")
        if why == "the connection broke":
            why += ", as it does to who has no certificate of a coordinator with TLS (tls_dir or TACC_TLS_DIR)"
        return CoordinatorError(
            f"no coordinator at {address}: {why}; start one on this machine with `taccctl up`, or say where it is: tacc.Client(address) or TACC_ADDRESS"
        )
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return AnswerTimeoutError(message if message != "Deadline Exceeded" else f"no answer in time from the coordinator at {address}")
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return VersionError(f"the coordinator at {address} cannot do that: it is of another version than this package, {__version__}, or none of tacc's")
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
    if not is_of_this_machine(coordinator):
        return
    problems: list[Problem] = []
    _missing(spec, "", problems)
    if problems:
        raise InvalidJobError(problems)


def is_of_this_machine(coordinator: CoordinatorVersion) -> bool:
    """Whether it is a process of this machine."""
    return bool(coordinator.state_dir) and _is_coordinator(coordinator.pid) and os.path.exists(coordinator.state_dir)


def _is_coordinator(pid: int) -> bool:
    """Whether the process of this machine with this id is one: the coordinator may be of another machine, on which ids say nothing here."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("tacc-coordinato")  # The kernel keeps 15 characters.
    except OSError:
        return False


def _missing(message: ProtobufMessage, path: str, problems: list[Problem]) -> None:
    for field, value in message.ListFields():
        name = f"{path}.{field.name}".lstrip(".")
        if field.is_repeated:
            continue
        if field.message_type is not None:
            _missing(value, name, problems)
            continue
        rule = field.GetOptions().Extensions[options_pb2.rule]
        if rule.upload and value.startswith(UPLOAD_PREFIX):
            continue
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


def closed(address: str) -> TaccError:
    return TaccError(f"this client of {address} is closed; make another")
