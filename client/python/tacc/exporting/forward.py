"""The module that is traced: the user's model, and its loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tacc.errors import InputError
from tacc.exporting.example import Example


@dataclass(frozen=True)
class LossWithModel:
    """A loss that calls the model itself.

    Attributes:
        compute: Of the model and a batch, the loss and what the model is to return.
        is_sum: It is a sum over samples, and no mean.
    """

    compute: Callable[[torch.nn.Module, Any], tuple[torch.Tensor, Any]]
    is_sum: bool = False


Loss = Callable[[Any, Any], torch.Tensor] | LossWithModel


class Returned:
    """What the model returns: its structure, and of the leaves the names of those that are tensors. (torch.export undoes what a forward assigns
    to the module itself.)"""

    def __init__(self) -> None:
        self.structure: Any = None
        self.names: list[str | None] = []


class ForwardWithLoss(torch.nn.Module):  # type: ignore[misc]
    """Of the tensors of a batch by name, the loss and what else the model returns, tensors by name.

    Args:
        model: The model.
        example: A batch of it.
        loss: Of what it returns; None: it returns it.
        around: What both are called in.
    """

    def __init__(self, model: torch.nn.Module, example: Example, loss: Loss | None, around: AbstractContextManager[Any] | None = None):
        super().__init__()
        self.model = model
        self.returned = Returned()
        self._example = example
        self._loss = loss
        self._around = around or nullcontext()

    def forward(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        with self._around:
            loss, outputs = self._computed(tensors)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            what = "the model's loss" if self._loss is None else "what loss= returns"
            raise InputError(f"{what} is {_described(loss)}; wanted a tensor with one element")
        named = {"loss": loss}
        leaves, self.returned.structure = pytree.tree_flatten_with_path(_without_caches(outputs))
        self.returned.names = []
        for path, leaf in leaves:
            words = [str(key.key if hasattr(key, "key") else getattr(key, "idx", key)) for key in path]
            name = ".".join(words) or "output"
            is_returned = isinstance(leaf, torch.Tensor) and leaf is not loss
            name = name + "_" if name in ("loss", "target_tokens") and is_returned else name
            self.returned.names.append(name if isinstance(leaf, torch.Tensor) else None)
            if is_returned:
                named[name] = leaf
        return named

    def _computed(self, tensors: Mapping[str, torch.Tensor]) -> tuple[Any, Any]:
        if isinstance(self._loss, LossWithModel):
            return self._loss.compute(self.model, self._example.batch_of(tensors))
        outputs, batch = self._example.call(self.model, tensors)
        return _own_loss(outputs) if self._loss is None else self._loss(outputs, batch), outputs


class NoLossError(InputError):
    """The model returns no loss, and none is given."""


def _own_loss(outputs: Any) -> Any:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if loss is None:
        raise NoLossError(
            "the model returns no loss: give loss=, a function of (outputs, batch), or put what the model makes its loss of into the batch, as `labels`"
        )
    return loss


def _described(value: Any) -> str:
    return f"a tensor of {value.dim()} dims" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def _without_caches(outputs: Any) -> Any:
    """Without caches of keys and values, which are no tensors and serve inference alone."""
    if isinstance(outputs, Mapping):
        return {k: _without_caches(v) for k, v in outputs.items() if k not in ("past_key_values", "cache_params")}
    return outputs


@contextmanager
def without_cache(model: torch.nn.Module) -> Any:
    """With the caches of inference off, of a model that can have one (transformers: config.use_cache)."""
    configs = {id(m.config): m.config for m in model.modules() if getattr(getattr(m, "config", None), "use_cache", None)}
    for config in configs.values():
        config.use_cache = False
    try:
        yield
    finally:
        for config in configs.values():
            config.use_cache = True


@contextmanager
def with_batched_experts(model: torch.nn.Module) -> Any:
    """With mixtures of experts as products of each token with its experts' matrices, of a model that can be told so (transformers).

    Its loops over experts depend on values. rows/matmul.py makes a product of the graph of each, so that no matrix is copied.
    """
    configs = {id(m.config): m.config for m in model.modules() if getattr(getattr(m, "config", None), "_experts_implementation", None)}
    before = [(config, config._experts_implementation) for config in configs.values()]
    for config, _ in before:
        config._experts_implementation = "batched_mm"
    try:
        yield
    finally:
        for config, implementation in before:
            config._experts_implementation = implementation
