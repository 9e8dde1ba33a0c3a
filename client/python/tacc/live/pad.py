"""Lengths that the samples of a batch may have, and arrays filled up to the next of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tacc.errors import InputError

if TYPE_CHECKING:  # Imported when used, so that the names are there without it.
    import numpy as np

_SHORTEST = 32


def bucket_lengths(buckets: Sequence[int] | int) -> list[int]:
    """The lengths, ascending: as given, or the powers of two from 32 on below the longest, and that.

    Raises:
        InputError: They are none.
    """
    if isinstance(buckets, int) and not isinstance(buckets, bool):
        powers = [1 << i for i in range(_SHORTEST.bit_length() - 1, 27)]
        lengths = [*(p for p in powers if p < buckets), buckets]
    else:
        lengths = sorted(set(buckets)) if isinstance(buckets, Sequence) and not isinstance(buckets, str) else []
    if not lengths or any(not isinstance(length, int) or length < 2 for length in lengths):
        raise InputError(f"buckets={buckets!r}; wanted lengths of at least 2 tokens, as [128, 256, 512], or the longest one, as 512")
    return lengths


def next_length(lengths: Sequence[int], length: int) -> int:
    """The least of these lengths that holds so many tokens.

    Raises:
        InputError: None does.
    """
    found = next((one for one in sorted(lengths) if one >= length), None)
    if found is None:
        raise InputError(f"the batch has samples of {length} tokens; the job is compiled for {', '.join(map(str, sorted(lengths)))}, and none may be longer")
    return found


def fill(array: np.ndarray[Any, Any], length: int, value: float, dim: int = 1) -> np.ndarray[Any, Any]:
    """The array with so many positions in a dim, those behind its own with `value`."""
    import numpy as np

    widths = [(0, length - array.shape[dim] if d == dim else 0) for d in range(array.ndim)]
    return np.pad(array, widths, constant_values=value) if array.shape[dim] < length else array


def pad_batch(batch: Mapping[str, Any], fills: Mapping[str, float], lengths: Sequence[int]) -> dict[str, Any]:
    """The batch with the arrays or tensors that `fills` names filled up to the next length, along dim 1.

    Raises:
        InputError: They are longer than all, have several lengths, or one is not there.
    """
    if missing := [name for name in fills if name not in batch]:
        raise InputError(f"the batch has no {missing[0]!r}, which pad_value_dict names; it has {', '.join(map(repr, batch)) or 'nothing'}")
    if flat := [name for name in fills if len(batch[name].shape) < 2]:
        raise InputError(f"{flat[0]!r} has the shape {list(batch[flat[0]].shape)}; what fills it up is along dim 1, which it has not")
    found = {int(batch[name].shape[1]) for name in fills}
    if len(found) != 1:
        raise InputError(f"what pad_value_dict names has {', '.join(map(str, sorted(found))) or 'no'} positions in dim 1; wanted one length")
    length = next_length(lengths, found.pop())
    return {**batch, **{name: _filled(batch[name], length, value) for name, value in fills.items()}}


def _filled(values: Any, length: int, value: float) -> Any:
    if not hasattr(values, "detach"):
        return fill(values, length, value)
    import torch

    widths = [0, 0] * (values.dim() - 2) + [0, length - values.shape[1]]
    return torch.nn.functional.pad(values, widths, value=value)
