"""What a mask of attention lets a query see. It is found by evaluating the mask, however a model spells it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Node

from tacc.exporting.extents import InexpressibleError
from tacc.exporting.patterns.constant_values import ConstantValues

_MAX_WINDOW = 8192  # the longest mask that is evaluated has a few keys more
HIDDEN = -1e4  # a number at or below which a mask that is added hides a key


@dataclass(frozen=True)
class Mask:
    """A query sees the key if all of these say so.

    Attributes:
        causal: Keys at its own position and before.
        window: Of these, as many as that, its own included; 0: all.
        keys: An input [B,T] that is not zero where the key is there; None: all keys are.
    """

    causal: bool = False
    window: int = 0
    keys: Node | None = None


def classify(node: Node, values: ConstantValues) -> Mask | None:
    """The mask of a node [...,S,T], bool (true: seen) or a number that is added to the scores. None: something else."""
    data = values.data_of(node)
    if len(data) > 1:
        return None
    keys = next(iter(data), None)
    if keys is not None and (keys.meta["val"].dim() != 2 or keys.meta["val"].is_floating_point() and not _is_mask_input(keys)):
        return None
    try:
        window = _largest_number(node)
        lengths = (5, 8) if window < 5 else (5, window + 3)
        if window > _MAX_WINDOW:
            return None
        found = [_classify_for(node, keys, values, batch, length) for batch, length in zip((2, 3), lengths)]
    except (InexpressibleError, NotImplementedError, RuntimeError, IndexError):
        return None
    if found[0] is None or found[1] is None:
        return None
    # A short sequence does not show a window.
    return found[1] if found[0].causal == found[1].causal and found[0].window in (0, found[1].window) else None


def _is_mask_input(node: Node) -> bool:
    return "mask" in node.name


def _largest_number(node: Node) -> int:
    """The largest number in the mask's computation, which may be a window. Ends of slices and the like are none."""
    largest, seen, stack = 0, set(), [node]
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if any(part in str(n.target) for part in ("le.", "lt.", "ge.", "gt.", "sub.", "add.", "rsub.", "tril", "triu")):
            numbers = [a for a in (*n.args, *n.kwargs.values()) if isinstance(a, int) and not isinstance(a, bool)]
            largest = max([largest, *(abs(a) for a in numbers)])
        stack += n.all_input_nodes
    return largest


def _classify_for(node: Node, keys: Node | None, values: ConstantValues, batch: int, length: int) -> Mask | None:
    shape = values.shape(node, batch, length)
    if len(shape) < 2:
        return None
    queries, num_keys = shape[-2:]
    there = None
    if keys is not None:
        key_shape = values.shape(keys, batch, length)
        if key_shape[1] != num_keys:
            return None
        # Each key is there in some sample. The first is in all: no query sees nothing, which some models treat in a way of its own.
        sample, key = torch.arange(key_shape[0])[:, None], torch.arange(key_shape[1])[None, :]
        there = (key % key_shape[0] != sample) | (key == 0)
        mask = values.evaluate(node, batch, length, {keys: there.to(keys.meta["val"].dtype)})
    else:
        mask = values.evaluate(node, batch, length)
    seen = _seen(mask)
    if seen is None:
        return None
    base = _base(seen, there)
    if base is None:
        return None
    i, j = torch.arange(queries)[:, None], torch.arange(num_keys)[None, :]
    if bool(base.all()):
        return Mask(keys=keys)
    if queries != num_keys:
        return None
    window = int(base[-1].sum())
    for candidate, expected in ((Mask(True, 0, keys), j <= i), (Mask(True, window, keys), (j <= i) & (j > i - window))):
        if torch.equal(base, expected):
            return candidate
    return None


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
    if seen.dim() != 4 or seen.shape[0] != there.shape[0] or seen.shape[1] != 1:
        return None
    key_there = there[:, None, :].expand(seen.shape[0], *seen.shape[-2:])
    found = seen[:, 0]
    if bool((found & ~key_there).any()):
        return None
    # Where the key is there, all samples must agree; a key that is in no sample is taken from a causal neighbour below.
    base = (found | ~key_there).all(0)
    known = key_there.any(0)
    if not bool((found == (base & key_there)).all()) or not bool(known.all()):
        return None
    return base


__all__ = ["HIDDEN", "Mask", "classify"]
