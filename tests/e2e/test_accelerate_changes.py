"""`tacc.accelerate`: what a loop changes in the module behind the ranks' back, or wants of them that they do not give, is refused and named."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tacc
import torch
from cluster import Cluster
from torch import nn
from torch.nn import functional

ONE = {"resources": {"workers": 1}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=1) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def folders(cluster, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TACC_ADDRESS", cluster.address)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.drop, self.head = nn.Linear(4, 8), nn.Dropout(0.0), nn.Linear(8, 2)
        self.beta, self.weights = 1.0, [1.0, 0.5]
        self.register_buffer("scale", torch.tensor(2.0))
        self.shift = torch.tensor(0.5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.head(self.drop(self.hidden(x))) * self.beta * self.weights[1] * self.scale + self.shift
        return {"loss": functional.mse_loss(out, y)}


def batch() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(2)
    return {"x": torch.randn(8, 4, generator=random), "y": torch.randn(8, 2, generator=random)}


def trained(model: Any, optimizer: torch.optim.Optimizer) -> float:
    loss = model(**batch())["loss"]
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


# Each: what is changed, what undoes it, and what the refusal says.
CHANGES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any] | None, str]] = {
    "an attribute": (lambda m: setattr(m, "beta", 0.5), lambda m: setattr(m, "beta", 1.0), r"beta of the model has changed.*it was 1\.0"),
    "a number of a list": (lambda m: m.weights.__setitem__(1, 2.0), lambda m: m.weights.__setitem__(1, 0.5), "weights of the model has changed"),
    "a mode": (lambda m: m.drop.eval(), lambda m: m.drop.train(), r"drop\.training of the model has changed"),
    "a part": (lambda m: setattr(m, "drop2", m.drop) or setattr(m, "drop", nn.Identity()), lambda m: setattr(m, "drop", m.drop2), "drop of the model has changed"),
    "another tensor": (lambda m: setattr(m, "shift2", m.shift) or setattr(m, "shift", torch.tensor(1.0)), lambda m: setattr(m, "shift", m.shift2), "shift of the"),
    "a buffer": (lambda m: m.scale.fill_(1.0), None, "buffer scale was changed here.*argument of forward"),
    "a weight": (lambda m: m.head.weight.data.clamp_(-0.01, 0.01), None, r"parameter head\.weight was changed here.*load_state_dict"),
    "a weight's data": (lambda m: setattr(m.head.weight, "data", torch.zeros(2, 8)), None, r"parameter head\.weight was changed here"),
    "a forward hook": (lambda m: m.head.register_forward_hook(lambda *_: None), lambda m: m.head._forward_hooks.clear(), "head has got a hook"),
    "a backward hook": (
        lambda m: m.head.register_full_backward_hook(lambda *_: None), lambda m: m.head._backward_hooks.clear(), "head has got a hook"),
    "a gradient hook": (lambda m: m.head.bias.register_hook(lambda g: g), lambda m: m.head.bias._backward_hooks.clear(), "got a gradient hook"),
}


def test_what_a_loop_changes_in_the_module():
    torch.manual_seed(0)
    module = Scaled()
    with tacc.accelerate(module, config=ONE) as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = [trained(model, optimizer) for _ in range(2)]
        assert before[1] < before[0]
        for name, (change, undo, message) in CHANGES.items():
            kept = {key: value.clone() for key, value in model.state_dict().items()}
            change(module)
            with pytest.raises(tacc.InputError, match=message):
                model(**batch())
            with pytest.raises(tacc.InputError, match=message):
                model.step(**batch())
            if undo is not None:
                undo(module)
            else:
                model.load_state_dict(kept)
            assert trained(model, optimizer) < before[0], name
        # What is loaded and synced is no change, nor is a mode of evaluation.
        model.load_state_dict(model.sync().state_dict())
        model.eval()
        with torch.no_grad():
            model(**batch())
        trained(model.train(), optimizer)
        model.module.beta = 0.5
        with torch.no_grad(), pytest.raises(tacc.InputError, match="beta of the model has changed"):
            model.eval()(**batch())
        model.module.beta = 1.0
        module.shift.fill_(1.0)
        with pytest.raises(tacc.InputError, match="tensor shift was changed here"):
            model.train()(**batch())


class Frozen(nn.Module):
    """With a norm that a loop keeps in evaluation, as in the fine-tuning of detectors."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm, self.head = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.norm.running_mean.fill_(0.3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": functional.mse_loss(self.head(self.norm(self.hidden(x))), y)}


def test_a_part_in_evaluation_stays_so():
    losses = []
    for accelerated in (False, True):
        torch.manual_seed(0)
        module = Frozen()
        module.norm.eval()
        model = tacc.accelerate(module, config=ONE) if accelerated else module
        module.norm.eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses.append([trained(model, optimizer) for _ in range(3)])
        assert module.training and not module.norm.training
    model.close()
    assert losses[1] == pytest.approx(losses[0], rel=2e-5)


def test_gradients_of_inputs_are_refused():
    """Of a module in front of the accelerated one, and of a GAN's generator, whose discriminator is accelerated."""
    torch.manual_seed(0)
    front = nn.Linear(3, 4)
    with tacc.accelerate(nn.Sequential(nn.Linear(4, 2)), config=ONE) as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = front(torch.randn(8, 3))
        for _ in range(2):
            with pytest.raises(tacc.InputError, match=r"requires a gradient, which the ranks do not send back.*detach\(\)"):
                model(x).sum()
            model(x.detach()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            assert model(x).shape == (8, 2)
