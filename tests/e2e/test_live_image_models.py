"""Models of images on the daemon: ten steps of a plain PyTorch loop, running statistics included, on any number of ranks, whatever dies."""

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ddp_loop
import numpy as np
import pytest
import tacc
import torch
import torch.nn.functional as F
from cluster import Cluster
from exported_training import CLASSES, SAMPLES, SGD, STEPS, Trained, export_and_train, exported_by, spec, steps, train, train_killed
from torch import nn
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.efficientnet import EfficientNet, MBConvConfig
from transformers import ResNetConfig, ResNetForImageClassification

# isort: split
from image_models import UNet
from torch_models import TorchModel

# Sums are rounded in fp32 in another order than PyTorch's.
ROUNDING = 2e-5
LAYOUTS = {"one": {}, "fsdp": {"dp": {"size": 1}, "fsdp": {"size": 2}}, "pp": {"fsdp": {"size": 1}, "pp": {"size": 2}}}


def resnet() -> nn.Module:
    """Of transformers, as narrow as torchvision's cannot be."""
    return ResNetForImageClassification(ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 2], num_labels=CLASSES))


def convnext() -> nn.Module:
    return ConvNeXt([CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)], stochastic_depth_prob=0.0, layer_scale=0.5, num_classes=CLASSES)


def efficientnet() -> nn.Module:
    blocks = [MBConvConfig(1, 3, 1, 8, 8, 1), MBConvConfig(4, 5, 2, 8, 16, 2)]
    return EfficientNet(blocks, dropout=0.0, stochastic_depth_prob=0.0, num_classes=CLASSES, last_channel=16)


class Classified(nn.Module):
    """A model of torchvision, which returns logits alone, with its loss."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, pixel_values, labels):
        logits = self.model(pixel_values)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet": resnet,
    "convnext": lambda: Classified(convnext()),
    "efficientnet": lambda: Classified(efficientnet()),
    "unet": UNet,
}


def batch_of(name: str) -> dict[str, torch.Tensor]:
    if name == "unet":
        return {"image": torch.randn(SAMPLES, 3, 8, 8), "noise": torch.randn(SAMPLES, 3, 8, 8), "time": torch.rand(SAMPLES)}
    return {"pixel_values": torch.randn(SAMPLES, 3, 32, 32), "labels": torch.randint(0, CLASSES, (SAMPLES,))}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Callable[[str], Trained]:
    folder = tmp_path_factory.mktemp("models")

    @cache
    def of(name: str) -> Trained:
        torch.manual_seed(5)
        model = TorchModel(MODELS[name]().train(), batch_of(name))
        made = export_and_train(model, folder / name, SGD)
        assert made.model.coverage.share == 1.0
        return made

    return of


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster):
    with tacc.Client(cluster.address) as client:
        yield client


def submit(client: tacc.Client, model: Trained, runs: Path, layout: str, name: str, gc: bool = False, **train: Any) -> tacc.Job:
    job = spec(model, name, runs, LAYOUTS[layout], 1 if layout == "one" else 2, **train)
    return client.submit(job | {"memory": {"gc": gc}})


@pytest.mark.parametrize("name", MODELS)
def test_trains_as_a_pytorch_loop(client, trained, tmp_path, name):
    model = trained(name)
    job = submit(client, model, tmp_path, "one", f"{name}-one")
    with tacc.Session(job) as session:
        got = steps(session, model.batches)
        assert [loss for loss, _ in got] == pytest.approx(model.losses, rel=ROUNDING)
        found = session.forward(model.batches[0], outputs=[model.returned]).outputs[model.returned]
        np.testing.assert_allclose(found, model.outputs, atol=1e-3 * np.abs(model.outputs).max())
        session.finish()
    stored = exported_by(job, tmp_path / "exported")
    assert (len(model.model.changed_buffers) > 0) == (name in ("resnet", "efficientnet"))
    for buffer in model.model.changed_buffers:
        torch.testing.assert_close(stored[buffer].double(), model.state[buffer].double(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_two_ranks_train_as_one_and_go_on_with_the_same_bits(cluster, client, trained, tmp_path, name):
    model = trained(name)
    job = submit(client, model, tmp_path, "fsdp", f"{name}-two")
    whole, tensors = train(job, model), exported_by(job, tmp_path / "exported")
    assert [loss for loss, _ in whole] == pytest.approx(model.losses, rel=ROUNDING)
    job = submit(client, model, tmp_path, "fsdp", f"{name}-killed")
    got, again = train_killed(cluster, job, model), exported_by(job, tmp_path / "exported")
    assert got == whole
    assert all(torch.equal(value, again[tensor]) for tensor, value in tensors.items())


def test_running_statistics_go_on_on_another_number_of_ranks(client, trained, tmp_path):
    model = trained("resnet")
    got = []
    for layout, part in (("fsdp", slice(0, 4)), ("one", slice(4, STEPS))):
        job = submit(client, model, tmp_path, layout, "moved", max_steps=part.stop)
        with tacc.Session(job) as session:
            assert session.step_number == part.start
            got += [loss for loss, _ in steps(session, model.batches[part])]
            session.finish()
        job.wait(progress=False)
    assert got == pytest.approx(model.losses, rel=ROUNDING)


def test_the_same_micro_batches_have_the_same_statistics(client, trained, tmp_path):
    """On one rank, made again in the backward, of samples on two ranks, and in a pipeline."""
    model = trained("resnet")
    runs = []
    for layout, gc, samples in (("one", False, 4), ("one", True, 4), ("fsdp", False, 2), ("pp", False, 4)):
        job = submit(client, model, tmp_path, layout, f"{layout}-{gc}".lower(), gc, max_steps=4, per_device_train_batch_size=samples)
        with tacc.Session(job) as session:
            losses = [loss for loss, _ in steps(session, model.batches[:4])]
            session.finish()
        runs.append((losses, exported_by(job, tmp_path / "exported")))
    whole, tensors = runs[0]
    assert tensors[next(name for name in tensors if name.endswith("num_batches_tracked"))] == 8  # two a step
    for losses, again in runs[1:]:
        assert losses == pytest.approx(whole, rel=ROUNDING)
        for buffer in model.model.changed_buffers:
            torch.testing.assert_close(again[buffer], tensors[buffer], rtol=ROUNDING, atol=1e-6)


def train_normed(client: tacc.Client, module: nn.Module, folder: Path, name: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """On two ranks, with statistics of each rank's own samples."""
    batches = ddp_loop.batches()
    tacc.export_model(module.train(), batches[0], folder / f"model-{name}")
    job = client.submit({
        "name": name, "model": {"graph": str(folder / f"model-{name}/model.graph")}, "data": {"client": {}},
        "train": {"max_steps": ddp_loop.STEPS, "global_batch_size": ddp_loop.SAMPLES, "optim": "sgd", "momentum": ddp_loop.MOMENTUM,
                  "learning_rate": ddp_loop.LEARNING_RATE, "lr_scheduler_type": "constant", "max_grad_norm": ddp_loop.MAX_GRAD_NORM},
        "compute": {"bf16": False, "sync_batchnorm": False}, "dist": {"fsdp": {"size": 2}}, "checkpoint": {"dir": str(folder / name)}, "resources": {"workers": 2},
    })
    with tacc.Session(job) as session:
        losses = [session.step({key: value.numpy() for key, value in batch.items()}).loss for batch in batches]
        session.finish()
    return losses, exported_by(job, folder / "exported")


def test_statistics_of_each_ranks_own_samples(client, tmp_path):
    """As DistributedDataParallel has them, on two processes of PyTorch; its losses are the mean of both, its buffers those of rank 0."""
    torch.manual_seed(5)
    module = ddp_loop.Normed()
    torch.save(module.state_dict(), tmp_path / "model.pt")
    ranks = [subprocess.Popen([sys.executable, ddp_loop.__file__, str(rank), tmp_path]) for rank in range(ddp_loop.WORLD)]
    losses, tensors = train_normed(client, module, tmp_path, "own")
    assert [rank.wait() for rank in ranks] == [0, 0]
    (first, state), (second, other) = (torch.load(tmp_path / f"rank-{rank}.pt") for rank in range(ddp_loop.WORLD))
    assert not torch.allclose(state["body.1.running_mean"], other["body.1.running_mean"], rtol=0.1), "the halves of a batch are too alike"
    assert losses == pytest.approx([(a + b) / 2 for a, b in zip(first, second, strict=True)], rel=ROUNDING)
    for name, value in state.items():
        torch.testing.assert_close(tensors[name].to(value.dtype), value, rtol=1e-4, atol=1e-5)


def test_synchronized_norms_take_all_samples(client, tmp_path):
    """Modules SyncBatchNorm, whatever the job says of batch norms."""
    torch.manual_seed(5)
    module = ddp_loop.Normed(nn.SyncBatchNorm)
    losses, tensors = train_normed(client, module, tmp_path, "sync")
    assert losses == pytest.approx(ddp_loop.train(module, list(module.parameters()), slice(None)), rel=ROUNDING)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(tensors[name].to(value.dtype), value, rtol=1e-4, atol=1e-5)
