"""Exported PyTorch models train on the daemon as a plain PyTorch loop does, on one rank and with FSDP over two, and go on with the same bits after a kill."""

import copy
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tacc
import torch
from cluster import Cluster
from exported_training import ADAMW, Trained, export_and_train, exported_by, optimizer_for, spec, train, train_in_torch, train_killed

# isort: split
import image_models
from architecture_models import MODELS, TRAINED
from comparison import check_exported
from torch_models import TorchModel

TACCCTL = Path(os.environ["TACC_BUILD"]) / "taccctl"

# fp32 rounds sums; ten steps of AdamW carry that on.
ROUNDING = 1e-4
WHOLE = {"fsdp": {"size": 1}}
TP, PP = WHOLE | {"tp": {"size": 2}}, WHOLE | {"pp": {"size": 2, "num_micro_batches": 2}}
EP = WHOLE | {"ep": {"size": 2, "buffer_factor": 16}}
# Layouts beside those of all.
LAYOUTS = {
    "llama": [TP, WHOLE | {"sp": {"size": 2}}], "gpt2": [TP, PP], "bert, masked": [TP], "vit": [PP], "mixtral": [TP, EP], "deepseek v3": [EP, PP],
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster):
    with tacc.Client(cluster.address) as client:
        yield client


def submit(client: tacc.Client, model: Trained, runs: Path, workers: int, name: str) -> tacc.Job:
    return client.submit(spec(model, name, runs, {"fsdp": {"size": workers}}, workers))


@pytest.mark.parametrize("name", TRAINED)
def test_trains_as_a_pytorch_loop(cluster, client, tmp_path, name):
    """In float64 the graph computes what PyTorch does; ten steps in fp32 are those of the loop, on one rank and on two, of which the second dies."""
    model = MODELS[name]()
    exported = tacc.export_model(model.module, model.batch, tmp_path / "model", **model.options)
    check_exported(name, exported, model)
    trained = train_in_torch(model, exported, optimizer_for(model.module))
    one = train(submit(client, trained, tmp_path, 1, "one"), trained)
    assert [loss for loss, _ in one] == pytest.approx(trained.losses, rel=ROUNDING)
    two = train_killed(cluster, submit(client, trained, tmp_path, 2, "two"), trained)
    assert [loss for loss, _ in two] == pytest.approx(trained.losses, rel=ROUNDING)
    for number, dist in enumerate(LAYOUTS.get(name, [])):
        job = client.submit(spec(trained, f"layout-{number}", tmp_path, dist, 2))
        assert [loss for loss, _ in train(job, trained)] == pytest.approx(trained.losses, rel=ROUNDING), dist
        check_export_loads(model, trained, exported_by(job, tmp_path / "exported"))


def check_export_loads(model: TorchModel, trained: Trained, tensors: dict[str, torch.Tensor]) -> None:
    """The module takes what the job exports, and returns what the loop's does."""
    module = copy.deepcopy(model.module)
    missing, unexpected = module.load_state_dict(tensors, strict=False)
    assert set(missing) <= set(trained.model.aliases) and set(unexpected) <= {*trained.model.buffers, *trained.model.tables}
    batch = {name: torch.from_numpy(value) for name, value in trained.batches[0].items()}
    with torch.no_grad():
        outputs, _ = model.run(module.eval(), batch)
    np.testing.assert_allclose(outputs[trained.returned], trained.outputs, atol=1e-3 * np.abs(trained.outputs).max())


def test_what_a_model_always_drops_is_the_same_on_any_ranks(client, tmp_path):
    """SpeechT5's decoder of sounds drops features, of all samples alike, in evaluation too: others than PyTorch's loop does."""
    model = export_and_train(image_models.speecht5_speech(), tmp_path / "speech", ADAMW)
    one, two = (train(submit(client, model, tmp_path, workers, f"ranks-{workers}"), model) for workers in (1, 2))
    for a, b in zip(one, two, strict=True):
        assert b == pytest.approx(a, rel=ROUNDING)


def test_plans_name_operators_of_libtorch(tmp_path):
    model = MODELS["indexed"]()
    exported = tacc.export_model(model.module, model.batch, tmp_path / "model")
    trained = Trained(exported, ADAMW, [], [], "", np.empty(0), {})
    (tmp_path / "job.json").write_text(json.dumps(spec(trained, "indexed", tmp_path, {"fsdp": {"size": 2}}, 2)))
    run = subprocess.run([TACCCTL, "plan", "--local", tmp_path / "job.json"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    said = " ".join(run.stdout.split())
    assert "LibTorch computes aten::remainder.Scalar, aten::sort.default, aten::sum.dim_IntList, for which the graph has no op (aten): about" in said
