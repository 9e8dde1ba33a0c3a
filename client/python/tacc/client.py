"""`tacc.Client`: a coordinator, and the jobs that it has."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from tacc import calls, daemon, tls
from tacc.calls import Call, Deadline, LogStream, Patience, Spec, WatchItem, WatchStream
from tacc.connections import Connections
from tacc.errors import CoordinatorError, TaccError
from tacc.messages import Checkpoint, CoordinatorVersion, EvalMetrics, JobEvent, JobStatus, LogLine, PlanSummary, StepMetrics, Worker
from tacc.plans import Plan

T = TypeVar("T")


class Client:
    """A connection to a coordinator.

        client = tacc.Client()                  # this machine's, started if there is none
        job = client.submit("job.yaml")
        job.wait()

    Methods may be called from several threads. All raise `CoordinatorError` when no coordinator answers. `AsyncClient` is the same for asyncio.

    Args:
        address: HOST:PORT or unix:/PATH of the coordinator. None: TACC_ADDRESS, else the one of this machine, which is started by `taccctl up`
            if there is none, and stays when this process ends.
        start: Whether one may be started.
        tls_dir: Folder of your certificate (docs/roles.md), for a coordinator with TLS. None: TACC_TLS_DIR, else without TLS. The coordinator of
            this machine that `taccctl up` has started is without.
        tls_server_name: Name in the coordinator's certificate, where that has not the host of the address. None: TACC_TLS_SERVER_NAME.
        token_file: File with a bearer token, in place of a certificate; `tls_dir` then needs ca.crt alone. It is read for each call, so that a
            new token is taken. None: TACC_TOKEN_FILE.

    Raises:
        InputError: The folder cannot be read, or the token's file cannot, or by everybody.
        CoordinatorError: No coordinator answers at the address; there is none on this machine, and none can be started.
        VersionError: It is of another version.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        start: bool = True,
        tls_dir: str | os.PathLike[str] | None = None,
        tls_server_name: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
    ):
        place = daemon.find_coordinator(address, start, tls.TlsSettings(tls_dir, tls_server_name, token_file))
        self.address, self.tls = place.address, place.tls
        self._was_connected = False
        self._is_closed = False
        self._connections: Connections[grpc.Channel] = Connections(lambda: tls.open_channel(grpc, self.address, self.tls), self.tls.certificate)
        try:
            calls.check_version(self.version(), self.address)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the connection. Jobs go on; what waits for them in other threads ends with a TaccError."""
        self._is_closed = True
        for channel in self._connections.channels:
            channel.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # In another process it is a connection of its own.
        return partial(type(self), **self.tls.arguments()), (self.address,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.address!r})"

    def version(self) -> CoordinatorVersion:
        """The coordinator's version, process and addresses."""
        return self._run(calls.get_version())

    def check(self, spec: Spec) -> dict[str, Any]:
        """The job that the spec says, as a dict with the names of the job file and whole paths. Starts nothing.

        Args:
            spec: Path of a job file, a dict of its fields, or a `tacc.Config`.

        Raises:
            InvalidJobError: It cannot be a job: `problems` has each mistake with its field, its place in the file and what to do; or, of a
                coordinator on this machine, a file that it reads is not there.
        """
        from tacc.message_base import to_plain

        return to_plain(self._read(spec))

    def submit(self, spec: Spec, *, request_id: str | None = None) -> Job:
        """Hands a job to the coordinator, which starts it when workers are free.

        Args:
            spec: Path of a job file, a dict of its fields, or a `tacc.Config`. Relative paths are taken from the file's folder, else from the
                current one.
            request_id: At most 128 characters. The same id with the same job gives the job that the first call made; with another job it is
                a ConflictError. None: a new one.

        Raises:
            InvalidJobError: As `check`.
            LimitError: The coordinator has as many jobs as it may have.
        """
        call = calls.submit_job(self._read(spec), request_id)
        patience = Patience(self.address, calls.RETRY_SECONDS)
        while True:
            try:
                return Job(self, self._run(call))
            except CoordinatorError as error:  # Asked again with the same id, it makes no second job.
                time.sleep(patience.after(error))

    def jobs(self, limit: int = 100) -> list[Job]:
        """The newest jobs, newest first, those that have ended too (the coordinator remembers the last 1000 of them).

        Args:
            limit: At most so many, at least 1.
        """
        return [Job(self, status) for status in self._run(calls.list_jobs(limit))]

    def job(self, name: str) -> Job:
        """A job that the coordinator has.

        Args:
            name: Its id, "tiny-3", or its name, "tiny": the newest of that name.

        Raises:
            JobNotFoundError: There is none.
        """
        return Job(self, self._run(calls.get_job(name)))

    def workers(self) -> list[Worker]:
        """The workers that are attached: name, state, device, and the job that each runs."""
        return self._run(calls.list_workers())

    def plan(self, spec: Spec, *, gpus: int | None = None, cluster: Mapping[str, Any] | None = None) -> Plan:
        """What the planner would do with a job: layouts with predicted step time and memory, best first. Starts nothing.

        Args:
            spec: As of `submit`.
            gpus: For so many GPUs, which need not be there: of `cluster`, or H100 SXM in nodes of 8. None: for the workers that are attached.
            cluster: Fields of a cluster file (docs/planning.md), as {"machine": "a100", "nodes": 4}.

        Raises:
            InvalidJobError, InputError: As `check`; no layout fits, and why.
            ConflictError: No workers are attached, and neither `gpus` nor `cluster` is given.
        """
        return Plan(self._run(calls.plan_job(self._read(spec), gpus, cluster)))

    def upload(self, folder: str | os.PathLike[str], *, progress: bool = True) -> str:
        """Sends a folder to the coordinator, for jobs whose workers do not see it. What the coordinator has already is not sent again.

            job = client.submit({..., "model": {"graph": client.upload(folder)}, ...})

        A connection that breaks is made again, and goes on where it was. The coordinator keeps uploads that jobs use, and of the others the last
        (`tacc-coordinator --max-uploads`). Each machine of a job's workers fetches it once.

        Args:
            folder: That `tacc.export_model` has written, or of a Hugging Face model. Folders in it are left out.
            progress: Whether a terminal or a notebook shows how far it is.

        Returns:
            What `model.graph` or `model.path` of a job name it by: "upload:" and 64 hex digits, the same for the same files.

        Raises:
            InputError: There is no such folder, or no file in it.
            LimitError: The coordinator has no room for it.
        """
        from tacc import uploads

        return uploads.send(self, uploads.of_folder(folder), progress=progress)

    # --- How calls are made ---

    def _read(self, spec: Spec) -> Any:
        job = self._run(calls.read_job(spec))
        calls.check_paths(job, self.version())
        return job

    def _connected(self) -> Connections[grpc.Channel]:
        """The connections. TaccError: the client is closed."""
        if self._is_closed:
            raise calls.closed(self.address)
        return self._connections

    def _run(self, call: Call[T], seconds: float | None = None) -> T:
        """What the call answers, in the seconds at most that are given, if any are."""
        service = self._connected().service
        try:
            answer = getattr(service, call.method)(call.request, timeout=min(call.seconds, seconds or call.seconds))
        except grpc.RpcError as error:
            raise self._explained(error) from None
        self._was_connected = True
        return call.convert(answer)

    def _run_patiently(self, call: Call[T], deadline: Deadline) -> T:
        """The same of a coordinator that was there: while it is away, it is asked again."""
        patience = Patience(self.address)
        while True:
            left = deadline.left()
            try:
                return self._run(call, left)
            except TaccError as error:
                why = error
            deadline.left()
            time.sleep(deadline.pause(patience.after(why)))

    def _explained(self, error: grpc.RpcError) -> TaccError:
        if self._is_closed:
            return calls.closed(self.address)
        explained = calls.explain(error, self.address, self._was_connected)
        self._was_connected = self._was_connected or not isinstance(explained, CoordinatorError)
        return explained

    def _stream(self, stream: WatchStream | LogStream, deadline: Deadline) -> Iterator[Any]:
        """What a stream brings. A stream that breaks is asked for again from where it stopped."""
        patience = Patience(self.address, None if stream.follow else calls.RETRY_SECONDS)
        while True:
            with self._connected().stream() as service:
                call = getattr(service, stream.method)(stream.request(), timeout=deadline.left())
                try:
                    for response in call:
                        self._was_connected = True
                        patience.came()
                        yield from stream.take(response)
                    if not stream.follow or calls.has_ended(self._run(calls.get_job(stream.job), deadline.left())):
                        return
                    why: TaccError = CoordinatorError("the stream ended")
                except grpc.RpcError as error:
                    why = self._explained(error)
                except TaccError as error:
                    why = error
                finally:
                    call.cancel()
            deadline.left()
            time.sleep(deadline.pause(patience.after(why)))


class Job:
    """A job of a coordinator. `Client.submit`, `Client.job` and `Client.jobs` make them; it goes on when this object, or this process, ends."""

    def __init__(self, client: Client, status: JobStatus):
        self._client = client
        self.id = status.id
        self.name = status.name

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    def _repr_html_(self) -> str:
        from tacc.display import job_html

        return job_html(self.status(), self.watch(follow=False))

    def status(self) -> JobStatus:
        """Its state now: phase, step, newest metrics, checkpoints, restarts, ranks, plan. JobNotFoundError: the coordinator has forgotten it."""
        return self._client._run(calls.get_job(self.id))

    def watch(
        self, cursor: int = 0, *, events: bool = True, metrics: bool = True, follow: bool = True, timeout: float | None = None
    ) -> Iterator[WatchItem]:
        """Events and metrics, each once and in order, from the beginning and until the job ends.

        A connection that breaks is made anew, and the stream goes on behind what was received, however often and long the coordinator is away.

        Args:
            cursor: Only what is newer. `JobStatus.cursor`: only what comes.
            events: Whether `JobEvent`s come.
            metrics: Whether `StepMetrics` (of each step) and `EvalMetrics` come. A step that a restart does again comes again, with its attempt.
            follow: Whether to wait for what comes until the job ends.
            timeout: In seconds, of it all.

        Raises:
            AnswerTimeoutError: The job has not ended in time. It goes on.
        """
        return self._client._stream(WatchStream(self.id, cursor, events=events, metrics=metrics, follow=follow), Deadline(self.id, timeout))

    def logs(self, follow: bool = False, *, rank: int | None = None, tail: int = 0) -> Iterator[LogLine]:
        """Lines of the ranks' logs, with the job's events between them (rank -1).

        Args:
            follow: Whether to wait for what comes until the job ends. A connection that breaks is made anew, as in `watch`.
            rank: Only of this rank.
            tail: Only the last lines of those that are there; 0: all that are kept.

        Raises:
            CoordinatorError: Without `follow`: the coordinator has been away for 10 s.
        """
        return self._client._stream(LogStream(self.id, rank=rank, tail=tail, follow=follow), Deadline(self.id, None))

    def events(self) -> list[JobEvent]:
        """What has happened so far, oldest first. CoordinatorError: the coordinator has been away for 10 s."""
        return list(self.watch(metrics=False, follow=False))  # type: ignore[arg-type]

    def metrics(self, kind: str = "step", *, every_attempt: bool = False) -> Any:
        """Metrics so far, a row for each step: a pandas DataFrame, or a dict of lists where pandas is not installed.

        Args:
            kind: "step" (`StepMetrics`) or "eval" (`EvalMetrics`).
            every_attempt: A step that a restart did again is there once for each attempt, not only as the last did it.

        Returns:
            Columns are the fields of `StepMetrics` or `EvalMetrics`.

        Raises:
            CoordinatorError: The coordinator has been away for 10 s.
        """
        of: dict[str, type[StepMetrics] | type[EvalMetrics]] = {"step": StepMetrics, "eval": EvalMetrics}
        if kind not in of:
            raise ValueError(f'kind = {kind!r} is not "step" or "eval"')
        return calls.table(of[kind], self.watch(events=False, follow=False), every_attempt)

    def wait(self, timeout: float | None = None, *, progress: bool = True, report_to: str | Sequence[str] = ()) -> JobStatus:
        """Waits until the job has finished; meanwhile shows how far it is.

        Args:
            timeout: In seconds.
            progress: A picture with bar, loss curve and rates in a notebook, a line on a terminal, a line every few seconds elsewhere.
            report_to: "mlflow", "wandb" or both: logs metrics there, as `report`.

        Returns:
            Its last state; `exported_path` is the folder of the trained model.

        Raises:
            JobFailedError: It failed; the message says why, with the last lines of the log.
            JobCancelledError: It was cancelled.
            AnswerTimeoutError: It has not ended in time. It goes on.
        """
        from tacc.display import shown

        deadline = Deadline(self.id, timeout)
        status = partial(self._client._run_patiently, calls.get_job(self.id), deadline)
        items = self._client._stream(WatchStream(self.id), deadline)
        self._report(shown(status, items) if progress else items, report_to, status)
        return calls.outcome(status())

    def report(self, to: str | Sequence[str], *, follow: bool = True, timeout: float | None = None) -> None:
        """Logs metrics to MLflow or Weights & Biases, from the beginning and until the job ends.

        Each step and evaluation is logged once, also when this is called again, or for a job that goes on in the folder of an earlier one: the
        trackers' runs go on. They are configured as usual (MLFLOW_TRACKING_URI, WANDB_PROJECT, ...). TensorBoard's files need nothing of this:
        they are always in the run's folder.

        Args:
            to: "mlflow", "wandb" or both.
            follow: Whether to wait for what comes until the job ends.
            timeout: In seconds.

        Raises:
            InputError, ImportError: There is no such tracker; it is not installed.
            AnswerTimeoutError: The job has not ended in time. It goes on.
        """
        deadline = Deadline(self.id, timeout)
        status = partial(self._client._run_patiently, calls.get_job(self.id), deadline)
        self._report(self._client._stream(WatchStream(self.id, follow=follow), deadline), to, status)

    def _report(self, items: Iterator[WatchItem], to: str | Sequence[str], status: Callable[[], JobStatus]) -> None:
        from tacc.reporting import Reporter, check_names

        reporter = Reporter(status(), self._client.address, check_names(to))
        phase = ""
        try:
            for item in items:
                reporter.take(item)
            phase = status().phase
        finally:
            reporter.close(phase)

    def cancel(self, *, now: bool = False) -> JobStatus:
        """Stops the job. Returns when that is decided; `wait` tells when it has ended. One that has ended stays as it is.

        Args:
            now: At once and without a checkpoint; else after one, from which the job goes on when it is submitted again.
        """
        return self._client._run(calls.cancel_job(self.id, now))

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints that are kept, oldest first. They are folders of `status().checkpoint_dir`."""
        return self.status().checkpoints

    def export(self, directory: str | os.PathLike[str], *, step: int | None = None, merge: bool = False) -> str:
        """Writes a checkpoint as a Hugging Face folder, by taccctl on this machine, which must see the checkpoints.

        Args:
            directory: The folder to write.
            step: The checkpoint of this step. None: the newest.
            merge: Of a training of adapters the whole model, with the adapters added to its weights, in place of the adapter alone.

        Returns:
            The whole path of the folder.

        Raises:
            InputError: There is no such checkpoint, nothing to merge, or the folder holds what no export has written.
            TaccError: There is no taccctl on this machine, or it has failed.
        """
        from tacc.export import export

        return export(self._client.address, self._client.tls, self.id, directory, step, merge)

    def plan(self) -> PlanSummary | None:
        """The layout that runs, with what was predicted of it: step time, memory, FLOPs. None before it is compiled."""
        return self.status().plan
