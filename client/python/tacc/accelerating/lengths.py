"""Samples of several lengths: batches filled up to the next length that the job is compiled for, where what fills them up changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tacc.accelerating.batches import IGNORED
from tacc.accelerating.padding import FILLS
from tacc.errors import InputError
from tacc.exporting.results import Exported, GraphInput
from tacc.live.pad import fill, next_length
from tacc.live.slots import check_numbers

Path = tuple[Any, ...]
_ROUNDING = 1e-4  # Relative: of sums in another order.
_LOADER = "let the loader pad all samples to one of the job's lengths"


class Lengths:
    """Fills batches up.

    Args:
        buckets: The job's lengths.
        description: Of the exported graph.
        fills: What inputs are filled up with, by name, of tokens and others than FILLS has.
        module: The model.
        returned: What the module returns of a batch in evaluation, and its loss with it.
    """

    def __init__(self, buckets: Sequence[int], description: Exported, fills: Mapping[str, float], module: torch.nn.Module, returned: Callable[[Any], Any]):
        self._buckets = list(buckets)
        self._module = module
        self._inputs = {given.path: given for given in description.inputs}
        self._has_batch_norm = "batch_moments" in description.coverage.ops
        self.dims = {given.path: given.dims.index("S") for given in description.inputs if "S" in given.dims}
        """By input, the dim that is the tokens of a sample."""
        self._values = {given.path: _value(given, fills) for given in description.inputs if given.path in self.dims}
        for given in description.inputs:
            value = self._values.get(given.path)
            if value is not None and given.limit is not None and value != given.ignored and value not in range(given.limit):
                others = "" if given.ignored is None else f", or {given.ignored} where nothing counts"
                raise InputError(f"{_name(given.path)!r} cannot be filled up with {value}: the model takes 0 to {given.limit - 1}{others}")
        self._uncounted = {given.path for given in description.inputs if given.name in description.targets}
        self._returned = returned
        self.is_checked = False
        """Whether it was tried with the model that what fills samples up changes nothing."""

    def of(self, leaves: Mapping[Path, Any]) -> int:
        """Tokens of a sample of the batch."""
        found = {int(leaves[path].shape[dim]) for path, dim in self.dims.items() if path in leaves and leaves[path].dim() > dim}
        if len(found) != 1:
            names = ", ".join(map(repr, (_name(path) for path in self.dims)))
            raise InputError(f"the batch has samples of {', '.join(map(str, sorted(found))) or 'no'} tokens; {names} have the same number of them")
        return found.pop()

    def bucket(self, length: int) -> int:
        """The length that such samples are filled up to."""
        return next_length(self._buckets, length)

    def filled(self, arrays: Mapping[Path, np.ndarray[Any, Any]], batch: Any, length: int, *, trains: bool) -> dict[Path, np.ndarray[Any, Any]]:
        """The arrays with samples of the next length. InputError: what fills them up would change the loss, or it is not known."""
        wanted = self.bucket(length)
        if wanted > length and trains and self._has_batch_norm:
            raise InputError(f"the model has a batch norm, whose mean and variance would be also of what fills samples up: {_LOADER}")
        if wanted > length and not self.is_checked:
            for path, array in arrays.items():  # PyTorch, which computes the check, says no more than that an index is out of range.
                if (limit := self._inputs[path].limit) is not None:
                    check_numbers(self._inputs[path].name, array, limit, self._inputs[path].ignored, has_batch=self._inputs[path].dims[:1] == ["B"])
            with torch.no_grad():
                self._check(batch, wanted)
            self.is_checked = True
        return {path: fill(array, wanted, self._values[path] or 0, self.dims[path]) if path in self.dims else array for path, array in arrays.items()}

    def _check(self, batch: Any, wanted: int) -> None:
        """Computes the loss and the outputs of a sample here, filled up and not."""
        for path, value in self._values.items():
            if value is None:
                raise InputError(f"it is not known what may fill up {_name(path)!r} of a batch with shorter samples: {_LOADER}, or give config dataloader.pad_value_dict")
            if path[-1] == "labels" and path not in self._uncounted:
                raise InputError(f"the loss counts what would fill up {_name(path)!r}, or has more than cross-entropies of it: {_LOADER}")
        sample = _sample(batch)
        longer = pytree.tree_map_with_path(lambda path, leaf: self._longer(tuple(_key(k) for k in path), leaf, wanted), sample)
        self._compare(sample, longer)
        with _moved_constants(self._module):
            self._compare(sample, longer)

    def _compare(self, sample: Any, longer: Any) -> None:
        with torch.random.fork_rng(devices=[]):
            one, other = (_tensors(self._returned(of)) for of in (sample, longer))
        for name, tensor in one.items():
            if name not in other or tensor.dim() != other[name].dim():
                raise InputError(f"what the model returns as {name!r} is another thing for samples that are filled up: {_LOADER}")
            cut = other[name][tuple(slice(0, n) for n in tensor.shape)]
            scale = float(tensor.abs().max()) if tensor.numel() else 0.0
            if cut.shape != tensor.shape or not torch.allclose(cut, tensor, rtol=_ROUNDING, atol=_ROUNDING * max(scale, 1e-6), equal_nan=True):
                raise InputError(
                    f"what fills samples up changes {name!r} of the model: its batches need an 'attention_mask' that it reads, or a model that reads no token "
                    f"behind; {_LOADER}"
                )

    def _longer(self, path: Path, leaf: Any, wanted: int) -> Any:
        if path not in self.dims or not isinstance(leaf, torch.Tensor):
            return leaf
        widths = [n for d in reversed(range(leaf.dim())) for n in (0, wanted - leaf.shape[d] if d == self.dims[path] else 0)]
        return torch.nn.functional.pad(leaf, widths, value=self._values[path] or 0)


@contextlib.contextmanager
def _moved_constants(module: torch.nn.Module) -> Iterator[None]:
    """Other values, as training will give them, to parameters that are all one number: what a gate of 0 multiplies is not seen."""
    random = torch.Generator().manual_seed(0)
    moved = {id(p): _moved(p, random) for p in module.parameters() if p.is_floating_point() and p.numel() > 0 and bool((p == p.reshape(-1)[0]).all())}
    places = [(m, key, p) for m in module.modules() for key, p in m._parameters.items() if id(p) in moved]
    try:
        for m, key, p in places:
            setattr(m, key, moved[id(p)])
        yield
    finally:
        for m, key, p in places:
            setattr(m, key, p)


def _moved(p: torch.Tensor, random: torch.Generator) -> torch.nn.Parameter:
    noise = torch.rand((2, *p.shape), generator=random).to(p.device, p.dtype)
    in_place_of_0 = (0.5 + noise[0]) * torch.where(noise[1] < 0.5, -1, 1) / (p.shape[-1] if p.dim() > 1 else 1) ** 0.5
    return torch.nn.Parameter(torch.where(p.detach() == 0, in_place_of_0, p.detach() * (0.75 + noise[0] / 2)), requires_grad=False)


def _value(given: GraphInput, fills: Mapping[str, float]) -> float | None:
    """What fills the input up; None: nobody knows. The graph knows best which label its loss leaves out."""
    known = {**FILLS, **fills}.get(given.path[-1])
    return given.ignored if known == IGNORED and given.limit is not None else known


def _sample(batch: Any) -> Any:
    """Of a batch the sample with the most labels."""
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    rows = next((len(leaf) for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0), 1)
    row = 0
    if isinstance(labels, torch.Tensor) and labels.dim() > 0 and len(labels) == rows:
        row = int(labels.ne(IGNORED).reshape(rows, -1).sum(1).argmax())
    return pytree.tree_map(lambda t: t[row : row + 1] if isinstance(t, torch.Tensor) and t.dim() > 0 and len(t) == rows else t, batch)


def _tensors(returned: Any) -> dict[str, torch.Tensor]:
    leaves = pytree.tree_flatten_with_path(returned)[0]
    return {_name(path): leaf.float() for path, leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()}


def _key(key: Any) -> Any:
    return key.key if hasattr(key, "key") else key.idx if hasattr(key, "idx") else str(key)


def _name(path: Any) -> str:
    return ".".join(str(_key(key)) for key in path) or "output"
