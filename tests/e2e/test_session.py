"""A client drives the ranks with batches of its own: the losses of a data folder with the same rows, whatever breaks meanwhile."""

import json
import os
import signal
import socket
import subprocess
import threading
import time

import numpy as np
import pytest
import tacc
from cluster import BUILD, Cluster, write_data, write_model
from tacc.live.session_link import LinkBrokenError

STEPS, SAMPLES, SEQ_LEN = 8, 8, 16
TRAIN = {"max_steps": STEPS, "global_batch_size": SAMPLES, "per_device_train_batch_size": 2, "learning_rate": 0.003, "seed": 3}
LAYOUTS = {
    "one": {"dp": {"size": 1}, "fsdp": {"size": 1}},
    "fsdp": {"dp": {"size": 1}, "fsdp": {"size": 2}},
    "tp": {"fsdp": {"size": 1}, "tp": {"size": 2}},
    "cp": {"fsdp": {"size": 1}, "cp": {"size": 2}},
    "pp": {"fsdp": {"size": 1}, "pp": {"size": 2, "num_micro_batches": 4}},
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as c:
        yield c


@pytest.fixture(scope="module")
def client(cluster):
    with tacc.Client(cluster.address) as c:
        yield c


@pytest.fixture(autouse=True)
def ended_jobs(client):
    """A job of a test that has failed would keep the workers."""
    yield
    for job in client.jobs():
        job.cancel(now=True)
        while job.status().phase not in ("finished", "failed", "cancelled"):
            time.sleep(0.05)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    write_model(folder / "model")
    write_data(folder / "data")
    return folder


@pytest.fixture(scope="module")
def batches(folder):
    """The rows that each step of the data folder has, as a client's batches."""
    found = []
    for step in range(1, STEPS + 1):
        shown = subprocess.run([BUILD / "tacc-data", "show", "--data", folder / "data", "--seq-len", str(SEQ_LEN), "--global-batch-size", str(SAMPLES),
                                "--seed", str(TRAIN["seed"]), "--step", str(step), "--json"], capture_output=True, check=True)
        tokens = np.array(json.loads(shown.stdout)["tokens"], np.int32)
        found.append({"tokens": tokens, "targets": np.pad(tokens[:, 1:], ((0, 0), (0, 1)), constant_values=-1)})
    return found


def spec(folder, runs, name, layout="one", *, data=None, **train):
    dist = LAYOUTS[layout]
    return {"name": name, "model": {"path": str(folder / "model"), "weights": "random"}, "data": {"client": {}, "seq_len": SEQ_LEN, **(data or {})},
            "train": {**TRAIN, **train}, "compute": {"bf16": False}, "dist": dist, "checkpoint": {"dir": str(runs / name), "save_steps": 3},
            "resources": {"workers": int(np.prod([axis["size"] for axis in dist.values()]))}}


def submit(client, *arguments, **options):
    return client.submit(spec(*arguments, **options))


def numbers(result):
    return result.step, result.loss, result.grad_norm, result.target_tokens


def points(job):
    return [(p.step, p.loss, p.grad_norm, float(p.target_tokens)) for p in job.watch(events=False)]


@pytest.fixture(scope="module")
def references(client, folder, tmp_path_factory):
    """Layout -> the points of a training on the data folder, made before a session has the workers."""
    runs, found = tmp_path_factory.mktemp("references"), {}
    for layout in LAYOUTS:
        job = spec(folder, runs, f"folder-{layout}", layout)
        job["data"] = {"path": str(folder / "data"), "seq_len": SEQ_LEN}
        found[layout] = points(client.submit(job))
        assert len(found[layout]) == STEPS
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shared_memory", [True, False], ids=["memory", "tcp"])
def test_the_same_rows_give_the_same_bits(client, folder, batches, references, tmp_path, layout, shared_memory):
    job = submit(client, folder, tmp_path, "live", layout)
    with tacc.Session(job, shared_memory=shared_memory) as session:
        assert session.inputs["tokens"].shape == (SAMPLES, SEQ_LEN)
        got = [numbers(session.step(batch)) for batch in batches]
        assert got == references[layout]
        with pytest.raises(tacc.TaccError, match=f"has done its {STEPS} steps"):
            session.step(batches[0])
        session.finish()
    status = job.wait(progress=False)
    assert points(job) == got
    assert status.exported_path


def test_batches_are_compressed_where_the_link_is_slow(client, folder, batches, tmp_path, monkeypatch):
    sent, got = {}, {}
    for name, rate in (("slow", 1e3), ("fast", 1e12)):
        monkeypatch.setattr("tacc.live.session_link.Link.bytes_per_second", rate)
        job = submit(client, folder, tmp_path, name, per_device_train_batch_size=SAMPLES)
        with tacc.Session(job, shared_memory=False) as session:
            got[name] = [numbers(session.step(batch)) for batch in batches]
            sent[name] = session._links[0].sent_bytes
            session.finish()
        job.wait(progress=False)
    assert got["slow"] == got["fast"]
    assert sent["fast"] > STEPS * 2 * SAMPLES * SEQ_LEN * 4
    assert sent["slow"] < 0.6 * sent["fast"], sent


def test_micro_batches_one_by_one_are_the_step(client, folder, batches, references, tmp_path):
    job = submit(client, folder, tmp_path, "parts", "fsdp")
    with tacc.Session(job) as session:
        assert (session.num_micro_batches, session.micro_batch_size) == (2, 4)
        for batch, want in zip(batches, references["fsdp"]):
            parts = [session.micro_batch({name: rows[m : m + 4] for name, rows in batch.items()}) for m in (0, 4)]
            result = session.update()
            assert numbers(result) == want
            assert sum(p.loss_sum for p in parts) / sum(p.target_tokens for p in parts) == pytest.approx(result.loss, rel=1e-6)
        with pytest.raises(tacc.TaccError, match=f"has done its {STEPS} steps"):
            session.update()
        session.finish()


def test_a_step_takes_as_long_as_all_of_its_parts(client, folder, batches, tmp_path):
    """From the end of the one before, with what the client does between them; what is asked between two steps is none of theirs."""
    job = submit(client, folder, tmp_path, "parts-time", "fsdp")
    with tacc.Session(job) as session:
        for batch in batches[:2]:
            for m in (0, 4):
                session.micro_batch({name: rows[m : m + 4] for name, rows in batch.items()})
                time.sleep(0.2)
            session.update()
            time.sleep(0.5)
            session.forward(batch)
        session.finish()
    for point in job.watch(events=False):
        assert 0.4 < point.seconds and 0.4 < point.data_wait_seconds < point.seconds
        assert point.data_wait_seconds < 0.9, "the pause before the forward is none of the next step's"


def test_an_update_is_waited_for_later(client, folder, batches, references, tmp_path):
    """Its steps are the same; what is wrong with it, the next command says."""
    job = submit(client, folder, tmp_path, "later", "fsdp")
    with tacc.Session(job) as session:
        results = []
        for batch in batches:
            session.micro_batch(batch, micro_batches=2)
            if session.last_update is not None:
                results.append(numbers(session.last_update))
            session.begin_update()
        session.end_update()
        assert [*results, numbers(session.last_update)] == references["fsdp"]
        session.begin_update()
        with pytest.raises(tacc.TaccError, match=f"has done its {STEPS} steps"):
            session.end_update()
        for wrong in ({"max_grad_norm": float("nan")}, {"gradient_factor": float("inf")}, {"max_grad_norm": -1.0}):
            with pytest.raises(tacc.InputError, match=next(iter(wrong))):
                session.update(**wrong)
        session.finish()


def test_steps_of_one_micro_batch_may_have_several_and_may_be_forgotten(client, folder, batches, references, tmp_path):
    """Gradients add up as the job's own micro-batches do."""
    job = submit(client, folder, tmp_path, "several", "one", global_batch_size=2, per_device_train_batch_size=2)
    with tacc.Session(job) as session:
        assert session.num_micro_batches == 1
        rows = [{name: rows[m : m + 2] for name, rows in batches[0].items()} for m in range(0, SAMPLES, 2)]
        session.micro_batch(rows[2])
        session.discard_gradients()
        with pytest.raises(tacc.TaccError, match="send a micro_batch before update"):
            session.update()
        parts = [session.micro_batch(part) for part in rows]
        with pytest.raises(tacc.TaccError, match="the step has 4 micro-batches; send update or discard before"):
            session.save()
        result = session.update()
        assert result.target_tokens == SAMPLES * (SEQ_LEN - 1) == sum(part.target_tokens for part in parts)
        assert (result.loss, result.grad_norm) == pytest.approx(references["one"][0][1:3], rel=1e-6)
        session.finish()


def test_another_client_does_not_go_on_with_the_step_of_one_that_has_gone(client, folder, batches, references, tmp_path, monkeypatch):
    """Of a step that the first one had begun the second one finds nothing; what it sends is the reference's step."""
    job = submit(client, folder, tmp_path, "begun", "fsdp")
    first = tacc.Session(job)
    first.micro_batch({name: rows[4:] for name, rows in batches[1].items()})
    for link in first._links:  # Whose own connection breaks goes on where it was.
        link._socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(tacc.TaccError, match="the step has 1 micro-batches already; send update"):
        first.step(batches[0])
    first.close()
    with tacc.Session(job) as second:
        with pytest.raises(tacc.TaccError, match="there is no gradient; send a micro_batch before update"):
            second.update()
        with monkeypatch.context() as other, pytest.raises(tacc.TaccError, match="max_grad_norm is -1; give a number from 0"):
            other.setattr(second, "_update_fields", lambda *_: {"max_grad_norm": -1.0})  # As a client without its own check.
            second.step(batches[0])
        for m in (0, 4):
            second.micro_batch({name: rows[m : m + 4] for name, rows in batches[0].items()})
        assert numbers(second.update()) == references["fsdp"][0]
        assert numbers(second.step(batches[1])) == references["fsdp"][1]
        second.finish()
    job.wait(progress=False)


def test_an_update_takes_what_the_client_gives(client, folder, batches, tmp_path):
    """As jobs with other options: what is scaled by powers of two has the same bits."""
    def run(name, *, train, **update):
        job = submit(client, folder, tmp_path, name, "fsdp", optim="sgd", lr_scheduler_type="constant", **train)
        with tacc.Session(job) as session:
            for batch in batches[:3]:
                for m in (0, 4):
                    session.micro_batch({key: rows[m : m + 4] for key, rows in batch.items()})
                given = dict(update)
                if "learning_rate" in given:
                    given["learning_rates"] = {session.learning_rates[0]: given.pop("learning_rate")}
                result = session.update(**given)
            weights = session.read(session.state_names())
            with pytest.raises(tacc.InputError, match=r"no parameters have the learning rate 3.0; there are 0"):
                session.update(learning_rates={3.0: 1.0})
            session.finish()
        job.wait(progress=False)
        return result, weights

    want, weights = run("as-options", train={"learning_rate": 0.5, "max_grad_norm": 0})
    for name, train, update in (
        ("rate", {"learning_rate": 0.25, "max_grad_norm": 0}, {"learning_rate": 0.5}),
        ("factor", {"learning_rate": 0.125, "max_grad_norm": 0}, {"gradient_factor": 4.0}),
        ("norm", {"learning_rate": 0.5, "max_grad_norm": 0.01}, {"max_grad_norm": 1e6}),
    ):
        got, others = run(name, train=train, **update)
        assert got.loss == want.loss
        for key, value in weights.items():
            assert np.array_equal(others[key], value), (name, key)


@pytest.mark.parametrize("layout", ["fsdp", "tp", "pp"])
def test_states_go_out_whole_and_in_again(client, folder, batches, references, tmp_path, layout):
    save_file = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed").save_file
    job = submit(client, folder, tmp_path, f"states-{layout}", layout)
    with tacc.Session(job) as session:
        session.step(batches[0])
        states = session.read(session.state_names())
        assert states["weights/lm_head.weight"].shape == (97, 32) and states["exp_avg/lm_head.weight"].any()
        (tmp_path / "states").mkdir()
        save_file(states, tmp_path / "states/model.safetensors")
        second = session.step(batches[1])
        after = session.read(["weights/lm_head.weight"])["weights/lm_head.weight"]
        session.load(tmp_path / "states")
        again = session.read(session.state_names())
        assert all(np.array_equal(again[name], value) for name, value in states.items())
        assert not np.array_equal(after, states["weights/lm_head.weight"])
        assert session.forward(batches[1]).loss == pytest.approx(second.loss, rel=1e-6)
        (tmp_path / "wrong").mkdir()
        save_file({"weights/lm_head.weight": np.zeros((97, 33), np.float32)}, tmp_path / "wrong/model.safetensors")
        with pytest.raises(tacc.TaccError, match=r"lm_head.weight\": stored shape \[97,33\]"):
            session.load(tmp_path / "wrong")
        if layout != "pp":
            save_file({"weights/head": np.zeros(3, np.float32)}, tmp_path / "wrong/model.safetensors")
            with pytest.raises(tacc.TaccError, match=r'the training has no state "weights/head"'):
                session.load(tmp_path / "wrong")
        with pytest.raises(tacc.TaccError, match="no"):
            session.load(tmp_path / "nothing")
        with pytest.raises(tacc.InputError, match="the training has no state 'weights/head'"):
            session.read(["weights/head"])
        assert all(np.array_equal(value, states[name]) for name, value in session.read(list(states)).items())
        session.finish()


def test_forward_changes_nothing(client, folder, batches, references, tmp_path):
    job = submit(client, folder, tmp_path, "eval", "fsdp")
    with tacc.Session(job) as session:
        for batch, want in zip(batches, references["fsdp"]):
            before = session.forward(batch)
            assert before.loss == pytest.approx(want[1], rel=1e-5)
            half = {name: rows[:4] for name, rows in batch.items()}
            assert session.forward(half, micro_batches=1).target_tokens == 4 * (SEQ_LEN - 1)
            assert numbers(session.step(batch)) == want
        session.finish()


def whole_steps(session, batches):
    """By one command each."""
    return [numbers(session.step(batch)) for batch in batches]


def by_micro_batches(session, batches):
    """By three commands each."""
    got = []
    for batch in batches:
        for m in (0, 4):
            session.micro_batch({name: rows[m : m + 4] for name, rows in batch.items()})
        got.append(numbers(session.update()))
    return got


def as_loops_do(session, batches):
    """As `tacc.accelerate` sends them: nobody waits for the update but the next command."""
    got = []
    for batch in batches:
        session.micro_batch(batch, micro_batches=2)
        session.begin_update()
        if len(got) % 2:
            session.end_update()
        else:
            session.forward(batch)
        got.append(numbers(session.last_update))
    return got


# How a client sends its steps, every which command is cut, and which kinds of commands these are.
WAYS = {
    "step": (whole_steps, 3, {"step"}),
    "micro_batch": (by_micro_batches, 2, {"micro_batch", "update"}),
    "begin_update": (as_loops_do, 3, {"micro_batch", "update", "forward"}),
}


@pytest.mark.parametrize("moment", ["sent", "half sent", "answered"])
@pytest.mark.parametrize("way", WAYS)
def test_a_connection_that_breaks_trains_no_step_twice(client, folder, batches, references, tmp_path, monkeypatch, moment, way):
    steps, every, kinds = WAYS[way]
    job = submit(client, folder, tmp_path, f"cut-{moment}-{way}".replace(" ", "-").replace("_", "-"), "fsdp")
    with tacc.Session(job) as session:
        done: dict[int, str] = {}
        commands: dict[int, str] = {}
        frame = session._frame

        def noted(rank, link, command, *rest):
            commands[session._serial] = command
            return frame(rank, link, command, *rest)

        monkeypatch.setattr(session, "_frame", noted)

        def cuts(link) -> bool:
            """Both ranks have the command, one of them, or both have answered and one answer is lost."""
            rank = session._links.index(link) if link in session._links else -1
            if session._serial % every or rank != (0 if moment == "half sent" else 1) or session._serial in done:
                return False
            done[session._serial] = commands[session._serial]
            for other in session._links:
                other._socket.shutdown(2)
            return True

        def send(link, *arguments):
            original(link, *arguments)
            cuts(link)

        def receive(link):
            frame = yield from original(link)
            if cuts(link):
                raise LinkBrokenError("the answer is lost")
            return frame

        name, cut = ("_frame", receive) if moment == "answered" else ("send", send)
        original = getattr(type(session._links[0]), name)
        monkeypatch.setattr(type(session._links[0]), name, cut)
        assert steps(session, batches) == references["fsdp"]
        assert set(done.values()) == kinds and len(done) >= 2 * len(kinds)
        session.finish()
    job.wait(progress=False)


def test_a_killed_rank_begins_again_from_the_checkpoint(cluster, client, folder, batches, references, tmp_path):
    job = submit(client, folder, tmp_path, "killed", "fsdp")
    with tacc.Session(job) as session:
        got = [numbers(session.step(batch, state=b"at %d" % i)) for i, batch in enumerate(batches[:5], 1)]
        cluster.wait(lambda: job.status().last_checkpoint, "the checkpoint of step 3")
        os.kill(rank_pid(cluster, "w1"), signal.SIGKILL)
        with pytest.raises(tacc.SessionRestartedError, match="after step 3") as raised:
            session.step(batches[5])
        assert (raised.value.step, session.step_number, session.state) == (3, 3, b"at 3")
        del got[3:]
        got += [numbers(session.step(batch)) for batch in batches[session.step_number :]]
        assert got == references["fsdp"]
        session.finish()
    job.wait(progress=False)


def rank_pid(cluster, worker):
    """The process that a worker has started."""
    parent = cluster.workers[worker].popen.pid
    children = [int(pid) for pid in (open(f"/proc/{parent}/task/{parent}/children").read()).split()]
    return next(pid for pid in children if "tacc-rank" in open(f"/proc/{pid}/comm").read())


def test_another_client_goes_on_where_the_first_one_died(client, folder, batches, references, tmp_path):
    job = submit(client, folder, tmp_path, "kernel", "fsdp")
    first = tacc.Session(job)
    got = [numbers(first.step(batch, state=b"loader %d" % i)) for i, batch in enumerate(batches[:4], 1)]
    first._disconnect()  # As the kernel of a notebook that is restarted.
    with tacc.Session(job) as second:
        assert (second.step_number, second.state) == (4, b"loader 4")
        got += [numbers(second.step(batch)) for batch in batches[4:6]]
        with tacc.Session(job) as third:
            with pytest.raises(tacc.TaccError, match="another client drives the job now"):
                second.step(batches[6])
            assert third.step_number == 6
            got += [numbers(third.step(batch)) for batch in batches[6:]]
            assert got == references["fsdp"]
            third.finish()


def test_without_a_client_the_job_saves_and_ends_and_goes_on_later(client, folder, batches, references, tmp_path):
    job = submit(client, folder, tmp_path, "left", "fsdp", data={"client": {"wait_seconds": 2}})
    with tacc.Session(job) as session:
        got = [numbers(session.step(batch, state=b"at %d" % i)) for i, batch in enumerate(batches[:4], 1)]
    with pytest.raises(tacc.JobCancelledError):
        job.wait(60, progress=False)
    assert "no client has come for 2 seconds" in job.status().reason
    assert job.status().last_checkpoint.step == 4
    again = submit(client, folder, tmp_path, "left", "fsdp", data={"client": {"wait_seconds": 0}})
    with tacc.Session(again) as session:
        assert (session.step_number, session.state) == (4, b"at 4")
        time.sleep(1)
        got += [numbers(session.step(batch)) for batch in batches[4:]]
        assert got == references["fsdp"]
        session.finish()


class StatefulLoader:
    """As torchdata's: it says where it stands, and goes on there."""

    def __init__(self, batches):
        self.batches, self.next = batches, 0

    def __iter__(self):
        while self.next < len(self.batches):
            self.next += 1
            yield self.batches[self.next - 1]
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


@pytest.mark.parametrize("make", [list, StatefulLoader], ids=["list", "stateful"])
def test_an_async_loader_reads_ahead_and_goes_on_where_it_stood(client, folder, batches, references, tmp_path, make):
    if make is StatefulLoader:
        pytest.importorskip("torch", reason="the state of a loader is kept by torch.save")
    job = submit(client, folder, tmp_path, f"loader-{make.__name__.lower()}", "fsdp")
    got = []
    with tacc.Session(job) as session:
        for batch in tacc.AsyncLoader(make(batches[:6]), session, transform=dict):
            got.append(numbers(session.step(batch)))
            if len(got) == 4:
                break
        assert session.step_number == 4
        with pytest.raises(tacc.InputError, match="was used before"):
            session.step(batch)
    with tacc.Session(job) as session:
        loader = tacc.AsyncLoader(make(batches[:6]), session)
        got += [numbers(session.step(batch)) for batch in loader]
        assert (len(got), loader.epoch) == (6, 1)
        got += [numbers(session.step(batch)) for batch in batches[6:]]
        assert got == references["fsdp"]
        assert [len(list(loader)) for _ in range(2)] == [6, 6], "batches that nobody uses give their memory back"
        session.finish()


@pytest.mark.parametrize("prefetch", [1, 3])
def test_as_many_batches_lie_staged_as_were_asked_for(cluster, client, folder, batches, references, tmp_path, monkeypatch, prefetch):
    """Also while another loader of the session is read, and the loop stages batches of its own."""
    job = submit(client, folder, tmp_path, f"ahead-{prefetch}", "fsdp")
    with tacc.Session(job) as session:
        staged, got, read = [], [], []
        stage = session.stage

        def noted(batch, **options):
            made = stage(batch, **options)
            if threading.current_thread() is not threading.main_thread():  # By a loader.
                staged.append(made)
            return made

        monkeypatch.setattr(session, "stage", noted)
        source = (read.append(batch) or batch for batch in batches)
        for step, batch in enumerate(tacc.AsyncLoader(source, session, prefetch=prefetch), 1):
            wanted = min(step + prefetch, STEPS)
            cluster.wait(lambda wanted=wanted: len(staged) >= wanted, "batches that are staged")
            assert [one.is_used for one in staged] == [True] * (step - 1) + [False] * (wanted - step + 1)
            if step == 2:
                others = [session.forward(other).loss for other in tacc.AsyncLoader(batches[:5], session, prefetch=prefetch)]
                assert others == [session.forward(other).loss for other in batches[1:5]], "behind the step that is done"
                staged[-len(others) :] = []
            assert len(read) == wanted, "no more is read than may lie ready"
            got.append(numbers(session.step(batch)))
        assert got == references["fsdp"]
        with pytest.raises(tacc.InputError, match="a session has room for 60 batches more, and 61 are to lie in memory: give AsyncLoader a smaller prefetch"):
            list(tacc.AsyncLoader(batches, session, prefetch=60))
        place = session._place
        monkeypatch.setattr(session, "_place", lambda *arguments: session.close() or place(*arguments))
        with pytest.raises(tacc.TaccError, match="the session is closed"):  # As by the loop, while a loader's thread stages.
            stage(batches[0])


def test_what_a_loader_raises_is_raised_where_it_is_iterated_over(client, folder, batches, tmp_path):
    def broken():
        yield batches[0]
        raise OSError("the disk is gone")

    job = submit(client, folder, tmp_path, "broken-loader", "one")
    with tacc.Session(job) as session:
        with pytest.raises(OSError, match="the disk is gone"):
            for batch in tacc.AsyncLoader(broken(), session):
                session.step(batch)
        assert session.step_number == 1
        session.save(state=b"no position")
    with tacc.Session(job) as session, pytest.raises(tacc.InputError, match="not of an AsyncLoader"):
        tacc.AsyncLoader(batches, session)
    job.cancel(now=True)


def test_save_and_cancel(client, folder, batches, tmp_path):
    job = submit(client, folder, tmp_path, "save", "one")
    with tacc.Session(job) as session:
        session.step(batches[0])
        saved = session.save(state=b"saved")
        assert saved.endswith("step-00000001.a1") and os.path.exists(f"{saved}/manifest.json")
        job.cancel()
        with pytest.raises(tacc.JobCancelledError):
            while True:
                session.step(batches[1])


def test_a_job_says_that_it_waits_for_its_client(client, folder, batches, tmp_path):
    job = submit(client, folder, tmp_path, "waits", "fsdp")

    def wait_for_reason(reason):
        for _ in range(1200):
            status = job.status()
            if status.phase == "running" and status.reason == reason:
                return
            time.sleep(0.05)
        raise AssertionError(status)

    wait_for_reason("waits for its client")
    with tacc.Session(job) as session:
        end = time.monotonic() + 60
        while (reason := job.status().reason) != "" and time.monotonic() < end:
            session.forward(batches[0])
        assert reason == "", "it has been busy all the time"
        wait_for_reason("waits for its client")


def test_what_is_no_batch_is_said_before_it_is_sent(client, folder, batches, tmp_path):
    job = submit(client, folder, tmp_path, "wrong", "one")
    with tacc.Session(job) as session:
        good = batches[0]
        with pytest.raises(tacc.InputError, match="no 'targets'; it has 'tokens'"):
            session.step({"tokens": good["tokens"]})
        with pytest.raises(tacc.InputError, match=r"shape \[7, 16\]; wanted \[8, 16\]"):
            session.step({name: rows[1:] for name, rows in good.items()})
        with pytest.raises(tacc.InputError, match="is of float64; wanted int32"):
            session.step({name: rows.astype(float) for name, rows in good.items()})
        with pytest.raises(tacc.InputError, match="numbers that int32 does not hold"):
            session.step({**good, "tokens": good["tokens"].astype(np.int64) << 40})
        assert session.step({**good, "tokens": good["tokens"].astype(np.int64)}).step == 1
        session.finish()


def test_a_session_is_of_a_job_with_a_client(client, folder, tmp_path):
    job = spec(folder, tmp_path, "folder")
    job["data"] = {"path": str(folder / "data"), "seq_len": SEQ_LEN}
    with pytest.raises(tacc.ConflictError, match=r"data.client in place of data.path"):
        tacc.Session(client.submit(job))
    with pytest.raises(tacc.InvalidJobError, match=r"data.path and data.client are both given"):
        submit(client, folder, tmp_path, "both", data={"path": str(folder / "data")})
    with pytest.raises(tacc.InvalidJobError, match=r"data.seq_len is missing"):
        submit(client, folder, tmp_path, "length", data={"seq_len": None})
