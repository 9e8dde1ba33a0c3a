"""Parameters whose gradients the ranks have, and what torch.nn.utils.clip_grad_norm_ of them does."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from tacc.errors import InputError

# By id of a parameter: who trains it, and what undoes its hook.
_OWNERS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_HOOKS: dict[int, Any] = {}


class RemoteParameter(torch.nn.Parameter):  # type: ignore[misc]
    """A parameter whose gradient the ranks have. Code that looks for it here would do nothing, without a word."""

    @property
    def grad(self) -> torch.Tensor | None:
        owner = _OWNERS.get(id(self))
        if owner is None:  # It is let go.
            return torch._C.TensorBase.grad.__get__(self)
        if owner.has_gradients():
            raise InputError(
                "the gradients are with the ranks, and not in .grad: to clip them use model.clip_grad_norm_(max_norm), or torch.nn.utils.clip_grad_norm_ "
                "by that name; optimizer.step() and zero_grad() work as they are"
            )
        return None

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        if id(self) not in _OWNERS:
            torch._C.TensorBase.grad.__set__(self, value)
        elif value is not None:
            raise InputError("gradients of an accelerated model are computed by the ranks; none can be set here")

    @property
    def data(self) -> torch.Tensor:
        """One whose changes are counted as this one's: `Changes` sees them."""
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        torch._C.TensorBase.data.__set__(self, value)
        torch.autograd.graph.increment_version(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Parameter:
        """The ranks do not train a copy."""
        memo[id(self)] = copied = torch.nn.Parameter(self.detach().clone(), self.requires_grad)
        return copied


def check(parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """InputError: what the loop wants to do with gradients, the ranks do not."""
    if hooked := [name for name, p in parameters.items() if p._backward_hooks]:
        raise InputError(f"{hooked[0]} has a gradient hook (register_hook), and its gradient is computed by the ranks: remove it")


def take(parameters: Iterable[torch.nn.Parameter], owner: Any) -> None:
    """From now on `owner`, with `has_gradients`, `trained` and `clip_grad_norm_`, trains these."""
    for parameter in parameters:
        _OWNERS[id(parameter)] = owner
        parameter.__class__ = RemoteParameter
        if parameter.requires_grad:
            _HOOKS[id(parameter)] = parameter.register_post_accumulate_grad_hook(_refuse)
    _patch()


def let_go(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Ends that."""
    for parameter in parameters:
        _OWNERS.pop(id(parameter), None)
        if (hook := _HOOKS.pop(id(parameter), None)) is not None:
            hook.remove()
        if type(parameter) is RemoteParameter:
            parameter.__class__ = torch.nn.Parameter


def _refuse(parameter: torch.Tensor) -> None:
    if id(parameter) not in _OWNERS:
        return
    torch._C.TensorBase.grad.__set__(parameter, None)
    raise InputError(
        "a backward has reached a parameter here, which the ranks train: a term of the loss that is computed of model.parameters() belongs into loss=, and "
        "weight decay into the optimizer"
    )


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
def _patch() -> None:
    """Lets torch.nn.utils.clip_grad_norm_ know such parameters."""
    original = torch.nn.utils.clip_grad_norm_
    patched = _with_owners(original)
    torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad.clip_grad_norm_ = patched


def _with_owners(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: Any = None) -> torch.Tensor:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        given = {id(p) for p in parameters}
        owners = {id(owner): owner for i in given if (owner := _OWNERS.get(i)) is not None}
        if not owners:
            return original(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
        owner = next(iter(owners.values()))
        if len(owners) > 1 or any(p.requires_grad and id(p) not in _OWNERS for p in parameters):
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
