"""tacc.Client and tacc.AsyncClient where things go wrong: a coordinator that hangs or is gone, odd input, forks, closed clients, very many streams."""

import asyncio
import concurrent.futures
import multiprocessing
import os
import pickle
import re
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import grpc
import pytest
import tacc
import tacc.aio
import tacc.calls
from cluster import Cluster, write_job
from tacc.connections import Connections
from tacc.v1 import coordinator_pb2 as pb
from tacc.v1 import coordinator_pb2_grpc

LONG = {"train": {"max_steps": 1_000_000}, "checkpoint": {"save_steps": 1_000_000}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with tacc.Client(cluster.address) as client:
        yield client


@pytest.fixture(scope="module")
def job(cluster, tmp_path_factory):
    """A job that runs until the tests end."""
    client = tacc.Client(cluster.address)
    job = client.submit(write_job(tmp_path_factory.mktemp("long"), name="long", **LONG))
    next(item for item in job.watch() if isinstance(item, tacc.StepMetrics))
    yield job
    job.cancel(now=True)


def stop(cluster) -> int:
    """The coordinator hangs from now on. Its process id."""
    pid = cluster.coordinator.popen.pid
    os.kill(pid, signal.SIGSTOP)
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    cluster.wait(lambda: all((task / "stat").read_text().rpartition(") ")[2][0] == "T" for task in tasks), "the coordinator to stop")
    return pid


@pytest.fixture
def stopped(cluster):
    """The coordinator hangs."""
    pid = stop(cluster)
    yield
    os.kill(pid, signal.SIGCONT)


# --- A coordinator that hangs or is gone ---


def test_a_call_to_a_coordinator_that_hangs_ends(client, stopped):
    call = tacc.calls.list_workers()
    with pytest.raises(tacc.AnswerTimeoutError, match="no answer in time from the coordinator"):
        client._run(tacc.calls.Call(call.method, call.request, call.convert, 0.5))


@pytest.mark.parametrize("progress", [True, False])
def test_waiting_keeps_its_time_while_the_coordinator_hangs(job, stopped, progress):
    start = time.monotonic()
    with pytest.raises(tacc.AnswerTimeoutError, match=r"^long-1 has not ended after 1 s; it goes on$"):
        job.wait(1, progress=progress)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("progress", [True, False])
def test_waiting_outlives_a_call_without_an_answer(cluster, job, progress, caplog):
    """A status that the progress asks for, while the coordinator hangs for longer than a call may take, does not end the waiting."""
    status = job.status()
    short = tacc.Client(cluster.address)
    patient = short._run

    def run(call, seconds=None):
        return patient(tacc.calls.Call(call.method, call.request, call.convert, 0.3), seconds)

    short._run = run
    pid = stop(cluster)
    threading.Timer(2, os.kill, (pid, signal.SIGCONT)).start()
    start = time.monotonic()
    with pytest.raises(tacc.AnswerTimeoutError, match=r"^long-1 has not ended after 4 s; it goes on$"):
        tacc.Job(short, status).wait(4, progress=progress)
    assert 4 <= time.monotonic() - start < 8


def test_a_stream_breaks_when_the_coordinator_hangs_and_goes_on_when_it_is_back(cluster, job, monkeypatch, caplog):
    """As when its machine is gone without a word: no byte says so, only that pings have no answer."""
    quick = [(name, 1000 if name.startswith("grpc.keepalive") or "ping_timeout" in name else value) for name, value in tacc.calls.CHANNEL_OPTIONS]
    monkeypatch.setattr(tacc.calls, "CHANNEL_OPTIONS", quick)
    items: list = []
    done = threading.Event()

    def follow() -> None:
        for item in tacc.Client(cluster.address).job(job.id).watch():
            items.append(item)
            if done.is_set():
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    cluster.wait(lambda: items, "the watch")
    pid = stop(cluster)
    try:
        cluster.wait(lambda: "is away" in caplog.text, "the stream to break", timeout=20)
    finally:
        os.kill(pid, signal.SIGCONT)
    cluster.wait(lambda: "is back" in caplog.text, "the stream to go on", timeout=20)
    done.set()
    thread.join(timeout=20)
    steps = [item.step for item in items if isinstance(item, tacc.StepMetrics)]
    assert steps == list(range(1, len(steps) + 1))


def test_what_does_not_follow_a_job_gives_up_where_nobody_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(tacc.calls, "RETRY_SECONDS", 1.0)
    with Cluster(tmp_path / "gone", workers=2) as gone:
        client = tacc.Client(gone.address)
        job = client.submit(write_job(tmp_path, **LONG))
        gone.coordinator.kill()
        for ask in (job.metrics, job.events, lambda: list(job.logs()), lambda: job._repr_html_()):
            start = time.monotonic()
            with pytest.raises(tacc.CoordinatorError, match=r"lost the coordinator at .*: nothing listens there"):
                ask()
            assert time.monotonic() - start < 10
        with pytest.raises(tacc.AnswerTimeoutError, match="has not ended after 1 s"):
            job.wait(1)

        async def wait():
            connected = tacc.AsyncClient(gone.address)
            connected._connections = tacc.aio.Connections(lambda: tacc.aio.grpc.aio.insecure_channel(gone.address))
            connected._loop = asyncio.get_running_loop()
            with pytest.raises(tacc.AnswerTimeoutError, match="has not ended after 1 s"):
                await tacc.AsyncJob(connected, job_status).wait(1)
            with pytest.raises(tacc.CoordinatorError, match="nothing listens there"):
                await tacc.AsyncJob(connected, job_status).metrics()
            await connected.close()

        job_status = type("Status", (), {"id": job.id, "name": job.name})
        asyncio.run(wait())
        gone.start_coordinator()
        cluster_job = tacc.Client(gone.address).job(job.id)
        cluster_job.cancel(now=True)


# --- Odd input ---


@pytest.mark.parametrize(
    "ask, error, wanted",
    [
        (lambda c: c.job("x" * 100_000), tacc.JobNotFoundError, "^no job x{128}$"),
        (lambda c: c.job("\x1b[31mred"), tacc.JobNotFoundError, r"^no job  \[31mred$"),
        (lambda c: c.job("a\ud800"), tacc.InputError, r"a job's name holds '\\ud800', which is no character of Unicode"),
        (lambda c: c.job(3), tacc.InputError, "a job's name is text, not 3"),
        (lambda c: c.jobs(0), ValueError, "limit = 0 is less than 1"),
        (lambda c: c.check({"name": "a\ud800"}), tacc.InputError, r"a job holds '\\ud800'"),
        (lambda c: c.check("a\0b"), tacc.InputError, r"'a\\x00b' is no path of a file: embedded null byte"),
        (lambda c: c.check("a\ud800"), tacc.InputError, r"'a\\ud800' is no path of a file"),
        (lambda c: c.check({"name": "a" * 10_000_000}), tacc.InvalidJobError, "has more than 262144 bytes"),
        (lambda c: c.check(nested(100)), tacc.InvalidJobError, "more than 16 levels of nesting"),
        (lambda c: c.check(nested(100_000)), tacc.InputError, "the job holds itself, or far too many levels of fields"),
        (lambda c: c.check(endless()), tacc.InputError, "the job holds itself"),
        (lambda c: c.check({"train": {"learning_rate": float("nan")}}), tacc.InvalidJobError, "train.learning_rate = NaN is not finite"),
        (lambda c: c.submit({}, request_id="a\ud800"), tacc.InvalidJobError, "name"),
        (lambda c: c.plan(JOB, cluster={"machine": object()}), tacc.InputError, "cluster = .* is not the fields of a cluster file"),
        (lambda c: tacc.Client(f"http://{c.address}"), tacc.InputError, r'address = "http://.*" is not HOST:PORT'),
        (lambda c: tacc.Client("::1:7070"), tacc.InputError, r'is not HOST:PORT, as 127.0.0.1:7070 or \[::1\]:7070'),
        (lambda c: tacc.Client(7070), tacc.InputError, "^address is a text HOST:PORT, as '127.0.0.1:7070', not 7070$"),
        (lambda c: tacc.compare(["a", "b"]), tacc.InputError, r"^compare takes jobs and results of tacc.fit, not 'a'; client.job\(NAME\) finds a job$"),
        (lambda c: tacc.compare(c), tacc.InputError, "^compare takes a list of jobs, as .*, not a Client$"),
    ],
)
def test_odd_input_is_refused_with_what_is_wrong(client, ask, error, wanted):
    with pytest.raises(error, match=wanted):
        ask(client)


JOB = {"name": "a", "model": {"path": "/"}, "data": {"path": "/"}, "train": {"max_steps": 1}}


def nested(levels: int) -> dict:
    job: dict = {}
    for _ in range(levels):
        job = {"model": job}
    return job


def endless() -> dict:
    job: dict = {"name": "a"}
    job["model"] = job
    return job


def test_a_file_that_is_too_large_is_refused_for_that(client, tmp_path):
    """Also where it is cut within a character."""
    path = tmp_path / "job.yaml"
    path.write_text("name: x" + "ü" * 1_000_000)
    with pytest.raises(tacc.InvalidJobError, match="has more than 262144 bytes"):
        client.check(path)


def test_paths_are_not_looked_for_where_the_coordinator_is_of_another_machine(client, monkeypatch):
    """One whose process has an id that here is another program's."""
    wanted = {"name": "a", "model": {"path": "/nowhere"}, "data": {"path": "/nowhere"}, "train": {"max_steps": 1}}
    with pytest.raises(tacc.InvalidJobError, match=r"model.path = /nowhere does not exist"):
        client.check(wanted)
    version = client.version()
    spec = client._run(tacc.calls.read_job(wanted))
    elsewhere = tacc.messages.CoordinatorVersion(version=version.version, pid=os.getpid(), state_dir=version.state_dir, metrics_address="")
    tacc.calls.check_paths(spec, elsewhere)


class Talkative(coordinator_pb2_grpc.CoordinatorServiceServicer):
    """Answers with errors as long as the job's name says."""

    def GetVersion(self, request, context):
        return pb.GetVersionResponse(version=tacc.__version__)

    def Get(self, request, context):
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "é" * int(request.job))


def test_a_long_message_comes_whole():
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(Talkative(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with tacc.Client(address) as client:
            for length in (1000, 3000, 50_000):
                with pytest.raises(tacc.InputError, match=f"^é{{{length}}}$"):
                    client.job(str(length))
    finally:
        server.stop(None)


# --- Other processes, threads and event loops ---


def test_errors_clients_and_jobs_go_to_other_processes(client, job):
    again = pickle.loads(pickle.dumps(job))
    assert again.id == job.id and again.status().phase == "running"
    status = job.status()
    assert pickle.loads(pickle.dumps(status)) == status
    for error in (tacc.JobFailedError(status), tacc.JobCancelledError(status), tacc.InvalidJobError([tacc.Problem("a", "b", 1, 2)], "job.yaml")):
        copied = pickle.loads(pickle.dumps(error))
        assert type(copied) is type(error) and str(copied) == str(error) and copied.__dict__ == error.__dict__


def use(job, queue):
    """Puts what a call, a stream and a new client make of it."""
    for ask in (job.status, lambda: next(job.watch()), lambda: tacc.Client(job._client.address)):
        try:
            queue.put(repr(ask()))
        except BaseException as error:
            queue.put(f"{type(error).__name__}: {error}")


def test_a_process_that_was_forked_is_told_to_be_started_in_another_way(client, cluster, job):
    """gRPC's threads are not there: a call hangs now and then. Nothing changes in the process that it was forked from."""
    watch = job.watch()
    next(watch)
    said = said_by(multiprocessing.get_context("fork"), job)
    assert len(said) == 3 and all(re.match(r'TaccError: process \d+ was forked from .*get_context\("spawn"\)', text) for text in said), said
    assert client.version().pid == cluster.coordinator.popen.pid
    next(watch)
    watch.close()
    said = said_by(multiprocessing.get_context("spawn"), job)
    assert "phase='running'" in said[0] and "accepted" in said[1] and said[2] == repr(client)


def said_by(context, job) -> list[str]:
    queue = context.Queue()
    child = context.Process(target=use, args=(job, queue))
    child.start()
    said = [queue.get(timeout=30) for _ in range(3)]
    child.join(timeout=30)
    assert child.exitcode == 0
    return said


def test_a_closed_client_says_so(cluster, job):
    client = tacc.Client(cluster.address)
    watch = client.job(job.id).watch()
    next(watch)
    threading.Timer(0.3, client.close).start()
    with pytest.raises(tacc.TaccError, match=r"^this client of .* is closed; make another$"):
        list(watch)
    with pytest.raises(tacc.TaccError, match="is closed"):
        client.version()
    client.close()


def test_an_async_client_belongs_to_an_event_loop(cluster, job):
    client = tacc.AsyncClient(cluster.address)
    first = asyncio.new_event_loop()
    try:
        first.run_until_complete(client.connect())
        with pytest.raises(tacc.TaccError, match="connected in another event loop"):
            asyncio.run(client.version())
        with pytest.raises(tacc.TaccError, match="connected in another event loop"):
            asyncio.run(client.connect())
    finally:
        first.run_until_complete(client.close())
        first.close()

    async def connect() -> int:
        await client.connect()
        assert await client.connect() is client  # Where it is connected nothing is done.
        return (await client.version()).pid

    for _ in range(2):  # A loop that has ended leaves it free for another.
        assert asyncio.run(connect()) == cluster.coordinator.popen.pid


def test_tasks_that_connect_at_once_make_one_connection(cluster, monkeypatch):
    monkeypatch.setenv("TACC_ADDRESS", cluster.address)
    made = []

    async def connect():
        client = tacc.AsyncClient()
        await asyncio.gather(*(client.connect() for _ in range(5)))
        await client.version()
        await client.close()

    monkeypatch.setattr(tacc.aio, "Connections", lambda *given: made.append(Connections(*given)) or made[-1])
    asyncio.run(connect())
    assert len(made) == 1


def test_an_async_client_that_is_closed_or_was_never_connected_says_so(cluster, job):
    status = job.status()

    async def unconnected():
        with pytest.raises(tacc.CoordinatorError, match="not connected: use `async with"):
            await anext(tacc.AsyncJob(tacc.AsyncClient(cluster.address), status).watch())

    async def closed():
        client = await tacc.AsyncClient(cluster.address).connect()
        watch = (await client.job(job.id)).watch()
        await anext(watch)
        asyncio.get_running_loop().call_later(0.3, lambda: asyncio.ensure_future(client.close()))
        with pytest.raises(tacc.TaccError, match="is closed"):
            async for _ in watch:
                pass

    async def cancelled():
        async with tacc.AsyncClient(cluster.address) as client:
            waiting = asyncio.ensure_future((await client.job(job.id)).wait(progress=False))
            await asyncio.sleep(0.3)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await client.version()).pid

    for check in (unconnected, closed, cancelled):
        asyncio.run(check())


# --- Very many streams ---


def test_a_stream_that_is_left_is_closed_at_the_coordinator(cluster, job):
    """It has at most 1000 at a time."""
    for _ in range(1100):
        watch = job.watch()
        next(watch)
        watch.close()
    for _, item in zip(range(3), job.watch()):
        assert item

    async def leave():
        async with tacc.AsyncClient(cluster.address) as client:
            watched = await client.job(job.id)
            for _ in range(1100):
                async for _ in watched.watch():
                    break
            assert await anext(watched.watch())

    asyncio.run(leave())


def test_many_streams_leave_room_for_calls(client, job):
    """A connection has at most 256: more than one is made for more."""
    watches = [job.watch() for _ in range(300)]
    got: list = []

    def first(watch) -> None:
        try:
            got.append(type(next(watch)))
        except tacc.TaccError as error:
            got.append(str(error))

    threads = [threading.Thread(target=first, args=(watch,)) for watch in watches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert Counter(got) == {tacc.JobEvent: 300}
    assert job.status().phase == "running"
    for watch in watches:
        watch.close()
