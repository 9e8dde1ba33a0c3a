"""Parameters that ranks train: what reads them here finds them as they are there, and what does not read them costs nothing."""

import copy
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import tacc
import torch
from tacc.accelerating import remote_tensors
from tacc.accelerating.changes import Changes
from tacc.accelerating.handle import AcceleratedModel
from tacc.accelerating.job import Model, Options
from tacc.accelerating.training import Training
from tacc.exporting.export import export_graph
from torch import nn


class Owner:
    """Trains: each reading finds sevens."""

    def __init__(self, module: nn.Module):
        self.module, self.num_reads, self.trained = module, 0, set()

    def read_through(self) -> None:
        self.num_reads += 1
        with remote_tensors.without_reading(), torch.no_grad():
            for tensor in (*self.module.parameters(), *self.module.buffers()):
                tensor.fill_(7)

    def has_gradients(self) -> bool:
        return False


@pytest.fixture
def owned():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    owner = Owner(module)
    remote_tensors.take(module.parameters(), [module[1].running_mean], owner)
    yield SimpleNamespace(module=module, owner=owner, weight=module[0].weight, mean=module[1].running_mean)
    remote_tensors.let_go([*module.parameters(), *module.buffers()])
    assert {type(p) for p in module.parameters()} == {nn.Parameter} and type(module[1].running_mean) is torch.Tensor


READINGS = {
    "item": lambda t: t[0, 0].item(), "clone": lambda t: t.clone(), "detach": lambda t: t.detach(), "data": lambda t: t.data, "transpose": lambda t: t.mT,
    "index": lambda t: t[0], "add": lambda t: t + 1, "argument of another": lambda t: torch.zeros(2, 2).add_(t), "list": lambda t: torch._foreach_mul([t], 2.0),
    "stack": lambda t: torch.stack([t, t]), "numpy": lambda t: t.detach().numpy(), "copy": copy.deepcopy, "repr": repr, "norm": lambda t: t.norm(),
    "tolist": lambda t: t.tolist(), "equal": lambda t: torch.equal(t, t), "save": lambda t: t.__reduce_ex__(2),
    "lerp": lambda t: torch.zeros(2, 2).lerp_(t, 0.1),
}


@pytest.mark.parametrize("name", READINGS)
def test_what_reads_a_parameter_reads_through(owned, name):
    with torch.no_grad():
        READINGS[name](owned.weight)
    assert owned.owner.num_reads > 0


def test_what_describes_a_tensor_does_not():
    module = nn.Linear(2, 2)
    owner = Owner(module)
    remote_tensors.take(module.parameters(), [], owner)
    weight = module.weight
    _ = weight.shape, weight.dtype, weight.device, weight.requires_grad, weight.is_leaf, weight.grad, weight.size(), weight.numel(), weight.dim(), len(weight)
    _ = {weight: 1}, isinstance(weight, nn.Parameter), weight.is_floating_point(), torch.zeros_like(weight), weight.grad_fn, weight._version
    torch.optim.AdamW(module.parameters())
    with remote_tensors.without_reading():
        weight.clone()
    assert owner.num_reads == 0
    remote_tensors.let_go(module.parameters())
    assert weight.clone() is not None and owner.num_reads == 0


def test_values_are_those_of_the_reading(owned):
    assert float(owned.weight[0, 0]) == 7.0
    with remote_tensors.without_reading(), torch.no_grad():
        owned.mean.zero_()
    assert float(owned.mean[0]) == 7.0
    copied = copy.deepcopy(owned.module)
    assert type(copied[0].weight) is nn.Parameter and type(copied[1].running_mean) is torch.Tensor
    assert torch.equal(copied[1].running_mean, torch.full((2,), 7.0))


def test_what_puts_other_values_into_a_parameter_leaves_the_rest_as_the_ranks_have_it(owned):
    owned.weight.data = torch.zeros(2, 2)
    assert owned.owner.num_reads == 1
    with remote_tensors.without_reading():
        assert not owned.weight.any() and torch.equal(owned.mean, torch.full((2,), 7.0))
        owned.weight.data = torch.ones(2, 2)
    assert owned.owner.num_reads == 1


def test_a_model_has_one_job(owned):
    with pytest.raises(tacc.InputError, match=r"0\.weight is trained by another job already .*one module that returns one loss"):
        remote_tensors.check(dict(owned.module.named_parameters()))
    with pytest.raises(tacc.InputError, match=r"loss\.py:3: this computes with a tensor that another job trains"):
        remote_tensors.check_outside([("loss.py:3", owned.weight)])


class Ranks:
    """A session whose weights grow with each update."""

    step_number, last_update, client = 0, None, None

    def __init__(self, module: nn.Module):
        self.weights = {f"weights/{name}": t.detach().numpy().copy() for name, t in module.state_dict().items()}
        self.num_reads = 0

    def update(self) -> None:
        self.weights = {name: values + 1 for name, values in self.weights.items()}

    def state_names(self) -> list[str]:
        return list(self.weights)

    def read(self, names: list[str]) -> dict[str, Any]:
        self.num_reads += 1
        return {name: self.weights[name] for name in names}

    def end_update(self) -> None:
        pass

    def finish(self) -> None:
        self.weights = {}

    def close(self) -> None:
        pass


def begun(module: nn.Module) -> tuple[AcceleratedModel, Ranks]:
    """A handle as it is when its job has begun."""
    batch = {"input": torch.ones(2, 2)}
    exported = export_graph(module, batch, loss=lambda out, batch: out.square().mean())
    ranks, done = Ranks(module), SimpleNamespace(id="linear-1", wait=lambda progress: SimpleNamespace(exported_path="/model"))
    model = AcceleratedModel(module, Options(None, None, None, None, 0.0, None, "step"), [], None)
    model._job, model._session, model._model, model._steps = done, ranks, Model(exported, batch, set(), {}), SimpleNamespace(abandon=lambda: None)
    model._calls = SimpleNamespace(check_whole=lambda what: None, is_under_way=False)
    model._changes, model._current = Changes(module), model._now
    with mock.patch("tacc.accelerating.training.CheckpointWatch"):
        model._training = Training(module, model._model, done, ranks, model._steps, model._changes, lambda: None)
    model._finalizer = mock.Mock()
    remote_tensors.take(module.parameters(), [], model)
    return model, ranks


def updated(model: AcceleratedModel, ranks: Ranks) -> None:
    ranks.update()
    model._num_updates += 1


def test_a_handle_reads_once_an_update_and_leaves_the_trained_weights():
    module = nn.Linear(2, 2)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_((8 * p).round() / 8)  # Sums of such are exact.
    first = module.weight.detach().clone()
    model, ranks = begun(module)
    assert torch.equal(module.weight, first) and ranks.num_reads == 0
    updated(model, ranks)
    assert torch.equal(module.weight, first + 1) and ranks.num_reads == 1
    assert torch.equal(copy.deepcopy(module)(torch.zeros(1, 2)), module.bias.unsqueeze(0)) and ranks.num_reads == 1
    updated(model, ranks)
    mean = torch.zeros(2, 2).lerp_(next(model.parameters()).data, 0.5)
    assert torch.equal(mean, (first + 2) / 2) and ranks.num_reads == 2
    model._changes.check_tensors()  # What is read is no change.
    with torch.no_grad():
        module.weight.clamp_(0, 0)
    with pytest.raises(tacc.InputError, match="parameter weight was changed here"):
        model._changes.check_tensors()
    with torch.no_grad():
        module.weight.copy_(first + 2)
    model._changes.note_tensors()
    updated(model, ranks)
    model.close()
    assert torch.equal(module.weight, first + 3) and type(module.weight) is nn.Parameter and model.exported_path == "/model"
