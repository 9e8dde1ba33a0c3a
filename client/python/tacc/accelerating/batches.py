"""The batches of an accelerated model: what a loop gives, as the arrays that the graph's inputs are."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tacc.errors import InputError
from tacc.exporting.results import Exported
from tacc.exporting.weighted_rows import ROW_WEIGHTS

if TYPE_CHECKING:
    from tacc.accelerating.lengths import Lengths

IGNORED = -100  # a label that torch.nn.functional.cross_entropy does not count


def as_batch(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, by_position: bool) -> Any:
    """The batch of a call: a dict of arguments by name, or with `by_position` the tuple that was given.

    One argument that is a dict, a tuple or a list is the batch itself.
    """
    if len(args) == 1 and not kwargs and isinstance(args[0], (Mapping, tuple, list)):
        args, kwargs = ((), dict(args[0])) if isinstance(args[0], Mapping) else (tuple(args[0]), {})
    if args and by_position:
        if kwargs:
            raise InputError(f"arguments by position and by name ({', '.join(kwargs)}) are mixed; a batch is a tuple or a dict")
        return tuple(_tensor(a) for a in args)
    if args:
        try:
            kwargs = dict(_signature(module).bind_partial(*args, **kwargs).arguments)
        except TypeError as error:
            raise InputError(f"the model's forward does not take this batch: {error}; with loss= what the model does not take goes to the loss") from error
    return {name: _tensor(value) for name, value in kwargs.items() if value is not None}


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


_SIGNATURES: weakref.WeakKeyDictionary[torch.nn.Module, inspect.Signature] = weakref.WeakKeyDictionary()


def _signature(module: torch.nn.Module) -> inspect.Signature:
    if module not in _SIGNATURES:
        _SIGNATURES[module] = inspect.signature(module.forward)
    return _SIGNATURES[module]


def names(module: torch.nn.Module, name: str) -> bool:
    """Whether the model's forward has an argument of that name, not one for all names."""
    return name in _signature(module).parameters


def takes(module: torch.nn.Module, name: str) -> bool:
    """Whether the model's forward has the argument."""
    parameters = _signature(module).parameters.values()
    return any(p.kind is p.VAR_KEYWORD or p.name == name for p in parameters)


class Batches:
    """Makes arrays of batches that are as the one that the model was exported with.

    Args:
        description: Of the exported graph.
        example: The batch that it was exported with.
        optional: Inputs on which nothing that the model returns depends: a batch without labels has outputs.
        weights: Of these, those that samples are weighted by: what fills a batch up has zeros.
        fills: What inputs have where a sample does not count, if somebody knows better than `description.targets`.
        samples_meet: As of `description`, if somebody knows better.
        lengths: Fills up shorter samples; None: all samples are as long as those of the example.
    """

    def __init__(
        self, description: Exported, example: Any, optional: set[str], weights: frozenset[str] = frozenset(), *,
        fills: Mapping[str, int] | None = None, samples_meet: bool | None = None, lengths: Lengths | None = None,
    ):
        self._lengths = lengths
        self._inputs = {given.path: given for given in description.inputs if given.name != ROW_WEIGHTS}
        self._own = {path for path, given in self._inputs.items() if given.name in weights}  # Not of the caller's batch.
        self._weighs_rows = len(self._inputs) < len(description.inputs)
        self._optional = optional
        ignorable = (given for given in description.inputs if given.name in optional and given.name in description.targets)
        ignored = {given.name: IGNORED if given.limit is None else given.ignored for given in ignorable}
        by_name = dict.fromkeys(weights, 0) or fills or {name: value for name, value in ignored.items() if value is not None}
        self._fills = {path: by_name[given.name] for path, given in self._inputs.items() if given.name in by_name}
        self._any_length = lengths is None and description.any_length
        self._samples_meet = description.samples_meet if samples_meet is None else samples_meet
        self._has_batch_norm = "batch_moments" in description.coverage.ops
        leaves = leaves_of(example)
        self._constants = {path: leaf for path, leaf in leaves.items() if not isinstance(leaf, torch.Tensor)}
        self._unread = {path for path, leaf in leaves.items() if isinstance(leaf, torch.Tensor)} - set(self._inputs)
        shapes = {path: tuple(leaves[path].shape) for path in self._inputs if path in leaves}
        self._shapes = shapes
        self._zeros = {path: np.zeros(shapes[path], _numpy(leaves[path]).dtype) for path in self._inputs if path in leaves}
        self._of_samples = {path for path, given in self._inputs.items() if given.dims and given.dims[0] == "B"}
        self.size = next((shapes[path][0] for path in self._of_samples), 1)
        """Samples of a batch. 1, if no input has samples: the model takes no other number of them than the first batch has."""

    def arrays(self, batch: Any, *, trains: bool) -> tuple[dict[str, np.ndarray[Any, Any]], int, bool]:
        """The arrays by input, how many samples they have, and whether the loss of them is right.

        A batch with fewer samples is filled up, with targets that no loss counts, or weights of 0; where the loss has none such, it has no loss.
        """
        leaves = leaves_of(batch)
        self._check(leaves, trains)
        length = 0 if self._lengths is None else self._lengths.of(leaves)
        rows = {int(leaves[path].shape[0]) for path in self._of_samples if path in leaves and leaves[path].dim() > 0}
        count = next(iter(rows), self.size)
        if len(rows) > 1:
            raise InputError(f"the batch has tensors of {', '.join(map(str, sorted(rows)))} samples; dim 0 is the samples of all of them")
        if count > self.size:
            raise InputError(
                f"the batch has {count} samples; the first one had {self.size}, and none may have more: begin with the largest, as by model.start(batch)"
            )
        if count == 0:
            raise InputError("the batch has no samples; leave it out")
        given = {path: self._array(path, leaves[path]) for path in self._inputs if path in leaves}
        has_loss = len(given) == len(self._inputs)
        if count < self.size:
            if self._samples_meet or (trains and self.why_not_fewer):
                raise InputError(f"the batch has {count} samples; the first one had {self.size}. Give the loader drop_last=True: {self.why_not_fewer}")
            has_loss = has_loss and (self._weighs_rows or bool(self._fills))
            given = {path: self._filled(a, self._fills.get(path)) if path in self._of_samples else a for path, a in given.items()}
        if self._lengths is not None:
            given = self._lengths.filled(given, batch, length, trains=trains)
        arrays = {self._inputs[path].name: given[path] if path in given else self._absent(path, length) for path in self._inputs}
        if self._weighs_rows:
            arrays[ROW_WEIGHTS] = (np.arange(self.size) < count).astype(np.float32)
        return arrays, count, has_loss

    @property
    def has_samples(self) -> bool:
        """Whether the number of samples is open."""
        return bool(self._of_samples)

    @property
    def can_stage_ahead(self) -> bool:
        """Whether the arrays of a batch are made without the model, so that another thread may."""
        return self._lengths is None or self._lengths.is_checked

    @property
    def why_not_fewer(self) -> str:
        """Why a batch of a training cannot have fewer samples than the first one; empty: it can."""
        if self._samples_meet or self._has_batch_norm:
            return "the model's samples depend on each other, so what fills a batch up would change the others"
        return "" if self._fills or self._weighs_rows else "what fills a batch up would count in the loss"

    def length_of(self, batch: Any) -> int:
        """Tokens of a sample of the batch; 0: all have as many."""
        return 0 if self._lengths is None else self._lengths.of(leaves_of(batch))

    def _absent(self, path: tuple[Any, ...], length: int) -> np.ndarray[Any, Any]:
        zeros = self._zeros[path]
        if self._lengths is None or path not in self._lengths.dims:
            return zeros
        shape = list(zeros.shape)
        shape[self._lengths.dims[path]] = self._lengths.bucket(length)
        return np.zeros(shape, zeros.dtype)

    def _check(self, leaves: dict[tuple[Any, ...], Any], trains: bool) -> None:
        if trains and torch.is_grad_enabled():
            for path, leaf in leaves.items():
                if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                    raise InputError(
                        f"{_name(path)} of the batch requires a gradient, which the ranks do not send back, so that what has made it would not be trained: put "
                        "that into the accelerated module, or give the batch .detach(). The networks of a GAN train each other so, and cannot be apart"
                    )
        known = set(self._inputs) | set(self._constants) | self._unread
        if unknown := [path for path in leaves if path not in known]:
            had = ", ".join(_name(path) for path in sorted(known, key=str) if path not in self._own)
            raise InputError(
                f"the batch has {_name(unknown[0])}, which the first one had not; it had {had}. The first batch says what the job computes: begin with one that "
                f"has {_name(unknown[0])} too, before others without it, as by model.start(batch)"
            )
        needed = [path for path, given in self._inputs.items() if trains or given.name not in self._optional]
        if missing := [path for path in needed if path not in leaves and path in self._shapes]:
            raise InputError(f"the batch has no {_name(missing[0])}; it has {', '.join(map(_name, leaves)) or 'nothing'}")
        for path, constant in self._constants.items():
            if path in leaves and not _same(leaves[path], constant):
                raise InputError(f"{_name(path)} is {leaves[path]!r}; the model was exported with {constant!r}, and it stays so")
        for path in self._inputs:
            if path in leaves and not isinstance(leaves[path], torch.Tensor):
                raise InputError(f"{_name(path)} is a {type(leaves[path]).__name__}; wanted a tensor or an array")

    def _array(self, path: tuple[Any, ...], tensor: torch.Tensor) -> np.ndarray[Any, Any]:
        wanted: list[int | None] = list(self._shapes[path])
        if path in self._of_samples:
            wanted[0] = None
        if self._lengths is not None and path in self._lengths.dims:
            wanted[self._lengths.dims[path]] = None
        if tensor.dim() != len(wanted) or any(n not in (None, size) for n, size in zip(wanted, tensor.shape)):
            said = ["any" if n is None else str(n) for n in wanted]
            what = self._other_length(path, tensor, wanted)
            raise InputError(f"{_name(path)} has the shape {list(tensor.shape)}; wanted [{', '.join(said)}], as in the first batch{what}")
        kind = self._zeros[path].dtype
        if tensor.is_floating_point() != (kind.kind == "f"):
            raise InputError(f"{_name(path)} is of {tensor.dtype}; in the first batch it was of {kind}")
        array = _numpy(tensor)
        if array.dtype.kind == "f":
            with np.errstate(invalid="ignore", over="ignore"):  # Infinities are the loop's: the update is skipped.
                total = array.sum(dtype=np.float64)
            if np.isnan(total) and (is_nan := np.isnan(array)).any():  # A sum is quicker than looking at each.
                places = int(is_nan.sum())
                where = f", first in sample {int(is_nan.nonzero()[0][0])} of the batch" if path in self._of_samples else ""
                raise InputError(
                    f"{_name(path)} is NaN (not a number) in {places} place{'s' if places > 1 else ''}{where}: leave such samples out, or put a number there "
                    "(torch.nan_to_num)"
                )
        return array

    def _other_length(self, path: tuple[Any, ...], tensor: torch.Tensor, wanted: list[int | None]) -> str:
        """What to do about samples of another length, if that is all; else nothing."""
        dims = self._inputs[path].dims
        if not self._any_length or tensor.dim() != len(wanted) or "S" not in dims:
            return ""
        if any(n not in (None, size) and dim != "S" for n, size, dim in zip(wanted, tensor.shape, dims)):
            return ""
        return "; samples of several lengths need buckets= of tacc.accelerate, or a loader that pads all of them to one length"

    def _filled(self, array: np.ndarray[Any, Any], value: int | None) -> np.ndarray[Any, Any]:
        more = self.size - len(array)
        fill = np.repeat(array[-1:], more, axis=0) if value is None else np.full((more, *array.shape[1:]), value, array.dtype)
        return np.concatenate([array, fill])


def leaves_of(batch: Any) -> dict[tuple[Any, ...], Any]:
    """What a batch has, by the path there."""
    if type(batch) is dict and all(isinstance(leaf, torch.Tensor) for leaf in batch.values()):
        return {(name,): leaf for name, leaf in batch.items()}  # As most are; the same, sooner.
    return {tuple(_key(k) for k in path): leaf for path, leaf in pytree.tree_flatten_with_path(batch)[0]}


def _key(key: Any) -> Any:
    return key.key if hasattr(key, "key") else key.idx if hasattr(key, "idx") else str(key)


def _name(path: tuple[Any, ...]) -> str:
    return repr(".".join(map(str, path)))


def _same(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:  # Of objects that compare by element.
        return a is b


def _numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    if tensor.device.type != "cpu":
        raise InputError(f"a tensor of the batch is on {tensor.device}; batches go to the ranks from the host's memory: leave them on the CPU")
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    array: np.ndarray[Any, Any] = tensor.detach().numpy()
    return array
