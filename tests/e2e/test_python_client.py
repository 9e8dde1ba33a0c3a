"""tacc.Client and tacc.AsyncClient against a real coordinator with CPU workers."""

import asyncio
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import pytest
import tacc
import tacc.calls
import tacc.config
from cluster import BUILD, ROOT, Cluster, write_job
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


def test_a_job_from_submit_to_its_model(client, cluster, tmp_path, capfd):
    path = write_job(tmp_path, eval={"max_batches": 1}, data={"path": "data", "eval_path": "data", "seq_len": 16}, train={"max_steps": 20, "eval_steps": 10})
    job = client.submit(path)
    status = job.wait(timeout=120)
    assert status.phase == "finished" and status.step == status.max_steps == 20
    assert re.search(r"tiny-\d+ finished  step 20 / 20  loss \d", capfd.readouterr().err)
    # What taccctl says of it.
    assert [p["loss"] for p in cluster.points(job.id)] == list(job.metrics()["loss"])
    assert list(job.metrics("eval")["step"]) == [10, 20]
    assert [e["message"] for e in cluster.events(job.id)] == [e.message for e in job.events()]
    assert job.status().to_dict() == cluster.json("get", job.id)
    assert [c.step for c in job.checkpoints()] == [16, 20]
    assert job.plan().mesh == {"dp": 1, "fsdp": 2}
    lines = list(job.logs())
    assert [line.text for line in lines if line.rank == -1] == [e.message for e in job.events()]
    assert list(job.logs(tail=2)) == lines[-2:]
    folder = job.export(tmp_path / "out", step=16)
    assert (Path(folder) / "model.safetensors").exists()
    with pytest.raises(tacc.TaccError, match="no checkpoint of step 3; there are 16, 20"):
        job.export(tmp_path / "other", step=3)
    assert client.job("tiny").id == job.id == client.jobs()[0].id
    assert "polyline" in job._repr_html_() and "finished" in job._repr_html_()


def test_asyncio_says_the_same(client, cluster, tmp_path, capfd):
    path = write_job(tmp_path, train={"max_steps": 10})

    async def run():
        async with tacc.AsyncClient(cluster.address) as connected:
            job = await connected.submit(path)
            items = [item async for item in job.watch()]
            status = await job.wait()
            plan = await connected.plan(path, gpus=16)
            assert [w.name for w in await connected.workers()] == ["w0", "w1"]
            return job.id, items, status, list((await job.metrics())["loss"]), plan.best.mesh, [line async for line in job.logs()], await job.events()

    name, items, status, losses, mesh, lines, events = asyncio.run(run())
    job = client.job(name)
    assert items == list(job.watch()) and status == job.status() and losses == list(job.metrics()["loss"])
    assert lines == list(job.logs()) and events == job.events()
    assert mesh == client.plan(path, gpus=16).best.mesh


def test_path_dict_and_config_are_the_same_job(client, tmp_path, monkeypatch):
    path = write_job(tmp_path, dist={"pins": {"model.layers.0.mlp.up_proj.weight": "[tp, -]"}})
    monkeypatch.chdir(tmp_path)
    spec = json.loads(path.read_text())
    by_path = client.check(path)
    assert by_path == client.check(spec) == client.check(tacc.Config(spec)) == client.check(tacc.Config.from_yaml(path))
    assert by_path["model"]["path"] == str(tmp_path / "model")
    monkeypatch.chdir("/")
    assert client.check(tacc.Config.from_yaml(path)) == by_path
    first = client.submit(path, request_id="once")
    assert client.submit(spec | {"model": by_path["model"], "data": by_path["data"], "checkpoint": by_path["checkpoint"]}, request_id="once").id == first.id
    with pytest.raises(tacc.ConflictError, match="once"):
        client.submit(by_path | {"name": "other"}, request_id="once")
    first.cancel(now=True)


def refused_job_files() -> list[tuple[str, str, str]]:
    """(what, text, wanted messages) of the golden job files that taccctl refuses."""
    cases = []
    for golden in sorted((ROOT / "tests/bad_input").glob("job_*.golden")):
        for case in golden.read_text().split("====\n"):
            head, _, rest = case.partition("-- job.yaml\n")
            text, _, wanted = rest.partition("----\n")
            if head.strip().endswith("$ taccctl submit job.yaml") and wanted.endswith("exit 2\n") and "\n-- " not in text:
                cases.append((head.splitlines()[0], text, wanted.removesuffix("exit 2\n").strip()))
    assert len(cases) > 100
    return cases


def has_none(value) -> bool:
    """None in a dict leaves a field to the planner; in a file it is a mistake."""
    return value is None or any(has_none(item) for item in (value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()))


def test_what_the_job_file_refuses_is_refused_in_the_same_words(client, tmp_path, monkeypatch):
    import yaml

    monkeypatch.chdir(tmp_path)
    by_dict = 0
    for what, text, wanted in refused_job_files():
        Path("job.yaml").write_text(text)
        with pytest.raises(tacc.InvalidJobError) as error:
            client.check("job.yaml")
        assert str(error.value) == wanted, what
        # The same as a dict, where a dict can say it.
        try:
            values = yaml.load(text, Loader=tacc.config._loader(yaml))
        except (yaml.YAMLError, ValueError):
            continue
        problems = error.value.problems
        if isinstance(values, dict) and all(p.field for p in problems) and not has_none(values) and "wanted text; write" not in wanted:
            try:
                client.check(values)
            except tacc.InvalidJobError as by_values:
                assert {p.field for p in by_values.problems} == {p.field for p in problems}, what
                by_dict += 1
            except tacc.ConfigError:
                continue  # No name of a field.
    assert by_dict > 40


def test_what_is_wrong_has_its_field_and_place(client, tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("name: tiny\nmodel: {path: m}\ndata: {path: d}\ntrain:\n  max_stepz: 3\n  lr_scheduler_type: cosin\n")
    with pytest.raises(tacc.InvalidJobError) as error:
        client.submit(path)
    assert [(p.field, p.line, p.column) for p in error.value.problems] == [("train.max_stepz", 5, 3), ("train.lr_scheduler_type", 6, 22)]
    assert 'did you mean "max_steps"?' in error.value.problems[0].message
    assert 'did you mean "cosine"?' in str(error.value)
    with pytest.raises(tacc.InvalidJobError, match=r"^model.path = .*/m does not exist; it is a folder"):
        client.submit({"name": "tiny", "model": {"path": str(tmp_path / "m")}, "data": {"path": str(tmp_path)}, "train": {"max_steps": 3}})
    with pytest.raises(tacc.InputError, match="no such file"):
        client.submit(tmp_path / "nowhere.yaml")
    with pytest.raises(tacc.InputError, match="not a file"):
        client.submit(tmp_path)
    with pytest.raises(tacc.InputError, match=r"a job is the path of a job file, a dict, or a tacc.Config, not int"):
        client.submit(3)
    with pytest.raises(tacc.JobNotFoundError, match="no job nope"):
        client.job("nope")
    assert not any(job.name == "tiny" and not job.status().phase for job in client.jobs())


def test_a_layout_that_cannot_be_fails_with_its_reason(client, tmp_path):
    job = client.submit(write_job(tmp_path, dist={"dp": {"size": 1}, "fsdp": {"size": 1}, "tp": {"size": 2}}, train={"max_steps": 3}, data={"path": "data", "seq_len": 64000}))
    with pytest.raises(tacc.JobFailedError) as error:
        job.wait(timeout=60, progress=False)
    assert error.value.status.failure_code == "bad_input" and "seq_len" in str(error.value)


def test_cancel_and_timeouts(client, tmp_path):
    job = client.submit(write_job(tmp_path, **LONG))
    next(item for item in job.watch() if isinstance(item, tacc.StepMetrics))
    start = time.monotonic()
    with pytest.raises(tacc.AnswerTimeoutError, match=r"has not ended after 0.5 s; it goes on"):
        job.wait(timeout=0.5, progress=False)
    assert time.monotonic() - start < 5
    assert isinstance(tacc.AnswerTimeoutError(), TimeoutError)
    job.cancel()
    with pytest.raises(tacc.JobCancelledError, match=r"was cancelled \(saved at step \d+; submit it again to go on\)"):
        job.wait(timeout=60, progress=False)


def test_a_plan_for_machines_that_are_not_there(client, tmp_path):
    path = write_job(tmp_path)
    here = client.plan(path)
    assert here.fits and here.best.mesh == {"dp": 1, "fsdp": 2} and here.best.memory_bytes["total"] > 0
    spec = tacc.Config.from_yaml(path)
    spec.dist, spec.resources = None, None
    there = client.plan(spec, gpus=16)
    assert there.best.settings["resources"]["workers"] == 16 if "resources" in there.best.settings else True
    sizes = 1
    for size in there.best.mesh.values():
        sizes *= size
    assert sizes == 16
    assert len(there.table()) == len(there.layouts) + len(there.others)
    assert "<table" in there._repr_html_()
    spec.update({key: value for key, value in there.best.settings.items() if key != "resources"})
    assert client.plan(spec, gpus=16).best.mesh == there.best.mesh
    assert client.plan(spec, cluster={"machine": "a100", "nodes": 2}).raw["cluster"] != there.raw["cluster"]
    # The number of steps is that of the data.
    spec.train.max_steps, spec.train.num_train_epochs = None, 2
    assert client.plan(spec, gpus=16).best.mesh == there.best.mesh
    with pytest.raises(tacc.InputError, match=r'machine.*"h200x"|did you mean'):
        client.plan(spec, cluster={"machine": "h200x", "nodes": 2})
    with pytest.raises(tacc.InputError, match=r"cluster = 'a100' is not the fields of a cluster file, as "):
        client.plan(spec, cluster="a100")


def step_of(job) -> int:
    """0 while the coordinator is away."""
    try:
        status = job.status()
    except tacc.CoordinatorError:
        return 0
    assert status.phase not in tacc.calls.ENDED, status
    return status.step


def test_a_watch_has_every_point_once_whatever_becomes_of_the_coordinator(cluster, tmp_path):
    """Ten kills of the coordinator under one sync and one asyncio watch, and under a follower of the logs."""
    job = tacc.Client(cluster.address).submit(write_job(tmp_path, train={"max_steps": 4000}, checkpoint={"save_steps": 500}))

    async def watch_async():
        async with tacc.AsyncClient(cluster.address) as client:
            return [item async for item in (await client.job(job.id)).watch()]

    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        sync = threads.submit(lambda: list(job.watch()))
        other = threads.submit(lambda: asyncio.run(watch_async()))
        logs = threads.submit(lambda: list(job.logs(follow=True)))
        seen = tacc.Client(cluster.address).job(job.id)
        for kill in range(10):
            target = 300 * (kill + 1)
            cluster.wait(lambda: step_of(seen) >= target, f"step {target}")
            cluster.coordinator.kill()
            time.sleep(0.3)
            cluster.start_coordinator()
        items = sync.result(timeout=120)
        assert other.result(timeout=60) == items
        lines = logs.result(timeout=60)
    steps = [item.step for item in items if isinstance(item, tacc.StepMetrics)]
    assert steps == list(range(1, 4001))
    assert items == list(tacc.Client(cluster.address).job(job.id).watch())
    assert lines == list(tacc.Client(cluster.address).job(job.id).logs())
    events = [item for item in items if isinstance(item, tacc.JobEvent)]
    # A machine with much else to do is warned of.
    assert [line.text for line in lines if line.rank == -1] == ["warning: " * (event.type == "warning") + event.message for event in events]


def test_a_process_that_dies_leaves_its_job(client, cluster, tmp_path):
    path = write_job(tmp_path, train={"max_steps": 200})
    code = f"import tacc; job = tacc.Client({cluster.address!r}).submit({str(path)!r}); print(job.id, flush=True); job.wait()"
    kernel = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "client/python")})
    job = client.job(kernel.stdout.readline().strip())
    kernel.send_signal(signal.SIGKILL)
    kernel.wait()
    kernel.stdout.close()
    assert job.wait(timeout=120, progress=False).step == 200


def test_an_interrupt_ends_the_waiting_and_not_the_job(client, cluster, tmp_path):
    path = write_job(tmp_path, **LONG)
    code = f"import tacc; job = tacc.Client({cluster.address!r}).submit({str(path)!r}); print(job.id, flush=True); job.wait()"
    waiting = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "client/python")})
    job = client.job(waiting.stdout.readline().strip())
    time.sleep(0.5)
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=20)
    assert "KeyboardInterrupt" in said
    assert job.status().phase not in ("cancelled", "failed", "finished")
    job.cancel(now=True)


def test_no_coordinator(tmp_path, monkeypatch):
    with pytest.raises(tacc.CoordinatorError, match=r"no coordinator at 127.0.0.1:1: nothing listens there; start one"):
        tacc.Client("127.0.0.1:1")
    with pytest.raises(tacc.CoordinatorError, match=r"no coordinator at unix:/nowhere/socket: nothing listens there; start one"):
        tacc.Client("unix:/nowhere/socket")
    for address in ("unix:here", "unix:/folder/", "unix:/two words", "unix:/line\n"):
        with pytest.raises(tacc.InputError, match=f'address = "{address}" is not unix:/PATH, with a whole path'):
            tacc.Client(address)
    with pytest.raises(tacc.InputError, match=r"its path has 108 bytes; that of a socket may have 107"):
        tacc.Client(f"unix:/{'x' * 107}")
    with pytest.raises(tacc.InputError, match='address = "here" is not HOST:PORT'):
        tacc.Client("here")
    monkeypatch.setenv("TACC_ADDRESS", "here:x")
    with pytest.raises(tacc.InputError, match='TACC_ADDRESS = "here:x" is not HOST:PORT'):
        tacc.Client()
    monkeypatch.delenv("TACC_ADDRESS")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TACC_BUILD", str(tmp_path))
    monkeypatch.setattr("tacc.daemon.DEFAULT_ADDRESS", "127.0.0.1:1")
    with pytest.raises(tacc.CoordinatorError, match="no taccctl on PATH to start one"):
        tacc.Client()
    with pytest.raises(tacc.CoordinatorError, match=r"no coordinator at 127.0.0.1:1"):
        tacc.Client(start=False)
    (tmp_path / "tacc/up").mkdir(parents=True)
    (tmp_path / "tacc/up/up.json").write_text("{")
    with pytest.raises(tacc.CoordinatorError, match=r"up.json is damaged"):
        tacc.Client()


def test_it_starts_and_finds_the_daemon_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{BUILD}:{os.environ['PATH']}")
    monkeypatch.delenv("TACC_ADDRESS", raising=False)
    # `up` keeps the options that it was once given.
    monkeypatch.setattr("tacc.daemon.DEFAULT_ADDRESS", "127.0.0.1:1")
    subprocess.run(["taccctl", "up", "--workers", "1", "--threads", "1", "--memory", "1GiB"], check=True, capture_output=True)
    try:
        with tacc.Client() as first:
            pid = first.version().pid
            assert len(first.workers()) == 1
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX" and time.monotonic() < deadline:
            time.sleep(0.05)
        with tacc.Client() as second:  # `up` starts what has ended.
            assert second.version().pid != pid and second.address == first.address
    finally:
        subprocess.run(["taccctl", "down"], check=True, capture_output=True)


class OtherVersion(coordinator_pb2_grpc.CoordinatorServiceServicer):
    version = "0.9.3"

    def GetVersion(self, request, context):
        return pb.GetVersionResponse(version=self.version)


def test_a_daemon_of_another_version():
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    service = OtherVersion()
    coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(service, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with pytest.raises(tacc.VersionError, match=rf"is tacc 0.9.3, this package is {tacc.__version__}; install the package"):
            tacc.Client(address)
        service.version = tacc.__version__.rpartition(".")[0] + ".77"  # An older one of the same kind, without a call that this package makes.
        with pytest.raises(tacc.VersionError, match="cannot do that: it is of another version"):
            tacc.Client(address).submit({"name": "a"})
    finally:
        server.stop(None)


def test_threads_share_a_client(client):
    failed = []

    def ask():
        try:
            for _ in range(50):
                assert client.version().version == tacc.__version__
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
