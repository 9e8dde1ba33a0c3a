"""The batch that a model is traced with: its tensors by name, which of their dims are samples and tokens, and the call that they make."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tacc.errors import InputError

GIVEN = ("tokens", "targets", "step", "sample", "document_start")  # names that mean something else in a graph


@dataclass(frozen=True)
class Leaf:
    """A tensor of a batch.

    Attributes:
        name: Of the graph's input.
        path: Where in the batch it is: keys and positions, one behind the other.
        is_batch: Dim 0 is the samples.
        is_sequence: Dim 1 is the tokens of a sample.
    """

    name: str
    path: tuple[Any, ...]
    is_batch: bool
    is_sequence: bool


class Example:
    """A batch as a model takes it: a mapping of keyword arguments, a sequence of positional ones, or a tensor."""

    def __init__(self, model: torch.nn.Module, batch: Any, *, has_loss: bool, names: Mapping[str, str] | None = None):
        self._names = names or {}  # of inputs, other than those in the batch
        self._forward = _Signature(model)
        self._has_loss = has_loss  # a loss that is no part of the model: it may read more than the model does
        if isinstance(batch, torch.Tensor):
            batch = (batch,)
        if not isinstance(batch, (Mapping, tuple, list)):
            raise InputError(f"the example batch is a {type(batch).__name__}; give a dict of keyword arguments, a tuple or list of arguments, or a tensor")
        self.batch = dict(batch) if isinstance(batch, Mapping) else list(batch)
        leaves, self._spec = pytree.tree_flatten_with_path(self.batch)
        self._constants = {i: leaf for i, (_, leaf) in enumerate(leaves) if not isinstance(leaf, torch.Tensor)}
        tensors = {i: (tuple(_key(k) for k in path), leaf) for i, (path, leaf) in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
        if not tensors:
            raise InputError("the example batch has no tensor; give torch.tensor(...) in place of lists and numbers")
        self.batch_size = _batch_size([t for _, t in tensors.values()])
        self.seq_len = _seq_len([t for _, t in tensors.values()])
        self.leaves: list[Leaf] = []
        self.tensors: dict[str, torch.Tensor] = {}
        for path, tensor in tensors.values():
            name = self._name(path)
            self.leaves.append(Leaf(name, path, _has_samples(tensor, self.batch_size), _has_tokens(tensor, self.batch_size, self.seq_len)))
            self.tensors[name] = tensor.detach()
        self._order = list(tensors)

    def _name(self, path: tuple[Any, ...]) -> str:
        words = [str(part) for part in path]
        if isinstance(self.batch, list):
            words[0] = self._forward.name_of(path[0], len(self.batch) if self._has_loss else None)
        name = ".".join(words)
        if name in self._names:
            return self._names[name]
        while name in GIVEN or name in self.tensors:
            name += "_"
        return name

    def call(self, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> tuple[Any, Any]:
        """The model's outputs for these tensors, and the batch that they make."""
        batch = self.batch_of(tensors)
        if isinstance(batch, dict):
            taken = {k: v for k, v in batch.items() if not self._has_loss or self._forward.takes(k)}
            return model(**taken), batch
        taken_args = batch[: self._forward.num_taken(len(batch))] if self._has_loss else batch
        return model(*taken_args), tuple(batch)

    def batch_of(self, tensors: Mapping[str, torch.Tensor]) -> Any:
        """The batch that these tensors make."""
        leaves: list[Any] = [self._constants.get(i) for i in range(len(self._constants) + len(self._order))]
        for i, leaf in zip(self._order, self.leaves):
            leaves[i] = tensors[leaf.name]
        return pytree.tree_unflatten(leaves, self._spec)

    def for_tracing(self, *, any_batch: bool) -> dict[str, torch.Tensor]:
        """The tensors; of any batch, with a number of samples that is neither 1, which export takes for a constant, nor the size of another dim."""
        if not any_batch:
            return dict(self.tensors)
        sizes = {d for t in self.tensors.values() for d in t.shape[1:]}
        count = next(n for n in (max(self.batch_size, 2), *range(2, len(sizes) + 4)) if n not in sizes)
        rows = torch.arange(count) % max(self.batch_size, 1)
        tensors = ((leaf, self.tensors[leaf.name]) for leaf in self.leaves)
        return {leaf.name: tensor[rows.to(tensor.device)] if leaf.is_batch else tensor for leaf, tensor in tensors}


def _key(key: Any) -> Any:
    return key.key if hasattr(key, "key") else key.idx if hasattr(key, "idx") else str(key)


def _batch_size(tensors: list[torch.Tensor]) -> int:
    """What dim 0 is of most tensors; of equally many, of the first."""
    sizes = [t.shape[0] for t in tensors if t.dim() > 0]
    return max(sizes, key=lambda size: (sizes.count(size), -sizes.index(size)), default=1)


def _seq_len(tensors: list[torch.Tensor]) -> int | None:
    """Dim 1 of the first tensor of whole numbers with two dims, which are ids of tokens."""
    return next((t.shape[1] for t in tensors if t.dim() == 2 and not t.is_floating_point()), None)


def _has_samples(tensor: torch.Tensor, batch_size: int) -> bool:
    return bool(tensor.dim() > 0 and tensor.shape[0] == batch_size)


def _has_tokens(tensor: torch.Tensor, batch_size: int, seq_len: int | None) -> bool:
    return _has_samples(tensor, batch_size) and tensor.dim() in (2, 3) and tensor.shape[1] == seq_len


class _Signature:
    """What a model's forward takes."""

    def __init__(self, model: torch.nn.Module):
        self._parameters = list(inspect.signature(model.forward).parameters.values())
        self._positional = [p for p in self._parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]

    def takes(self, keyword: str) -> bool:
        return any(p.kind is p.VAR_KEYWORD or p.name == keyword and p.kind is not p.POSITIONAL_ONLY for p in self._parameters)

    def num_taken(self, num_given: int) -> int:
        """How many it takes of so many arguments by position, of which the last are the loss's: the very last too if it can do without (`mask=None`)."""
        if any(p.kind is p.VAR_POSITIONAL for p in self._parameters):
            return num_given
        last = self._positional[num_given - 1 : num_given]
        return num_given - 1 if last and last[0].default is not inspect.Parameter.empty else min(num_given, len(self._positional))

    def name_of(self, position: int, num_given: int | None) -> str:
        """`num_given`: arguments, of which some may be the loss's."""
        taken = len(self._positional) if num_given is None else min(self.num_taken(num_given), len(self._positional))
        return self._positional[position].name if position < taken else f"input{position}"
