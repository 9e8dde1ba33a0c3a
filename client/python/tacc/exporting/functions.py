"""Calls of torch.autograd.Function in a trace. A graph has the ops of their forward, and derives its gradients itself; their backward it has not.

Each is tried with random numbers. If its backward is the derivative of its forward, the ops say all. If it gives back a multiple of the gradient,
element by element, as a straight-through estimator or a reversal of gradients, the graph says so by stopped gradients. Others are refused.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import function as autograd_function
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

from tacc.errors import InputError
from tacc.exporting.results import ExportError
from tacc.exporting.source import innermost

_OWN, _MULTIPLE = "the derivative of its forward", "a multiple of the gradient"
_CLOSE = 1e-5  # of two gradients in float64, to the largest of their elements
# Of gradients that are tried: one that is clipped, or otherwise no multiple, is so at some of them.
_SCALES = (1e-6, 1e-3, 1.0, 1e3, 1e6)


def check_hooks(model: torch.nn.Module) -> None:
    """InputError: a module changes gradients on their way back."""
    for name, module in model.named_modules():
        for hooks, register in (("_backward_hooks", "register_full_backward_hook"), ("_backward_pre_hooks", "register_full_backward_pre_hook")):
            if getattr(module, hooks, None):
                raise InputError(
                    f"{name or 'the model'} has a hook on its backward ({register}), and its gradients are computed by the ranks, which do not call it: remove it"
                )


class _Context(autograd_function.FunctionCtx):  # type: ignore[misc]
    """What forward and backward are given."""

    def __init__(self, needs_input_grad: tuple[bool, ...]):
        self.needs_input_grad = needs_input_grad
        self.to_save: tuple[Any, ...] = ()
        self.dirty_tensors: tuple[Any, ...] = ()

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return tuple(self.to_save)


@dataclass
class _Call:
    function: type[torch.autograd.Function]
    args: tuple[Any, ...]
    line: str


class Functions:
    """Those of a model."""

    def __init__(self) -> None:
        self._kinds: dict[Any, str] = {}
        self._new: dict[Any, _Call] = {}

    @contextmanager
    def traced(self) -> Iterator[None]:
        """While a model is traced. `X.apply` that was bound before is found too: it calls that of the base class."""
        base = autograd_function._SingleLevelFunction
        base.apply = classmethod(lambda cls, *args: self._apply(cls, *args))
        try:
            yield
        finally:
            del base.apply

    def judge(self) -> bool:
        """Tries those that the trace has met. Returns whether it must be traced again. Raises ExportError."""
        found, self._new = self._new, {}
        self._kinds |= {key: _kind(call) for key, call in found.items()}
        return any(self._kinds[key] == _MULTIPLE for key in found)

    def _apply(self, function: type[torch.autograd.Function], *args: Any) -> Any:
        differentiated = any(map(_is_differentiated, args))
        if function is CheckpointFunction:  # What is computed twice is the same.
            result = args[0](*args[2:])
            return result if differentiated else _stopped(result)
        if function.__module__.startswith("torch."):
            original: Any = super(autograd_function._SingleLevelFunction, function)
            return original.apply(*args)
        if not torch.is_grad_enabled() or not differentiated:
            return _stopped(_forward(function, args)[0])
        key = (function, *map(_described, args))
        if key not in self._kinds:
            self._new.setdefault(key, _Call(function, args, innermost("".join(traceback.format_list(traceback.extract_stack())))))
        return _as_multiple(function, args) if self._kinds.get(key) == _MULTIPLE else _forward(function, args)[0]


def _is_differentiated(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and arg.requires_grad


def _stopped(result: Any) -> Any:
    """Without gradients, as what a function makes of other things than its arguments, say of parameters that it knows."""
    return pytree.tree_map(lambda r: r.detach() if _is_differentiated(r) else r, result)


def _described(arg: Any) -> Any:
    return (tuple(map(_size, arg.shape)), arg.dtype, arg.requires_grad) if isinstance(arg, torch.Tensor) else repr(arg)


def _size(size: Any) -> int:
    """Of the example."""
    return size if isinstance(size, int) else int(size.node.hint)


def _forward(function: Any, args: tuple[Any, ...]) -> tuple[Any, _Context]:
    context = _Context(tuple(map(_is_differentiated, args)))
    if function.setup_context is not autograd_function._SingleLevelFunction.setup_context:
        result = function.forward(*args)
        function.setup_context(context, args, result)
        return result, context
    return function.forward(context, *args), context


def _gradients(function: Any, context: _Context, args: tuple[Any, ...], *gradients: torch.Tensor) -> list[torch.Tensor | None]:
    """Of the arguments, by its backward."""
    found = function.backward(context, *gradients)
    found = found if isinstance(found, tuple) else (found,)
    return [g if _is_differentiated(arg) else None for arg, g in zip(args, found)]


def _as_multiple(function: Any, args: tuple[Any, ...]) -> torch.Tensor:
    """The value of its forward, with the gradients of its backward."""
    result, context = _forward(function, args)
    factors = _gradients(function, context, args, torch.ones_like(result))
    value: torch.Tensor = result.detach()
    for arg, factor in zip(args, factors):
        if factor is not None:
            value = value + factor.detach() * (arg - arg.detach())
    return value


def _kind(call: _Call) -> str:
    name = call.function.__name__
    where = f"{call.line}: " if call.line else ""
    what_to_do = "write it by ops and detach(): x + (f(x) - x).detach() has the value of f(x), and the gradient goes through it to x"
    with torch.random.fork_rng(devices=[]):
        try:
            samples = [_sample(call.args, positive) for positive in (False, True)]
            if all(_is_own(call.function, args) for args in samples):
                return _OWN
            if all(_is_multiple(call.function, args) for args in samples):
                return _MULTIPLE
        except Exception as error:  # Of the user's code.
            raise ExportError(
                f"{where}{name} is a torch.autograd.Function, whose backward a graph has not, and it cannot be tried with random numbers ({error}): {what_to_do}"
            ) from error
    raise ExportError(
        f"{where}{name} is a torch.autograd.Function with a backward that a graph cannot have: it is neither the derivative of its forward nor the gradient "
        f"times what does not depend on it, element by element: {what_to_do}"
    )


def _sample(args: tuple[Any, ...], positive: bool) -> tuple[Any, ...]:
    def of(arg: Any) -> Any:
        if isinstance(arg, torch.SymInt):
            return _size(arg)
        if not isinstance(arg, torch.Tensor):
            return arg
        shape = [_size(d) for d in arg.shape]
        if not arg.is_floating_point():
            return torch.randint(0, 2, shape).to(arg.dtype)
        return (torch.rand(shape, dtype=torch.float64) + 0.1 if positive else 2 * torch.randn(shape, dtype=torch.float64)).requires_grad_(arg.requires_grad)

    torch.manual_seed(0)
    return tuple(map(of, args))


def _run(function: Any, args: tuple[Any, ...], call: Callable[..., Any]) -> tuple[list[torch.Tensor], Any]:
    """Of copies, which it may change, with the same random numbers each time: results with a gradient, and the context."""
    torch.manual_seed(1)
    result, context = call(function, tuple(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args))
    results = result if isinstance(result, (list, tuple)) else [result]
    return [r for r in results if isinstance(r, torch.Tensor) and r.is_floating_point()], context


def _is_own(function: Any, args: tuple[Any, ...]) -> bool:
    differentiated = [arg for arg in args if _is_differentiated(arg)]
    found = []
    for call in (_forward, lambda f, given: (f.apply(*given), None)):
        results, _ = _run(function, args, call)
        of = [r for r in results if r.requires_grad]
        gradients = [torch.randn(r.shape, dtype=r.dtype, generator=torch.Generator().manual_seed(i)) for i, r in enumerate(of)]
        made = torch.autograd.grad(of, differentiated, gradients, allow_unused=True) if of else [None] * len(differentiated)
        found.append([torch.zeros_like(arg) if g is None else g for arg, g in zip(differentiated, made)])
    return all(_are_close(a, b) for a, b in zip(*found))


def _is_multiple(function: Any, args: tuple[Any, ...]) -> bool:
    results, context = _run(function, args, _forward)
    if len(results) != 1 or context.dirty_tensors:
        return False
    factors = _gradients(function, context, args, torch.ones_like(results[0]))
    if any(f is not None and f.shape != results[0].shape for f in factors):
        return False
    for scale in _SCALES:
        gradient = scale * torch.randn(results[0].shape, dtype=results[0].dtype)
        made = _gradients(function, context, args, gradient.clone())
        for factor, g in zip(factors, made):
            if (factor is None) != (g is None) or (factor is not None and g is not None and not _are_close(factor * gradient, g)):
                return False
    return all(arg.shape == results[0].shape for arg, f in zip(args, factors) if f is not None)


def _are_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    largest = float(a.detach().abs().max()) if a.numel() else 0.0
    return bool(torch.allclose(a, b, rtol=_CLOSE, atol=_CLOSE * largest, equal_nan=True))
