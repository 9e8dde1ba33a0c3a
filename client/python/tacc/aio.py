"""`tacc.AsyncClient`: `tacc.Client` for asyncio. The same names, arguments, results and errors; methods are awaited, streams are `async for`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio

from tacc import calls, daemon
from tacc import export as exporting
from tacc.calls import Call, LogStream, Patience, Spec, WatchItem, WatchStream
from tacc.errors import AnswerTimeoutError, CoordinatorError, TaccError
from tacc.messages import Checkpoint, CoordinatorVersion, EvalMetrics, JobEvent, JobStatus, LogLine, PlanSummary, StepMetrics, Worker
from tacc.plans import Plan
from tacc.v1.coordinator_pb2_grpc import CoordinatorServiceStub

T = TypeVar("T")


class AsyncClient:
    """A connection to a coordinator, as `Client`:

        async with tacc.AsyncClient() as client:
            job = await client.submit("job.yaml")
            async for item in job.watch():
                print(item)

    The connection is made by `async with`, or by `await client.connect()`.
    """

    def __init__(self, address: str | None = None, *, start: bool = True):
        self._given, self._start = address, start
        self.address = address or ""
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._was_connected = False

    async def connect(self) -> Self:
        """Connects, and starts a coordinator where there is none. Raises what `Client` raises."""
        if self._given is not None:
            self.address = daemon.check_address(self._given, "address")
        else:
            self.address = await asyncio.to_thread(daemon.local_address, self._start)
        self._channel = grpc.aio.insecure_channel(self.address, options=calls.CHANNEL_OPTIONS)
        self._stub = CoordinatorServiceStub(self._channel)  # type: ignore[no-untyped-call]
        try:
            calls.check_version(await self.version(), self.address)
        except TaccError:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Ends the connection. Jobs go on."""
        if self._channel is not None:
            await self._channel.close()
        self._channel = self._stub = None

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
        patience = Patience(self.address)
        give_up = asyncio.get_running_loop().time() + calls.SUBMIT_RETRY_SECONDS
        while True:
            try:
                return AsyncJob(self, await self._run(call))
            except CoordinatorError as error:  # Asked again with the same id, it makes no second job.
                seconds = patience.after(error)
                if asyncio.get_running_loop().time() + seconds > give_up:
                    raise
                await asyncio.sleep(seconds)

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

    # --- How calls are made ---

    async def _read(self, spec: Spec) -> Any:
        job = await self._run(calls.read_job(spec))
        calls.check_paths(job, await self.version())
        return job

    async def _run(self, call: Call[T]) -> T:
        if self._stub is None:
            raise CoordinatorError("not connected: use `async with tacc.AsyncClient() as client`, or await client.connect()")
        try:
            answer = await getattr(self._stub, call.method)(call.request, timeout=call.seconds)
        except grpc.RpcError as error:
            raise self._explained(error) from None
        self._was_connected = True
        return call.convert(answer)

    async def _run_patiently(self, call: Call[T]) -> T:
        """The same of a coordinator that was there: while it is away, it is asked again."""
        patience = Patience(self.address)
        while True:
            try:
                return await self._run(call)
            except CoordinatorError as error:
                await asyncio.sleep(patience.after(error))

    def _explained(self, error: grpc.RpcError) -> TaccError:
        explained = calls.explain(error, self.address, self._was_connected)
        self._was_connected = self._was_connected or not isinstance(explained, CoordinatorError)
        return explained

    async def _stream(self, stream: WatchStream | LogStream, timeout: float | None = None) -> AsyncIterator[Any]:
        clock = asyncio.get_running_loop().time
        deadline = None if timeout is None else clock() + timeout
        patience = Patience(self.address)
        while True:
            left = None if deadline is None else deadline - clock()
            if left is not None and left <= 0:
                calls.no_answer(stream.job, timeout or 0)
            call = getattr(self._stub, stream.method)(stream.request(), timeout=left)
            try:
                async for response in call:
                    self._was_connected = True
                    patience.came()
                    for item in stream.take(response):
                        yield item
                if not stream.follow or calls.has_ended(await self._run(calls.get_job(stream.job))):
                    return
                seconds = patience.after(CoordinatorError("the stream ended"))
            except (grpc.RpcError, TaccError) as error:
                explained = self._explained(error) if isinstance(error, grpc.RpcError) else error
                if isinstance(explained, AnswerTimeoutError):
                    if timeout is not None:
                        calls.no_answer(stream.job, timeout)
                    explained = CoordinatorError(str(explained))
                seconds = patience.after(explained)
            finally:
                call.cancel()
            await asyncio.sleep(seconds if deadline is None else max(0.0, min(seconds, deadline - clock())))


class AsyncJob:
    """A job of a coordinator, as `Job`."""

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
        return self._client._stream(WatchStream(self.id, cursor, events=events, metrics=metrics, follow=follow), timeout)

    def logs(self, follow: bool = False, *, rank: int | None = None, tail: int = 0) -> AsyncIterator[LogLine]:
        """As `Job.logs`."""
        return self._client._stream(LogStream(self.id, rank=rank, tail=tail, follow=follow))

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

        async def status() -> JobStatus:
            return await self._client._run_patiently(calls.get_job(self.id))

        items = self.watch(timeout=timeout)
        async for _ in shown_async(status, items) if progress else items:
            pass
        return calls.outcome(await status())

    async def cancel(self, *, now: bool = False) -> JobStatus:
        """As `Job.cancel`."""
        return await self._client._run(calls.cancel_job(self.id, now))

    async def checkpoints(self) -> list[Checkpoint]:
        """As `Job.checkpoints`."""
        return (await self.status()).checkpoints

    async def export(self, directory: str | os.PathLike[str], *, step: int | None = None) -> str:
        """As `Job.export`."""
        return await asyncio.to_thread(exporting.export, self._client.address, self.id, directory, step)

    async def plan(self) -> PlanSummary | None:
        """As `Job.plan`."""
        return (await self.status()).plan
