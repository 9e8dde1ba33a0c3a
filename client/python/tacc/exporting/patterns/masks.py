"""What a mask of attention lets a query see. It is found by evaluating the mask, however a model spells it."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

import torch
from torch.fx import Node

from tacc.exporting.extents import InexpressibleError
from tacc.exporting.patterns.constant_values import MAX_LENGTH, ConstantValues

_ROOM = 24  # tokens, among which two rules of few positions each show
_MANY_KEYS = 1024  # of masks with more only two samples are evaluated
HIDDEN = -1e4  # a number at or below which a mask that is added hides a key
_OUTWEIGHS = -1e7  # a number at or below which nothing is left of a score in f32 that it is added to


@dataclass(frozen=True)
class Mask:
    """A query sees the key if all of these say so.

    Attributes:
        causal: Keys at its own position and before.
        window: Of these, as many as that, its own included; 0: all.
        keys: An input [B,T] that is not zero where the key is there; None: all keys are.
        is_finite: A number is added that is not -inf: a query that sees nothing has not the result 0.
        is_weak: Scores keep what they say when that number is added: a query that sees nothing has the result of one that sees all.
    """

    causal: bool = False
    window: int = 0
    keys: Node | None = None
    is_finite: bool = False
    is_weak: bool = False


def classify(node: Node, values: ConstantValues) -> Mask | None:
    """The mask of a node [...,S,T], bool (true: seen) or a number that is added to the scores. None: something else."""
    data = values.data_of(node)
    if len(data) > 1:
        return None
    keys = next(iter(data), None)
    if keys is not None and keys.meta["val"].dim() != 2:
        return None
    try:
        found = [_classify_for(node, keys, values, length) for length in (5, 9)]
        with contextlib.suppress(RuntimeError, IndexError):  # A table of positions may end before.
            found.append(_classify_for(node, keys, values, _ROOM))
        if lengths := values.revealing(node):
            if lengths[1] > MAX_LENGTH:
                return None
            try:
                found.append(_classify_for(node, keys, values, lengths[0]))
            except (RuntimeError, IndexError):
                found.append(_classify_for(node, keys, values, lengths[1]))
    except (InexpressibleError, NotImplementedError, RuntimeError, IndexError):
        return None
    last = found[-1]
    # A short sequence does not show a window.
    if last is None or any(one is None or one.causal != last.causal or one.window not in (0, last.window) for one in found):
        return None
    return last


def _classify_for(node: Node, keys: Node | None, values: ConstantValues, length: int) -> Mask | None:
    batch = 2 if length > _MANY_KEYS else 8
    shape = values.shape(node, batch, length)
    if len(shape) < 2:
        return None
    queries, num_keys = shape[-2:]
    there = None
    if keys is not None:
        key_shape = values.shape(keys, batch, length)
        if key_shape[1] != num_keys:
            return None
        there = _there(*key_shape)
        mask = values.evaluate(node, batch, length, {keys: there.to(keys.meta["val"].dtype)})
    else:
        mask = values.evaluate(node, batch, length)
    seen = _seen(mask)
    if seen is None:
        return None
    base = _base(seen, there)
    if base is None:
        return None
    if keys is not None and there is not None and not _means_not_zero(node, keys, values, (batch, length), there, seen):
        return None
    hidden = mask[~seen] if mask.dtype != torch.bool else torch.empty(0)
    is_finite, is_weak = bool((hidden > -math.inf).any()), bool((hidden > _OUTWEIGHS).any())
    i, j = torch.arange(queries)[:, None], torch.arange(num_keys)[None, :]
    if bool(base.all()):
        return Mask(keys=keys, is_finite=is_finite, is_weak=is_weak)
    if queries != num_keys:
        return None
    window = int(base[-1].sum())
    for of_window, expected in ((0, j <= i), (window, (j <= i) & (j > i - window))):
        if torch.equal(base, expected):
            return Mask(True, of_window, keys, is_finite, is_weak)
    return None


def _there(batch: int, num_keys: int) -> torch.Tensor:
    """[B,T], where the keys are of samples of all kinds: whole, without the first, empty, padded on the left, on the right, with holes."""
    key = torch.arange(num_keys)
    half = num_keys // 2
    kinds = [key >= 0, key % 3 != 0, key < 0, key >= half, key < half, key % 3 != 1, key % 3 != 2, key == num_keys - 1]
    return torch.stack([kinds[i % len(kinds)] for i in range(batch)])


def _means_not_zero(node: Node, keys: Node, values: ConstantValues, size: tuple[int, int], there: torch.Tensor, seen: torch.Tensor) -> bool:
    """Whether keys are there by any number but 0. Numbers that no mask has may be added as whatever follows from them, if they hide no key."""
    dtype = keys.meta["val"].dtype
    if dtype == torch.bool:
        return True
    is_added = node.meta["val"].dtype != torch.bool
    if dtype.is_floating_point:  # A part of a key is none in the op.
        numbers = torch.tensor([0.5, 0.25, 1.0])
    else:
        numbers = torch.tensor([2, 3] if is_added or "mask" in keys.name else [2, 3, -1, 1, -100])
    if not dtype.is_signed:
        numbers = numbers.abs()
    given = there * numbers[torch.arange(there.shape[1]) % len(numbers)]
    mask = values.evaluate(node, *size, {keys: given.to(dtype)})
    found = _seen(torch.where(mask > -HIDDEN, 0.0, mask) if is_added else mask)
    return found is not None and torch.equal(found, seen)


def _seen(mask: torch.Tensor) -> torch.Tensor | None:
    if mask.dtype == torch.bool:
        return mask
    hidden = mask <= HIDDEN
    return None if bool(((mask != 0) & ~hidden).any()) else ~hidden


def _base(seen: torch.Tensor, there: torch.Tensor | None) -> torch.Tensor | None:
    """The mask [S,T] that is the same for all samples and heads, once the keys that are not there are left out."""
    if there is None:
        base = seen.reshape(-1, *seen.shape[-2:])
        return base[0] if bool((base == base[0]).all()) else None
    # Of samples and heads, 1 where it is the same for all, which may have been made one dim.
    if seen.dim() == 3 and seen.shape[0] % there.shape[0] == 0:
        seen = seen.unflatten(0, (there.shape[0], -1))
    if seen.dim() != 4 or seen.shape[0] != there.shape[0]:
        return None
    base = seen[0, 0]  # all keys are there
    return base if bool((seen == (base & there[:, None, None, :])).all()) else None


__all__ = ["HIDDEN", "Mask", "classify"]
