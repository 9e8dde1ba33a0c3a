"""What a forward keeps in plain attributes: state is refused by name and line, caches are not; tensors that are none of the model's are seen."""

from typing import Any

import pytest
import torch
from tacc.errors import InputError
from tacc.exporting.export import export_graph
from torch import nn


class Base(nn.Module):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        vars(self).update(attributes)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.computed(x).square().mean()}

    def computed(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Counting(Base):
    def computed(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.linear(x) * 0.9**self.count


class Warming(Base):
    """The first calls do not show what the count is for."""

    def computed(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.linear(x) if self.count < 1000 else 2 * self.linear(x)


class Remembering(Base):
    def computed(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.last is not None:
            y = y + self.last
        self.last = y.detach()
        return y


class Collecting(Base):
    def computed(self, x: torch.Tensor) -> torch.Tensor:
        self.history.append(self.linear(x).detach())
        return self.linear(x) + sum(self.history)


class Beginning(Base):
    def computed(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if not self.has_begun:
            y = 2 * y
            self.has_begun = True
        return y


class Outer(Base):
    def computed(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner.computed(x)


@pytest.mark.parametrize("model, words", [
    (Counting(count=0), r"forward_state_test\.py:\d+: self\.count \+= 1: forward keeps count of Counting .*self\.register_buffer\('count'"),
    (Warming(count=0), r"self\.count \+= 1: forward keeps count"),
    (Remembering(last=None), r"self\.last = y\.detach\(\): forward keeps last .*forward_state_test\.py:\d+ reads it"),
    (Remembering(last=torch.zeros(3, 4)), r"forward keeps last"),
    (Collecting(history=[]), r"self\.history\.append.*forward keeps history"),
    (Beginning(has_begun=False), r"self\.has_begun = True: forward keeps has_begun"),
    (Outer(inner=None), r"forward keeps inner\.count of Outer"),
], ids=["count", "warm-up", "last", "a tensor", "list", "first call", "part"])
def test_state_is_refused_by_name_and_line(model, words):
    if isinstance(model, Outer):
        del model.__dict__["inner"]
        model.inner = Counting(count=0)
    with pytest.raises(InputError, match=words):
        export_graph(model, {"x": torch.randn(3, 4)}, loss=None)


class Logging(Base):
    def computed(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.shapes.append(x.shape)
        return self.linear(x)


class Showing(Base):
    def computed(self, x: torch.Tensor) -> torch.Tensor:
        self.hidden = self.linear(x)
        return self.hidden


class Caching(Base):
    def computed(self, x: torch.Tensor) -> torch.Tensor:
        if self.mask is None or len(self.mask) != x.shape[1]:
            self.mask = torch.tril(torch.ones(x.shape[1], x.shape[1]))
        return self.linear(x) @ self.mask


class Buffered(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def computed(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return self.linear(x) * 0.9**self.count


@pytest.mark.parametrize("model", [Logging(calls=0, shapes=[]), Showing(), Caching(mask=None), Buffered()], ids=lambda model: type(model).__name__)
def test_what_no_output_of_the_next_call_depends_on_is_exported_and_left_as_it_was(model):
    attributes = {k: list(v) if isinstance(v, list) else v for k, v in vars(model).items() if not k.startswith("_")}
    graph = export_graph(model, {"x": torch.randn(3, 4)}, loss=None)
    assert "einsum" in graph.text
    assert {k: v for k, v in vars(model).items() if not k.startswith("_")} == attributes
    assert type(model).__setattr__ is nn.Module.__setattr__ and "__getattribute__" not in vars(nn.Module)


class Plain(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def test_another_model_in_the_loss():
    other, x = nn.Linear(4, 4), {"x": torch.randn(3, 4)}
    with pytest.raises(InputError, match=r"forward_state_test\.py:\d+.*a parameter of shape \[4, 4\] that is none of the model's.*discriminator"):
        export_graph(Plain(), x, loss=lambda outputs, batch: other(outputs).mean())
    other.requires_grad_(False)
    outside = export_graph(Plain(), x, loss=lambda outputs, batch: (outputs - other(batch["x"])).square().mean()).outside
    assert {id(t) for _, t in outside} == {id(other.weight), id(other.bias)}
    assert not export_graph(Plain(), x, loss=lambda outputs, batch: outputs.square().mean()).outside
