"""The loss of a `transformers.Trainer` that is not its model's own: what it may be for the ranks to compute it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree
from transformers import Trainer

from tacc.errors import InputError
from tacc.exporting.forward import LossWithModel

_ALIKE = 1e-5  # Relative.
# Attributes of a trainer that are other ones at each step, or that are there to do something.
_MOVING = {"state", "control", "callback_handler", "optimizer", "lr_scheduler", "log", "save_metrics", "log_metrics", "current_flos"}

ComputeLoss = Callable[..., Any]


class TrainerLoss:
    """`compute_loss` of a trainer, as a function of the model and a batch that is traced once.

    Args:
        compute: The trainer's own.
        trainer: Whose it is.
        module: Its model.
        sample: A batch of one sample.
        num_items: Whether `compute_loss` is given `num_items_in_batch`.
    """

    def __init__(self, compute: ComputeLoss, trainer: Any, module: torch.nn.Module, sample: Mapping[str, Any], *, has_items: bool):
        self._compute = compute
        self._module = module
        self._has_items = has_items
        calls: list[tuple[Mapping[str, Any], Any]] = []
        hook = module.register_forward_hook(lambda _, args, kwargs, outputs: calls.append((kwargs if not args else {}, outputs)), with_kwargs=True)
        try:
            with _watched(trainer) as seen:
                loss, _ = self.evaluated(sample)
        finally:
            hook.remove()
        given, outputs = calls[0] if len(calls) == 1 else ({}, None)
        taken = {k: v for k, v in given.items() if k != "num_items_in_batch"}
        self.calls_once = bool(taken) and all(k in sample and v is sample[k] for k, v in taken.items())
        """Whether it calls the model once, with some of what is in the batch."""
        self.is_own = self.calls_once and isinstance(outputs, Mapping) and outputs.get("loss") is loss
        """Whether it is the model's own."""
        self.impure = seen.impure
        """What it does beside computing; empty: nothing."""
        self._read = seen.values
        self.is_sum = False
        """Whether it is a sum over `num_items_in_batch`."""
        if has_items and not self.is_own:
            self.is_sum = self._is_sum(sample, float(loss))

    def _is_sum(self, sample: Mapping[str, Any], of_one: float) -> bool:
        of_two = float(self.evaluated(sample, 2.0)[0])
        if math.isclose(of_one, 2.0 * of_two, rel_tol=_ALIKE):
            return True
        if not math.isclose(of_one, of_two, rel_tol=_ALIKE):
            self.impure = self.impure or "is neither a sum over num_items_in_batch nor independent of it"
        return False

    def evaluated(self, batch: Mapping[str, Any], num_items: float = 1.0) -> tuple[torch.Tensor, Any]:
        """Loss and outputs, computed here as in evaluation; over `num_items` where it is given that."""
        was_training = self._module.training
        self._module.eval()
        try:
            with torch.no_grad():
                return self._of(self._module, batch, torch.tensor(num_items) if self._has_items else None)
        finally:
            self._module.train(was_training)

    def _of(self, module: torch.nn.Module, batch: Mapping[str, Any], num_items: torch.Tensor | None) -> tuple[torch.Tensor, Any]:
        returned = []
        hook = module.register_forward_hook(lambda _, __, outputs: returned.append(outputs))
        try:
            found = self._compute(module, dict(batch), return_outputs=True, num_items_in_batch=num_items)
        finally:
            hook.remove()
        if isinstance(found, tuple) and len(found) == 2:
            return found
        return found, returned[-1] if returned else ()  # It does without return_outputs.

    def traced(self) -> LossWithModel:
        """For the export."""

        def compute(module: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, Any]:
            return self._of(module, batch, torch.ones(()) if self._has_items else None)

        return LossWithModel(compute, self.is_sum)

    def check(self, trainer: Any) -> None:
        """InputError: what it reads of the trainer has changed since it was traced."""
        for name, before in self._read.items():
            if name in trainer.__dict__ and before != _fingerprint(trainer.__dict__[name]):
                raise InputError(
                    f"compute_loss reads self.{name}, which has changed since the training began; the workers compute the loss as it was then. What changes "
                    "from step to step is to be in the batches"
                )


def own_compute_loss(trainer: Any) -> bool:
    """Whether a trainer has the loss of its model, without looking closer."""
    return type(trainer).compute_loss is Trainer.compute_loss and trainer.compute_loss_func is None and trainer.label_smoother is None


_ABSENT = object()


class _Seen:
    def __init__(self) -> None:
        self.impure = ""
        self.values: dict[str, Any] = {}
        self.moving: list[str] = []
        self.set: list[str] = []
        self.before: dict[str, Any] = {}  # of those that are read or set

    def changed(self, trainer: Any) -> list[str]:
        return [*self.set, *(name for name, before in self.values.items() if before != _fingerprint(trainer.__dict__.get(name)))]


@contextmanager
def _watched(trainer: Any) -> Iterator[_Seen]:
    """Sees which attributes of the trainer are read and set meanwhile, and puts back what was changed."""
    kind: Any = type(trainer)
    seen = _Seen()

    def read(self: Any, name: str) -> Any:
        value = kind.__getattribute__(self, name)
        if name in _MOVING and name not in seen.moving:
            seen.moving.append(name)
        elif name not in seen.values and name in kind.__getattribute__(self, "__dict__") and (found := _fingerprint(value)) is not None:
            seen.values[name] = found
            seen.before.setdefault(name, pytree.tree_map(lambda leaf: leaf, value))
        return value

    def write(self: Any, name: str, value: Any) -> None:
        seen.set.append(name)
        seen.before.setdefault(name, kind.__getattribute__(self, "__dict__").get(name, _ABSENT))
        kind.__setattr__(self, name, value)

    trainer.__class__ = type(kind.__name__, (kind,), {"__getattribute__": read, "__setattr__": write, "__module__": kind.__module__})
    try:
        yield seen
    finally:
        object.__setattr__(trainer, "__class__", kind)
        changed = seen.changed(trainer)
        seen.impure = f"changes self.{changed[0]}" if changed else f"uses self.{seen.moving[0]}" if seen.moving else ""
        for name in dict.fromkeys(changed):
            trainer.__dict__[name] = seen.before[name]
            if seen.before[name] is _ABSENT:
                del trainer.__dict__[name]


def _fingerprint(value: Any) -> Any:
    """What tells a number, a text, a tensor, or a container of these from what it becomes; None: of another kind."""
    leaves, structure = pytree.tree_flatten(value)
    marks = [_mark(leaf) for leaf in leaves]
    return None if any(mark is None for mark in marks) else (structure, marks)


def _mark(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.data_ptr(), leaf._version
    return (leaf,) if leaf is None or isinstance(leaf, (bool, int, float, str, bytes)) else None

