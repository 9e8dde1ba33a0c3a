"""What a mask of attention lets a query see. It is found by evaluating the mask, however a model spells it."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

import torch
from torch.fx import Node

from tacc.exporting.extents import InexpressibleError
from tacc.exporting.patterns.constant_values import MAX_LENGTH, ConstantValues

_LENGTHS = (5, 9, 24, 100, 400)  # tokens; the longer ones show blocks, and what is near
_MANY_KEYS = 1024  # of masks with more only two samples are evaluated
HIDDEN = -1e4  # a number at or below which a mask that is added hides a key
OUTWEIGHS = -1e7  # a number at or below which nothing is left of a score in f32 that it is added to
_NO_KEY = (0, 1, -1, -100, 2)  # numbers of an input that say that there is no key, the commonest first
_MAX_NUMBERS = 16  # of a mask's computation that are tried as such


@dataclass(frozen=True)
class Mask:
    """A query sees the key if all of these say so.

    Attributes:
        causal: Keys at its own position and before.
        window: Of these, as many as that, its own included; 0: all.
        keys: An input [B,T] that is not `no_key` where the key is there; None: all keys are.
        no_key: A number; of bool 0 or 1.
        is_finite: A number is added that is not -inf: a query that sees nothing has not the result 0.
        is_weak: Scores keep what they say when that number is added: a query that sees nothing has the result of one that sees all.
    """

    causal: bool = False
    window: int = 0
    keys: Node | None = None
    no_key: int = 0
    is_finite: bool = False
    is_weak: bool = False


def classify(node: Node, rank: int, values: ConstantValues) -> Mask | None:
    """The mask of a node, bool (true: seen) or a number that is added to the scores, of `rank` dims [...,S,T]. None: something else."""
    data = values.data_of(node)
    if len(data) > 1:
        return None
    keys = next(iter(data), None)
    if keys is None:
        return _classify(node, rank, None, 0, values)
    if keys.op != "placeholder" or keys.meta["val"].dim() != 2 or not values.is_batch(keys):
        return None
    no_keys = (0, 1) if keys.meta["val"].dtype == torch.bool else (0,) if keys.meta["val"].is_floating_point() else _numbers(node, values)
    return next((found for no_key in no_keys if (found := _classify(node, rank, keys, no_key, values)) is not None), None)


def _numbers(node: Node, values: ConstantValues) -> list[int]:
    """Those that an input of whole numbers may be compared with."""
    own = [int(x) for x in values.numbers(node) if x == int(x)]
    return list(dict.fromkeys([*_NO_KEY, *own]))[:_MAX_NUMBERS]


def _classify(node: Node, rank: int, keys: Node | None, no_key: int, values: ConstantValues) -> Mask | None:
    found: dict[int, Mask | None] = {}  # by the length

    def evaluate(length: int) -> bool:
        """Whether it could be evaluated, which a table of positions may end before."""
        with contextlib.suppress(RuntimeError, IndexError):
            found[length] = _classify_for(node, rank, keys, no_key, values, length)
        return length in found

    try:
        lengths = values.revealing(node)
        if any(n > MAX_LENGTH for n in lengths.last) or not (evaluate(_LENGTHS[0]) and evaluate(_LENGTHS[1])):
            return None
        for length in (*_LENGTHS[2:], *lengths.behind):
            if None in found.values():
                return None
            evaluate(length)
        if lengths.last and not any(map(evaluate, lengths.last)):
            return None
    except (InexpressibleError, NotImplementedError):
        return None
    last = found[max(found)]
    # A short sequence does not show a window.
    if last is None or any(one is None or one.causal != last.causal or one.window not in (0, last.window) for one in found.values()):
        return None
    return last


def _classify_for(node: Node, rank: int, keys: Node | None, no_key: int, values: ConstantValues, length: int) -> Mask | None:
    batch = 2 if length > _MANY_KEYS else 8
    shape = values.shape(node, batch, length)
    if len(shape) < 2:
        return None
    queries, num_keys = shape[-2:]
    if keys is None:
        return _of(values.evaluate(node, batch, length), None, None, rank, (queries, num_keys), keys, no_key)
    own_batch, own_keys = values.shape(keys, batch, length)
    if own_keys != num_keys:
        return None
    mask, base = None, None
    for first in range(0, 8 if length <= _MANY_KEYS else 1, own_batch):
        there = _there(own_batch, num_keys, first)
        evaluated = values.evaluate(node, batch, length, {keys: _given(keys, there, no_key)})
        if base is None:  # Of the first samples one has all keys.
            seen = _seen(evaluated)
            base = None if seen is None else _base(seen, there, rank)
        found = None if base is None else _of(evaluated, there, base, rank, (queries, num_keys), keys, no_key)
        if found is None or (length <= _LENGTHS[2] and not _means_all_others(node, keys, values, (batch, length), there, no_key)):
            return None
        mask = mask or found
    return mask


def _of(mask: torch.Tensor, there: torch.Tensor | None, base: torch.Tensor | None, rank: int, size: tuple[int, int], keys: Node | None, no_key: int) -> Mask | None:
    """What an evaluated mask is, if `there` says which keys are there, and a sample with all keys sees `base` (None: it is found out)."""
    seen = _seen(mask)
    if seen is None:
        return None
    if base is None:
        base = _base(seen, there, rank)
    elif not _is_base(base, _by_samples(seen, there, rank), there):
        return None
    if base is None:
        return None
    hidden = mask[~seen] if mask.dtype != torch.bool else torch.empty(0)
    is_finite, is_weak = bool((hidden > -math.inf).any()), bool((hidden > OUTWEIGHS).any())
    queries, num_keys = size
    if bool(base.all()):
        return Mask(False, 0, keys, no_key, is_finite, is_weak)
    if queries != num_keys:
        return None
    i, j = torch.arange(queries)[:, None], torch.arange(num_keys)[None, :]
    window = int(base[-1].sum())
    for of_window, expected in ((0, j <= i), (window, (j <= i) & (j > i - window))):
        if torch.equal(base, expected):
            return Mask(True, of_window, keys, no_key, is_finite, is_weak)
    return None


def _there(batch: int, num_keys: int, first: int) -> torch.Tensor:
    """[B,T], where the keys are of samples of all kinds, from that number on: whole, without some, empty, padded on the left, on the right, with holes."""
    key = torch.arange(num_keys)
    half = num_keys // 2
    kinds = [key >= 0, key % 3 != 0, key < 0, key >= half, key < half, key % 3 != 1, key % 3 != 2, key == num_keys - 1]
    return torch.stack([kinds[(first + i) % len(kinds)] for i in range(batch)])


def _given(keys: Node, there: torch.Tensor, no_key: int) -> torch.Tensor:
    dtype = keys.meta["val"].dtype
    if dtype == torch.bool:
        return there if no_key == 0 else ~there
    return torch.where(there, 0 if no_key == 1 else 1, no_key).to(dtype)


def _means_all_others(node: Node, keys: Node, values: ConstantValues, size: tuple[int, int], there: torch.Tensor, no_key: int) -> bool:
    """Whether keys are there by any number but one. What is computed by a product with 0 or 1, and added, is no mask of other numbers; they are not tried."""
    dtype = keys.meta["val"].dtype
    if dtype == torch.bool:
        return True
    if dtype.is_floating_point:  # A part of a key is none in the op.
        tried = [0.5, 0.25, 1.0, 0.01, -1.0, 100.0, *(x + d for x in values.numbers(node)[:_MAX_NUMBERS] for d in (-0.5, 0.0, 0.5))]
    else:
        own = [int(x) for x in values.numbers(node)[:_MAX_NUMBERS]]
        tried = [2, 3, -1, 0, 1, -100, 1000, *(x + d for x in own for d in (-1, 0, 1))]
    tried = [x for x in dict.fromkeys(tried) if x != no_key and (dtype.is_signed or x >= 0)]
    is_added, length = node.meta["val"].dtype != torch.bool, there.shape[1]
    expected = _seen(values.evaluate(node, *size, {keys: _given(keys, there, no_key)}))
    for first in range(0, len(tried), length):
        numbers = torch.tensor((tried[first:] + tried * length)[:length])
        given = torch.where(there, numbers, torch.tensor(no_key, dtype=numbers.dtype)).to(dtype)
        mask = values.evaluate(node, *size, {keys: given})
        if is_added and not dtype.is_floating_point and bool(((mask != 0) & (mask > HIDDEN)).any()):
            return no_key == 0
        found = _seen(mask)
        if found is None or expected is None or not torch.equal(found, expected):
            return False
    return True


def _seen(mask: torch.Tensor) -> torch.Tensor | None:
    if mask.dtype == torch.bool:
        return mask
    hidden = mask <= HIDDEN
    return None if bool(((mask != 0) & ~hidden).any()) else ~hidden


def _by_samples(seen: torch.Tensor, there: torch.Tensor | None, rank: int) -> torch.Tensor | None:
    """[B,H,S,T], 1 where it is the same for all. Of scores of three dims samples and heads may be one, of five heads are two. None: not of samples."""
    if rank == 5:
        return seen.flatten(1, 2) if seen.dim() == 5 else None
    if there is not None and seen.dim() == 3 and rank == 3 and seen.shape[0] % there.shape[0] == 0:
        return seen.unflatten(0, (there.shape[0], -1))
    return seen


def _is_base(base: torch.Tensor, seen: torch.Tensor | None, there: torch.Tensor | None) -> bool:
    if there is None or seen is None or seen.dim() != 4 or seen.shape[0] != there.shape[0]:
        return False
    return bool((seen == (base & there[:, None, None, :])).all())


def _base(seen: torch.Tensor, there: torch.Tensor | None, rank: int) -> torch.Tensor | None:
    """The mask [S,T] that is the same for all samples and heads, once the keys that are not there are left out."""
    if there is None:
        base = seen.reshape(-1, *seen.shape[-2:])
        return base[0] if bool((base == base[0]).all()) else None
    by_samples = _by_samples(seen, there, rank)
    if by_samples is None or by_samples.dim() != 4:
        return None
    base = by_samples[0, 0]  # of a sample that has all keys
    return base if _is_base(base, by_samples, there) else None


__all__ = ["HIDDEN", "OUTWEIGHS", "Mask", "classify"]
