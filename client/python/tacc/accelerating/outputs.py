"""What an accelerated model returns: tensors whose backward goes to the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from tacc.errors import InputError


class ModelOutputs(Mapping[str, Any]):
    """What the model returns, by name, attribute or position; in training all but the loss is computed when it is asked for.

    Args:
        loss: The loss, if there is one.
        names: Of the other outputs.
        fetch: Gives their tensors.
    """

    def __init__(self, loss: torch.Tensor | None, names: list[str], fetch: Callable[[], Mapping[str, Any]]):
        self._loss = loss
        self._names = (["loss"] if loss is not None else []) + [name for name in names if name != "loss"]
        self._fetch = fetch
        self._fetched: Mapping[str, Any] | None = None

    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, slice):
            return tuple(self[name] for name in self._names[key])
        name = self._names[key] if isinstance(key, int) else key
        if name not in self._names:
            raise KeyError(f"the model returns no {name!r}; it returns {', '.join(map(repr, self._names))}")
        if name == "loss" and self._loss is not None:
            return self._loss
        if self._fetched is None:
            self._fetched = self._fetch()
        return self._fetched[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._names:
            raise AttributeError(f"the model returns no {name!r}; it returns {', '.join(map(repr, self._names))}")
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def to_tuple(self) -> tuple[Any, ...]:
        """All of it, in order."""
        return tuple(self[name] for name in self._names)

    def __repr__(self) -> str:
        return f"ModelOutputs({', '.join(self._names)})"


class _Loss(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, value: float, on_backward: Callable[[float], None]) -> torch.Tensor:
        ctx.on_backward = on_backward
        return torch.tensor(value, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None]:
        ctx.on_backward(float(gradients[0]))
        return None, None, None


class _Outputs(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, on_backward: Callable[[list[torch.Tensor]], None], *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.on_backward = on_backward
        whole = [v for v in values if not v.is_floating_point()]
        ctx.mark_non_differentiable(*whole)
        return tuple(v.view_as(v) for v in values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, ...]:
        ctx.on_backward(list(gradients))
        return (None,) * (2 + len(gradients))


def loss_tensor(value: float, on_backward: Callable[[float], None]) -> torch.Tensor:
    """A scalar; its backward calls `on_backward` with what it is differentiated by."""
    return _Loss.apply(torch.zeros((), requires_grad=True), value, on_backward)


def output_tensors(values: Mapping[str, torch.Tensor], on_backward: Callable[[dict[str, torch.Tensor]], None]) -> dict[str, torch.Tensor]:
    """The tensors; the backward of what is computed of them calls `on_backward` with their gradients."""
    names = list(values)
    made = _Outputs.apply(torch.zeros((), requires_grad=True), lambda gradients: on_backward(dict(zip(names, gradients))), *values.values())
    return dict(zip(names, made))


def refusing(message: str) -> Callable[[Any], None]:
    """What the backward of tensors calls that have none."""

    def refuse(_: Any) -> None:
        raise InputError(message)

    return refuse
