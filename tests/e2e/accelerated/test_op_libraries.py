"""Models with ops of other C++ libraries train on workers that were given those, and on no others."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import tacc
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster import BUILD, Cluster, write_job
from exported_training import ADAMW, Trained, check_steps, spec, train, train_in_torch, train_killed
from torch import nn

# isort: split
from library_models import OPS, VISION, between, detector, scaled_tanh

ROUNDING = 2e-5  # Of losses in float32, whose sums are taken in another order.
WHOLE = {"fsdp": {"size": 1}}
MODELS = {"a library's": lambda: between(scaled_tanh), "torchvision's": detector}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The one in which files of jobs may be."""
    return tmp_path_factory.mktemp("allowed")


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """Where no rank could read it otherwise."""
    return Path(shutil.copy(OPS, tmp_path_factory.mktemp("ops"))).resolve()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, folder, library) -> Iterator[Cluster]:
    roots = ("--allow-path", folder)
    options = (*roots, "--op-library", library, "--op-library", VISION)
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2, coordinator_options=roots, worker_options=options) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster) -> Iterator[tacc.Client]:
    with tacc.Client(cluster.address) as client:
        yield client


@pytest.fixture(scope="module", params=MODELS)
def trained(request, folder) -> Trained:
    """A model and what a loop of PyTorch makes of it."""
    model = MODELS[request.param]()
    exported = tacc.export_model(model.module, model.batch, folder / request.param.replace(" ", "-"))
    return train_in_torch(model, exported, ADAMW)


def test_trains_as_a_pytorch_loop(cluster, client, folder, trained, tmp_path):
    """Under Landlock, on one rank and on two, of which the second dies and loads its libraries again."""
    runs = folder / f"runs-{trained.model.folder.name}"
    logs = [(cluster.folder / f"{worker}.log").read_text() for worker in cluster.workers]
    assert all("--op-library: ranks can compute operators of tacc_test (8 operators), torchvision (" in log for log in logs)
    for name, dist, workers in (("one", WHOLE, 1), ("two", {"fsdp": {"size": 2}}, 2)):
        job = client.submit(spec(trained, name, runs, dist, workers))
        got = train(job, trained) if workers == 1 else train_killed(cluster, job, trained)
        check_steps(got, trained, of_own=3, floors=(1e-7, 1e-7), at_most=5e-5)


def test_plans_say_which_libraries_workers_need(trained, tmp_path):
    (tmp_path / "job.json").write_text(json.dumps(spec(trained, "planned", tmp_path, WHOLE, 1)))
    plan = subprocess.run([BUILD / "taccctl", "plan", "--local", tmp_path / "job.json", "-o", "json"], capture_output=True, text=True, check=True)
    [words] = [words for words in json.loads(plan.stdout.splitlines()[0])["words"] if words.startswith("Of other libraries than LibTorch are ")]
    path = VISION if "torchvision::" in words else OPS
    assert words.endswith(f" ({path}): each worker needs --op-library FILE for them, the path of that library on its machine."), words


def test_a_job_fails_at_once_where_the_library_is_not(tmp_path):
    """Nor does what the graph says of the file make a rank open it."""
    model = between(scaled_tanh)
    exported = tacc.export_model(model.module, model.batch, tmp_path / "model")
    untrained = Trained(exported, ADAMW, "fp32", [], [], [], "", None, {})
    for options in ((), ("--op-library", VISION)):
        with Cluster(tmp_path / f"cluster-{len(options)}", workers=1, worker_options=options) as cluster, tacc.Client(cluster.address) as client:
            without = client.submit(spec(untrained, "without", tmp_path / f"runs-{len(options)}", WHOLE, 1))
            with pytest.raises(tacc.JobFailedError) as failed:
                without.wait(progress=False)
            status = without.status()
            assert (status.attempt, status.failure_code, list(status.restarts)) == (1, "bad_input", [])
            line = next(i for i, text in enumerate(Path(sys.modules["library_models"].__file__).read_text().splitlines(), 1) if "h = self.compute(" in text)
            said = f"library_models.py:{line}: neither LibTorch nor a library that this worker gives its ranks has the operator tacc_test::scaled_tanh.default, "
            assert said + f"which was of {OPS} at the export; start each worker with --op-library FILE" in str(failed.value)


@pytest.mark.parametrize("schema", ["../../x::y.default", f"{OPS}::y.default", "x::y"])
def test_a_graph_names_no_file_as_a_schema(cluster, client, folder, schema, tmp_path):
    model = between(scaled_tanh)
    exported = tacc.export_model(model.module, model.batch, folder / "hostile")
    graph = exported.folder / "model.graph"
    graph.write_text(graph.read_text().replace("tacc_test::scaled_tanh.default", schema))
    job = client.submit(spec(Trained(exported, ADAMW, "fp32", [], [], [], "", None, {}), "hostile", folder / "runs-hostile", WHOLE, 1))
    with pytest.raises(tacc.JobFailedError, match=r"wanted NAMESPACE::NAME\.OVERLOAD, each of letters, digits and _"):
        job.wait(progress=False)
    assert job.status().attempt == 0


class Language(nn.Module):
    """The next token of each, by what it is."""

    def __init__(self):
        super().__init__()
        self.embed, self.scale, self.head = nn.Embedding(97, 16), nn.Parameter(torch.ones(16)), nn.Linear(16, 97)

    def forward(self, input_ids):
        return self.head(torch.ops.tacc_test.scaled_tanh(self.embed(input_ids), self.scale))


def test_a_job_of_this_machine(tmp_path):
    """By `submit --local`, with a path from here."""
    torch.manual_seed(0)
    tacc.export_model(Language(), {"input_ids": torch.ones(2, 16, dtype=torch.long)}, tmp_path / "graph", tokens="input_ids")
    path = write_job(tmp_path, name="local", workers=1)
    path.write_text(json.dumps({**json.loads(path.read_text()), "model": {"graph": "graph/model.graph"}}))

    def submit(*options: str) -> subprocess.CompletedProcess:
        return subprocess.run([BUILD / "taccctl", "submit", "--local", "--device", "cpu", "--memory", "2GiB", *options, path], capture_output=True, text=True, cwd=OPS.parent)

    without = submit()
    assert without.returncode == 2, without.stderr
    assert "has the operator tacc_test::scaled_tanh.default, which was of" in without.stderr
    wrong = submit("--op-library", "no.so")
    assert wrong.returncode == 2 and f'--op-library "{OPS.parent}/no.so": cannot be found' in wrong.stderr, wrong.stderr
    done = submit("--op-library", OPS.name)
    assert done.returncode == 0, done.stderr


def test_a_loop_on_a_service_of_this_machine(tmp_path, monkeypatch):
    """`taccctl up` gives its workers the libraries, also those that it starts again; a client finds the service."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TACC_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    taccctl = BUILD / "taccctl"
    subprocess.run([taccctl, "up", "--workers", "1", "--threads", "1", "--memory", "2GiB", "--op-library", OPS], check=True, capture_output=True)
    try:
        state = json.loads((tmp_path / "state/tacc/up/up.json").read_text())
        worker = next(process for process in state["processes"] if process["name"] == "worker-0")
        os.kill(worker["pid"], 9)
        subprocess.run([taccctl, "up"], check=True, capture_output=True)
        model, plain = between(scaled_tanh), between(scaled_tanh).module
        batches = [{"x": torch.randn(8, 5, 6), "labels": torch.arange(8) % 5} for _ in range(4)]
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.3, momentum=0.9)
        want = []
        for batch in batches:
            want.append(plain(**batch)["loss"])
            want[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        got = []
        with tacc.accelerate(model.module, config={"resources": {"workers": 1}}) as handle:
            optimizer = torch.optim.SGD(handle.parameters(), lr=0.3, momentum=0.9)
            for batch in batches:
                got.append(handle(**batch).loss)
                got[-1].backward()
                optimizer.step()
                optimizer.zero_grad()
            assert [loss.item() for loss in got] == pytest.approx([loss.item() for loss in want], rel=ROUNDING)
        for (name, tensor), wanted in zip(model.module.state_dict().items(), plain.state_dict().values(), strict=True):
            torch.testing.assert_close(tensor, wanted, rtol=1e-4, atol=1e-6, msg=name)
    finally:
        subprocess.run([taccctl, "down"], check=True, capture_output=True)


WRONG = {
    "tacc_needs_python.so": r"tacc_needs_python\.so: it needs Python \(PyExc_RuntimeError\), which ranks have not",
    "tacc_no_operators.so": r"tacc_no_operators\.so: it adds no operator",
    "text.so": r"text\.so: file too short|text\.so: invalid ELF header",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_worker_says_why_it_cannot_load_a_library(name, tmp_path):
    (tmp_path / "text.so").write_text("no library")
    library = tmp_path / name if name == "text.so" else OPS.parent / name
    with Cluster(tmp_path / "cluster", workers=0, worker_options=("--op-library", library)) as cluster, pytest.raises(AssertionError, match=WRONG[name]):
        cluster.start_worker("w0")


def test_a_library_is_not_loaded_twice(tmp_path):
    again = shutil.copy(OPS, tmp_path / "again.so")
    with Cluster(tmp_path / "cluster", workers=0, worker_options=("--op-library", OPS, "--op-library", again)) as cluster:
        with pytest.raises(AssertionError, match="Only a single TORCH_LIBRARY can be used to register the namespace tacc_test"):
            cluster.start_worker("w0")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts ranks as another user")
def test_ranks_of_another_user_load_what_they_can_read():
    nobody = pwd.getpwnam("nobody")
    folder = Path(tempfile.mkdtemp(prefix="tacc-op-library-"))
    try:
        folder.chmod(0o755)
        library = Path(shutil.copy(OPS, folder)).resolve()
        model = between(scaled_tanh)
        exported = tacc.export_model(model.module, model.batch, folder / "job/model")
        trained = train_in_torch(model, exported, ADAMW)
        (folder / "job/runs").mkdir()
        os.chown(folder / "job/runs", nobody.pw_uid, nobody.pw_gid)
        roots = ("--allow-path", folder / "job")
        options = (*roots, "--op-library", library, "--rank-user", "nobody")
        with Cluster(folder / "cluster", workers=1, coordinator_options=roots, worker_options=options) as cluster, tacc.Client(cluster.address) as client:
            job = client.submit(spec(trained, "nobody", folder / "job/runs", WHOLE, 1))
            check_steps(train(job, trained), trained, of_own=3, floors=(1e-7, 1e-7), at_most=5e-5)
            library.chmod(0o600)
            with pytest.raises(AssertionError, match=r"tacc_test_ops\.so: cannot open shared object file: Permission denied"):
                cluster.start_worker("w1")
    finally:
        shutil.rmtree(folder)
