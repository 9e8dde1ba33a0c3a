"""Exported PyTorch models train on the daemon as a plain PyTorch loop does, on one rank and with FSDP over two, and go on with the same bits after a kill."""

import json
import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import tacc
from cluster import Cluster
from exported_training import ADAMW, Trained, export_and_train, optimizer_for, spec, train, train_killed

# isort: split
import image_models
from architecture_models import ARCHITECTURES
from torch_models import MODELS, TorchModel

TACCCTL = Path(os.environ["TACC_BUILD"]) / "taccctl"

# fp32 rounds sums in another order than PyTorch; ten steps of AdamW carry that on. Larger steps carry it into the choice of experts.
ROUNDING = 1e-4
# `indexed` has nodes that are operators of LibTorch.
CASES: dict[str, Callable[[], TorchModel]] = ARCHITECTURES | {name: MODELS[name] for name in ("mixtral", "lstm", "indexed", "smoothed labels")}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster):
    with tacc.Client(cluster.address) as client:
        yield client


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Callable[[str], Trained]:
    folder = tmp_path_factory.mktemp("models")

    @cache
    def of(name: str) -> Trained:
        model = CASES[name]()
        return export_and_train(model, folder / name.replace(" ", "_"), optimizer_for(model.module))

    return of


def submit(client: tacc.Client, model: Trained, runs: Path, workers: int, name: str) -> tacc.Job:
    return client.submit(spec(model, name, runs, {"fsdp": {"size": workers}}, workers))


@pytest.mark.parametrize("name", CASES)
def test_ten_steps(cluster, client, trained, tmp_path, name):
    """Of the PyTorch loop, on one rank and on two, of which the second dies."""
    model = trained(name)
    one = train(submit(client, model, tmp_path, 1, "one"), model)
    assert [loss for loss, _ in one] == pytest.approx(model.losses, rel=ROUNDING)
    two = train_killed(cluster, submit(client, model, tmp_path, 2, "two"), model)
    assert [loss for loss, _ in two] == pytest.approx(model.losses, rel=ROUNDING)


def test_what_a_model_always_drops_is_the_same_on_any_ranks(client, tmp_path):
    """SpeechT5's decoder of sounds drops features, of all samples alike, in evaluation too: others than PyTorch's loop does."""
    model = export_and_train(image_models.speecht5_speech(), tmp_path / "speech", ADAMW)
    one, two = (train(submit(client, model, tmp_path, workers, f"ranks-{workers}"), model) for workers in (1, 2))
    for a, b in zip(one, two, strict=True):
        assert b == pytest.approx(a, rel=ROUNDING)


def test_plans_name_operators_of_libtorch(trained, tmp_path):
    (tmp_path / "job.json").write_text(json.dumps(spec(trained("indexed"), "indexed", tmp_path, {"fsdp": {"size": 2}}, 2)))
    run = subprocess.run([TACCCTL, "plan", "--local", tmp_path / "job.json"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    said = " ".join(run.stdout.split())
    assert "LibTorch computes aten::remainder.Scalar, aten::sort.default, aten::sum.dim_IntList, for which the graph has no op (aten): about" in said
