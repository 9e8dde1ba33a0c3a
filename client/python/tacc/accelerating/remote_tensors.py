"""Parameters and buffers that the ranks train: what reads them here finds them as the ranks have them, and what looks for gradients is told where these are."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from tacc.errors import InputError

# By id of a tensor: who trains it, and what undoes its hook.
_OWNERS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_HOOKS: dict[int, Any] = {}

# Attributes of a tensor that are its values, seen otherwise.
_VALUES = frozenset(["T", "mT", "H", "mH", "real", "imag", "data"])
# Methods that do not look at values.
_DESCRIBE = frozenset([
    "size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "storage_offset", "is_floating_point", "is_complex", "is_contiguous",
    "get_device", "requires_grad_", "register_hook", "register_post_accumulate_grad_hook", "__len__", "__hash__", "zeros_like", "ones_like", "empty_like",
    "new_zeros", "new_ones", "new_empty", "new_full",
])

without_reading = torch._C.DisableTorchFunctionSubclass
"""A context in which such tensors are what they are here, however old."""


def _reads(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return getattr(func.__self__, "__name__", "data") in _VALUES
    return name != "__set__" and name not in _DESCRIBE


class _Remote:
    """What parameters and buffers of a training elsewhere have in common."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _reads(func):
            owners = {id(owner): owner for thing in torch.utils._pytree.tree_leaves((args, kwargs)) if (owner := owner_of(thing)) is not None}
            for owner in owners.values():
                owner.read_through()
        with without_reading():
            return func(*args, **(kwargs or {}))


class RemoteParameter(_Remote, torch.nn.Parameter):  # type: ignore[misc]
    """A parameter whose values and gradient the ranks have. Code that looks for the gradient here would do nothing, without a word."""

    @property
    def grad(self) -> torch.Tensor | None:
        owner = owner_of(self)
        with without_reading():
            if owner is None:  # It is let go.
                return torch._C.TensorBase.grad.__get__(self)
        if owner.has_gradients():
            raise InputError(
                "the gradients are with the ranks, and not in .grad: to clip them use model.clip_grad_norm_(max_norm), or torch.nn.utils.clip_grad_norm_ "
                "by that name; optimizer.step() and zero_grad() work as they are, and tacc.amp.GradScaler in place of torch.amp.GradScaler, whose unscale_ reads .grad"
            )
        return None

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        if owner_of(self) is None:
            with without_reading():
                torch._C.TensorBase.grad.__set__(self, value)
        elif value is not None:
            raise InputError("gradients of an accelerated model are computed by the ranks; none can be set here")

    @property
    def data(self) -> torch.Tensor:
        """One whose changes are counted as this one's: `Changes` sees them."""
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if (owner := owner_of(self)) is not None and torch._C._is_torch_function_enabled():
            owner.read_through()  # The others are as the ranks have them then, and this one alone is another.
        with without_reading():
            torch._C.TensorBase.data.__set__(self, value)
        torch.autograd.graph.increment_version(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Parameter:
        """The ranks do not train a copy."""
        memo[id(self)] = copied = torch.nn.Parameter(self.detach().clone(), self.requires_grad)
        return copied


class RemoteBuffer(_Remote, torch.Tensor):  # type: ignore[misc]
    """A buffer that changes where the training is, as a batch norm's statistics."""

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """As of a parameter."""
        memo[id(self)] = copied = self.detach().clone()
        return copied


def owner_of(tensor: Any) -> Any:
    """Who trains it; None: nobody elsewhere does."""
    return _OWNERS.get(id(tensor))


def check(parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """InputError: what the loop wants to do with them, the ranks do not."""
    if hooked := [name for name, p in parameters.items() if p._backward_hooks]:
        raise InputError(f"{hooked[0]} has a gradient hook (register_hook), and its gradient is computed by the ranks: remove it")
    if taken := [name for name, p in parameters.items() if owner_of(p) is not None]:
        raise InputError(
            f"{taken[0]} is trained by another job already ({owner_of(parameters[taken[0]])!r}), and each job would train a copy of its own: put what shares "
            "parameters into one module that returns one loss and accelerate that, or close the other model first"
        )


def check_outside(tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """InputError: what a model computes with that is none of its own, each with its line, changes elsewhere."""
    for line, tensor in tensors:
        if (owner := owner_of(tensor)) is not None:
            raise InputError(
                f"{line}: this computes with a tensor that another job trains ({owner!r}), and the ranks would have it as it is now: put both models into one "
                "module, or give what the other one returns as a part of the batch"
            )


def take(parameters: Iterable[torch.nn.Parameter], buffers: Iterable[torch.Tensor], owner: Any) -> None:
    """From now on `owner`, with `read_through`, `has_gradients`, `trained` and `clip_grad_norm_`, trains these."""
    for parameter in parameters:
        _OWNERS[id(parameter)] = owner
        parameter.__class__ = RemoteParameter
        if parameter.requires_grad:
            _HOOKS[id(parameter)] = parameter.register_post_accumulate_grad_hook(_refuse)
    for buffer in buffers:
        if type(buffer) is torch.Tensor:
            _OWNERS[id(buffer)] = owner
            buffer.__class__ = RemoteBuffer


def let_go(tensors: Iterable[torch.Tensor]) -> None:
    """Ends that."""
    for tensor in tensors:
        _OWNERS.pop(id(tensor), None)
        if (hook := _HOOKS.pop(id(tensor), None)) is not None:
            hook.remove()
        if type(tensor) is RemoteParameter:
            tensor.__class__ = torch.nn.Parameter
        elif type(tensor) is RemoteBuffer:
            tensor.__class__ = torch.Tensor


def _refuse(parameter: torch.Tensor) -> None:
    if owner_of(parameter) is None:
        return
    with without_reading():
        torch._C.TensorBase.grad.__set__(parameter, None)
    raise InputError(
        "a backward has reached a parameter here, which the ranks train: a term of the loss that is computed of model.parameters() belongs into loss=, and "
        "weight decay into the optimizer"
    )
