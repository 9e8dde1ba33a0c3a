"""Clipping of gradients that the ranks have: torch.nn.utils.clip_grad_norm_ of an accelerated model's parameters."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from tacc.errors import InputError

# By id of a parameter: who trains it.
_OWNERS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class RemoteParameter(torch.nn.Parameter):  # type: ignore[misc]
    """A parameter whose gradient the ranks have. Code that looks for it here would do nothing, without a word."""

    @property
    def grad(self) -> torch.Tensor | None:
        owner = _OWNERS.get(id(self))
        if owner is not None and owner.has_gradients():
            raise InputError(
                "the gradients are with the ranks, and not in .grad: to clip them use model.clip_grad_norm_(max_norm), or torch.nn.utils.clip_grad_norm_ "
                "by that name; optimizer.step() and zero_grad() work as they are"
            )
        return None

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        if value is not None:
            raise InputError("gradients of an accelerated model are computed by the ranks; none can be set here")


def take(parameters: Iterable[torch.nn.Parameter], owner: Any) -> None:
    """From now on `owner`, with `has_gradients` and `clip_grad_norm_`, trains these."""
    for parameter in parameters:
        _OWNERS[id(parameter)] = owner
        parameter.__class__ = RemoteParameter
    _patch()


def let_go(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Ends that."""
    for parameter in parameters:
        _OWNERS.pop(id(parameter), None)
        if type(parameter) is RemoteParameter:
            parameter.__class__ = torch.nn.Parameter


def _owner_of(parameters: Any) -> Any:
    return next((_OWNERS[id(p)] for p in parameters if id(p) in _OWNERS), None)


@functools.cache
def _patch() -> None:
    """Lets torch.nn.utils.clip_grad_norm_ know such parameters."""
    original = torch.nn.utils.clip_grad_norm_
    patched = _with_owners(original)
    torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad.clip_grad_norm_ = patched


def _with_owners(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> torch.Tensor:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if (owner := _owner_of(parameters)) is None:
            return original(parameters, max_norm, norm_type, *args, **kwargs)
        return owner.clip_grad_norm_(max_norm, norm_type)

    return clip_grad_norm_
