"""The norm of gradients that the ranks have, and what torch.nn.utils.clip_grad_norm_ of their parameters does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tacc.accelerating.remote_tensors import owner_of
from tacc.errors import InputError


class GradNorm(torch.Tensor):  # type: ignore[misc]
    """A norm that is known when the update is done. It is looked up when it is used."""

    _look_up: Callable[[], None] | None

    @staticmethod
    def of(look_up: Callable[[], None]) -> GradNorm:
        """A norm of which `look_up` calls `know`, if it can be known by then."""
        norm: GradNorm = torch.Tensor._make_subclass(GradNorm, torch.zeros(()))
        norm._look_up = look_up
        return norm

    def know(self, value: float) -> None:
        """What it is."""
        with torch._C.DisableTorchFunctionSubclass():
            self.fill_(value)
        self._look_up = None

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec)

    def _need(self) -> None:
        if (look_up := self.__dict__.get("_look_up")) is None:
            return
        look_up()
        if self.__dict__["_look_up"] is not None:
            raise InputError(
                "the norm of the gradients is known behind optimizer.step(); an update whose gradients are not finite is left out by itself "
                "(model.last_step.skipped)"
            )

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for thing in torch.utils._pytree.tree_leaves((args, kwargs)):
            if isinstance(thing, GradNorm):
                thing._need()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


@functools.cache
def patch() -> None:
    """Lets torch.nn.utils.clip_grad_norm_ know such parameters."""
    original = torch.nn.utils.clip_grad_norm_
    patched = _with_owners(original)
    torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad.clip_grad_norm_ = patched


def _with_owners(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: Any = None) -> torch.Tensor:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        given = {id(p) for p in parameters}
        owners = {id(owner): owner for p in parameters if (owner := owner_of(p)) is not None}
        if not owners:
            return original(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
        owner = next(iter(owners.values()))
        if len(owners) > 1 or any(p.requires_grad and owner_of(p) is None for p in parameters):
            raise InputError("clip_grad_norm_ of an accelerated model's parameters and others: each model's ranks clip its gradients by themselves")
        if left := len(owner.trained - given):
            raise InputError(f"clip_grad_norm_: {left} of the model's {len(owner.trained)} trained parameters are not given; the ranks clip all together")
        if error_if_nonfinite:
            raise InputError(
                "clip_grad_norm_(error_if_nonfinite=True): the norm is known behind optimizer.step(), where an update whose gradients are not finite is "
                "left out (model.last_step.skipped)"
            )
        return owner.clip_grad_norm_(max_norm, norm_type)

    return clip_grad_norm_
