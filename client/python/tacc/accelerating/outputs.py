"""What an accelerated model returns: tensors whose backward goes to the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from tacc.errors import InputError


class ModelOutputs(dict[str, Any]):
    """What the model returns, by name, attribute or position, as a ModelOutput of transformers; in training all but the loss is computed when it is
    asked for.

    Args:
        loss: The loss, if there is one.
        names: Of the other outputs.
        fetch: Gives their tensors.
    """

    def __init__(self, loss: torch.Tensor | None, names: list[str], fetch: Callable[[], Mapping[str, Any]]):
        given = {} if loss is None else {"loss": loss}
        super().__init__({**given, **{name: _LATER for name in names if name not in given}})
        self.__dict__["_fetch"] = fetch

    def _filled(self) -> dict[str, Any]:
        """All of it. What was assigned stays."""
        if any(value is _LATER for value in super().values()):
            fetched = self.__dict__["_fetch"]()
            super().update({name: fetched[name] for name, value in super().items() if value is _LATER})
        return dict(super().items())

    def __getitem__(self, key: str | int | slice) -> Any:
        if not isinstance(key, str):
            names = tuple(self)[key]
            return self[names] if isinstance(names, str) else tuple(self[name] for name in names)
        if key not in self:
            raise KeyError(self._unknown(key))
        value = super().__getitem__(key)
        return self._filled()[key] if value is _LATER else value

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name if name.startswith("_") else self._unknown(name))
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def _unknown(self, name: str) -> str:
        return f"the model returns no {name!r}; it returns {', '.join(map(repr, self))}"

    def __iter__(self) -> Iterator[str]:  # With it `**outputs` and dict(outputs) ask for each value.
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dict.

        Args:
            key: A name.
            default: As of a dict.
        """
        return self[key] if key in self else default

    def pop(self, key: str, *default: Any) -> Any:
        """As of a dict.

        Args:
            key: A name.
            default: As of a dict.
        """
        value = self.get(key)
        return value if super().pop(key, *default) is _LATER else value if value is not None else (default[0] if default else None)

    def values(self) -> Any:
        """As of a dict."""
        return self._filled().values()

    def items(self) -> Any:
        """As of a dict."""
        return self._filled().items()

    def copy(self) -> dict[str, Any]:
        """As of a dict."""
        return self._filled()

    def to_tuple(self) -> tuple[Any, ...]:
        """All of it, in order."""
        return tuple(self.values())

    def __repr__(self) -> str:
        return f"ModelOutputs({', '.join(self)})"


class _Later:
    """In place of an output that nobody has asked for yet."""


_LATER = _Later()


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
