"""`tacc.AsyncClient`: `tacc.Client` for asyncio. The same names, arguments, results and errors; methods are awaited, streams are `async for`.

Trackers alone have no form for asyncio: `Job.report`, and `report_to` of `Job.wait`, are for a thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio

from tacc import calls, daemon, tls
from tacc import export as exporting
from tacc.calls import Call, Deadline, LogStream, Patience, Spec, WatchItem, WatchStream
from tacc.client import Client
from tacc.connections import Connections
from tacc.errors import CoordinatorError, TaccError
from tacc.messages import Checkpoint, CoordinatorVersion, EvalMetrics, JobEvent, JobStatus, LogLine, PlanSummary, StepMetrics, Worker
from tacc.plans import Plan

T = TypeVar("T")


class AsyncClient:
    """A connection to a coordinator, as `Client`:

        async with tacc.AsyncClient() as client:
            job = await client.submit("job.yaml")
            async for item in job.watch():
                print(item)

    The connection is made by `async with`, or by `await client.connect()`.
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
        self._given, self._start = address, start
        self._settings = tls.TlsSettings(tls_dir, tls_server_name, token_file)
        self.address = address or ""
        self.tls = tls.Tls()
        self._connections: Connections[grpc.aio.Channel] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._was_connected = False

    async def connect(self) -> Self:
        """Connects, and starts a coordinator where there is none; changes nothing where it is connected. Raises what `Client` raises.

        A connection belongs to the event loop in which it is made. TaccError: it has one in another, which still runs.
        """
        loop = asyncio.get_running_loop()
        if self._connections is not None and self._loop is loop:
            return self
        if self._connections is not None and self._loop is not None and not self._loop.is_closed():
            raise self._elsewhere()
        place = await asyncio.to_thread(daemon.find_coordinator, self._given, self._start, self._settings)
        if self._connections is not None and self._loop is loop:  # Another task has connected meanwhile.
            return self
        self.address, self.tls = place.address, place.tls
        self._connections = Connections(lambda: tls.open_channel(grpc.aio, self.address, self.tls), self.tls.certificate)
        self._loop = loop
        try:
            calls.check_version(await self.version(), self.address)
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Ends the connection. Jobs go on; what waits for them in other tasks ends with a TaccError."""
        connections, self._connections = self._connections, None
        if connections is not None and self._loop is asyncio.get_running_loop():
            for channel in connections.channels:
                await channel.close()

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(type(self), start=self._start, **dataclasses.asdict(self._settings))
        return again, (self.address or self._given,)

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self.address!r})"

    async def version(self) -> CoordinatorVersion:
        """As `Client.version`."""
        return await self._run(calls.get_version())

    async def check(self, spec: Spec) -> dict[str, Any]:
        """As `Client.check`."""
        from tacc.message_base import to_plain

        return to_plain(await self._read(spec))

    async def submit(self, spec: Spec, *, request_id: str | None = None) -> AsyncJob:
        """As `Client.submit`."""
        call = calls.submit_job(await self._read(spec), request_id)
        patience = Patience(self.address, calls.RETRY_SECONDS)
        while True:
            try:
                return AsyncJob(self, await self._run(call))
            except CoordinatorError as error:  # Asked again with the same id, it makes no second job.
                await asyncio.sleep(patience.after(error))

    async def jobs(self, limit: int = 100) -> list[AsyncJob]:
        """As `Client.jobs`."""
        return [AsyncJob(self, status) for status in await self._run(calls.list_jobs(limit))]

    async def job(self, name: str) -> AsyncJob:
        """As `Client.job`."""
        return AsyncJob(self, await self._run(calls.get_job(name)))

    async def workers(self) -> list[Worker]:
        """As `Client.workers`."""
        return await self._run(calls.list_workers())

    async def plan(self, spec: Spec, *, gpus: int | None = None, cluster: Mapping[str, Any] | None = None) -> Plan:
        """As `Client.plan`."""
        return Plan(await self._run(calls.plan_job(await self._read(spec), gpus, cluster)))

    async def upload(self, folder: str | os.PathLike[str], *, progress: bool = True) -> str:
        """As `Client.upload`. It runs in a thread."""

        def send() -> str:
            with Client(self.address, start=False, **self.tls.arguments()) as client:
                return client.upload(folder, progress=progress)

        return await asyncio.to_thread(send)

    # --- How calls are made ---

    async def _read(self, spec: Spec) -> Any:
        job = await self._run(calls.read_job(spec))
        calls.check_paths(job, await self.version())
        return job

    def _connected(self) -> Connections[grpc.aio.Channel]:
        """The connections. TaccError: there are none in this event loop."""
        if self._connections is None:
            raise self._closed()
        if self._loop is not asyncio.get_running_loop():
            raise self._elsewhere()
        return self._connections

    def _closed(self) -> TaccError:
        if self._was_connected:
            return calls.closed(self.address)
        return CoordinatorError("not connected: use `async with tacc.AsyncClient() as client`, or await client.connect()")

    def _elsewhere(self) -> TaccError:
        return TaccError("this AsyncClient is connected in another event loop; make one in each loop, or use tacc.Client, which threads may share")

    def _ended_by_close(self) -> bool:
        """Whether a call was cancelled because the client was closed, and not the task that waits for it."""
        task = asyncio.current_task()
        return self._connections is None and (task is None or not task.cancelling())

    async def _run(self, call: Call[T], seconds: float | None = None) -> T:
        """What the call answers, in the seconds at most that are given, if any are."""
        service = self._connected().service
        try:
            answer = await getattr(service, call.method)(call.request, timeout=min(call.seconds, seconds or call.seconds))
        except grpc.RpcError as error:
            raise self._explained(error) from None
        except asyncio.CancelledError:
            if self._ended_by_close():
                raise self._closed() from None
            raise
        self._was_connected = True
        return call.convert(answer)

    async def _run_patiently(self, call: Call[T], deadline: Deadline) -> T:
        """The same of a coordinator that was there: while it is away, it is asked again."""
        patience = Patience(self.address)
        while True:
            left = deadline.left()
            try:
                return await self._run(call, left)
            except TaccError as error:
                why = error
            deadline.left()
            await asyncio.sleep(deadline.pause(patience.after(why)))

    def _explained(self, error: grpc.RpcError) -> TaccError:
        if self._connections is None:
            return self._closed()
        explained = calls.explain(error, self.address, self._was_connected)
        self._was_connected = self._was_connected or not isinstance(explained, CoordinatorError)
        return explained

    async def _stream(self, stream: WatchStream | LogStream, deadline: Deadline) -> AsyncIterator[Any]:
        patience = Patience(self.address, None if stream.follow else calls.RETRY_SECONDS)
        while True:
            with self._connected().stream() as service:
                call = getattr(service, stream.method)(stream.request(), timeout=deadline.left())
                try:
                    async for response in call:
                        self._was_connected = True
                        patience.came()
                        for item in stream.take(response):
                            yield item
                    if not stream.follow or calls.has_ended(await self._run(calls.get_job(stream.job), deadline.left())):
                        return
                    why: TaccError = CoordinatorError("the stream ended")
                except grpc.RpcError as error:
                    why = self._explained(error)
                except asyncio.CancelledError:
                    if not self._ended_by_close():
                        raise
                    raise self._closed() from None
                except TaccError as error:
                    why = error
                finally:
                    call.cancel()
            deadline.left()
            await asyncio.sleep(deadline.pause(patience.after(why)))


class AsyncJob:
    """A job of a coordinator, as `Job`, without `report`: trackers wait for their servers, so call `Job.report` in a thread."""

    def __init__(self, client: AsyncClient, status: JobStatus):
        self._client = client
        self.id = status.id
        self.name = status.name

    def __repr__(self) -> str:
        return f"AsyncJob({self.id!r})"

    async def status(self) -> JobStatus:
        """As `Job.status`."""
        return await self._client._run(calls.get_job(self.id))

    def watch(
        self, cursor: int = 0, *, events: bool = True, metrics: bool = True, follow: bool = True, timeout: float | None = None
    ) -> AsyncIterator[WatchItem]:
        """As `Job.watch`."""
        return self._client._stream(WatchStream(self.id, cursor, events=events, metrics=metrics, follow=follow), Deadline(self.id, timeout))

    def logs(self, follow: bool = False, *, rank: int | None = None, tail: int = 0) -> AsyncIterator[LogLine]:
        """As `Job.logs`."""
        return self._client._stream(LogStream(self.id, rank=rank, tail=tail, follow=follow), Deadline(self.id, None))

    async def events(self) -> list[JobEvent]:
        """As `Job.events`."""
        return [item async for item in self.watch(metrics=False, follow=False)]  # type: ignore[misc]

    async def metrics(self, kind: str = "step", *, every_attempt: bool = False) -> Any:
        """As `Job.metrics`."""
        of: dict[str, type[StepMetrics] | type[EvalMetrics]] = {"step": StepMetrics, "eval": EvalMetrics}
        if kind not in of:
            raise ValueError(f'kind = {kind!r} is not "step" or "eval"')
        return calls.table(of[kind], [item async for item in self.watch(events=False, follow=False)], every_attempt)

    async def wait(self, timeout: float | None = None, *, progress: bool = True) -> JobStatus:
        """As `Job.wait`."""
        from tacc.display import shown_async

        deadline = Deadline(self.id, timeout)

        async def status() -> JobStatus:
            return await self._client._run_patiently(calls.get_job(self.id), deadline)

        items = self._client._stream(WatchStream(self.id), deadline)
        async for _ in shown_async(status, items) if progress else items:
            pass
        return calls.outcome(await status())

    async def cancel(self, *, now: bool = False) -> JobStatus:
        """As `Job.cancel`."""
        return await self._client._run(calls.cancel_job(self.id, now))

    async def checkpoints(self) -> list[Checkpoint]:
        """As `Job.checkpoints`."""
        return (await self.status()).checkpoints

    async def export(self, directory: str | os.PathLike[str], *, step: int | None = None, merge: bool = False) -> str:
        """As `Job.export`."""
        return await asyncio.to_thread(exporting.export, self._client.address, self._client.tls, self.id, directory, step, merge)

    async def plan(self) -> PlanSummary | None:
        """As `Job.plan`."""
        return (await self.status()).plan
