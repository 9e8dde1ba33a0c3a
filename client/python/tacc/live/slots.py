"""Where the parts of a session's batches lie in memory: what each rank reads of each input, for each length that samples may have."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacc.errors import InputError
from tacc.live.answers import DTYPES

if TYPE_CHECKING:  # Imported when used, so that the names are there without it.
    import numpy as np

ALIGN = 64


@dataclass(frozen=True)
class SessionInput:
    """What a batch has under one name.

    Attributes:
        name: As in the model's graph.
        dtype: Of numpy; bfloat16 are their bits, as uint16.
        shape: Of a whole batch, of the longest samples; a micro-batch has `Session.micro_batch_size` samples in place of the first number.
        has_batch: Whether dim 0 are the samples. Otherwise it is the same for all.
        limit: Its whole numbers are 0 to below it, as the graph says; None: any.
        ignored: A number beside these that is allowed.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    has_batch: bool
    limit: int | None = None
    ignored: int | None = None


@dataclass
class Part:
    """What one rank reads of one input in one micro-batch, and where it lies in a slot."""

    name: str
    index: list[tuple[tuple[slice, ...], tuple[slice, ...]]]  # Of the part, of the micro-batch's array.
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Bucket:
    """Micro-batches whose samples have one length.

    Args:
        given: By rank: what it says of its inputs.
        global_batch_size: Samples of a step.
    """

    def __init__(self, given: Sequence[list[dict[str, Any]]], global_batch_size: int):
        import numpy as np

        self.inputs: dict[str, SessionInput] = {}
        for of_rank in given:
            for one in of_rank:
                rows = [global_batch_size, *one["dims"][1:]] if one["batch"] else one["dims"]
                self.inputs[one["name"]] = SessionInput(
                    one["name"], np.dtype(DTYPES[one["dtype"]]), tuple(rows), one["batch"], one.get("limit"), one.get("ignored")
                )
        self._given = given
        self.parts: list[list[list[Part]]] = []  # [rank][micro-batch][input of the rank]

    def place(self, num_micro_batches: int, shared: Placer, own: list[Placer]) -> None:
        """Gives each part its place: what is the same for all samples in `shared`, the rest in that of its micro-batch."""
        for of_rank in self._given:
            self.parts.append([])
            for m in range(num_micro_batches):
                parts = [_part(given, self.inputs[given["name"]]) for given in of_rank]
                for part, given in zip(parts, of_rank):
                    placer = own[m] if self.inputs[part.name].has_batch else shared
                    part.offset = placer.offset((part.name, json.dumps([given["ranges"], given.get("positions"), given["dims"]])), part.size)
                self.parts[-1].append(parts)

    def arrays(self, batch: Mapping[str, Any], rows: int) -> dict[str, np.ndarray[Any, Any]]:
        """The batch's arrays, of so many samples. InputError: it has others."""
        return {name: _array(batch, spec, rows) for name, spec in self.inputs.items()}

    def has_shapes_of(self, batch: Mapping[str, Any], rows: int) -> bool:
        """Whether the batch's arrays have the shapes of this length."""
        import numpy as np

        return all(name in batch and np.shape(batch[name]) == _wanted(spec, rows) for name, spec in self.inputs.items())


class Placer:
    """Puts parts one behind the other, each once."""

    def __init__(self) -> None:
        self._offsets: dict[Any, int] = {}
        self.size = 0

    def offset(self, key: Any, size: int) -> int:
        if key not in self._offsets:
            self._offsets[key] = self.size
            self.size += -(-size // ALIGN) * ALIGN
        return self._offsets[key]


class Slots:
    """How a step's batch lies in memory.

    Args:
        welcomes: What each rank said.
    """

    def __init__(self, welcomes: Sequence[dict[str, Any]]):
        first = welcomes[0]
        self.num_micro_batches, batch = first["num_micro_batches"], first["global_batch_size"]
        shorter = range(len(first.get("buckets", [])))
        self.buckets = [Bucket([w["inputs"] for w in welcomes], batch), *(Bucket([w["buckets"][i]["inputs"] for w in welcomes], batch) for i in shorter)]
        """The longest first."""
        self.lengths: list[int] = [first["seq_len"], *(b["seq_len"] for b in first["buckets"])] if shorter else []
        """Of each bucket; none: there is one, whatever its length."""
        shared = Placer()
        micro_batch = 0  # The memory of one, of whatever length.
        for bucket in self.buckets:
            own = [Placer() for _ in range(self.num_micro_batches)]
            bucket.place(self.num_micro_batches, shared, own)
            micro_batch = max(micro_batch, own[0].size)
        for bucket in self.buckets:
            for of_rank in bucket.parts:
                for m, parts in enumerate(of_rank):
                    for part in parts:
                        part.offset += shared.size + m * micro_batch if bucket.inputs[part.name].has_batch else 0
        self.size = max(shared.size + self.num_micro_batches * micro_batch, ALIGN)
        """Of a step's batch, in bytes."""

    def arrays(self, batch: Mapping[str, Any], rows: int) -> tuple[int, dict[str, np.ndarray[Any, Any]]]:
        """The bucket whose length the samples of the batch have, and its arrays. InputError: it has others."""
        for i, bucket in enumerate(self.buckets):
            if bucket.has_shapes_of(batch, rows):
                return i, bucket.arrays(batch, rows)
        try:
            return 0, self.buckets[0].arrays(batch, rows)
        except InputError as error:
            if not self.lengths:
                raise
            lengths = ", ".join(map(str, sorted(self.lengths)))
            raise InputError(f"{error}, or those of a shorter length: the job is compiled for samples of {lengths} tokens (data.client.buckets)") from error


def _part(given: dict[str, Any], spec: SessionInput) -> Part:
    ranges = [(begin, end) for begin, end in given["ranges"]]
    shape = tuple(end - begin for begin, end in ranges)
    whole = tuple(slice(begin, end) for begin, end in ranges)
    index = [(tuple(slice(None) for _ in whole), whole)]
    if "positions" in given:  # Dim 1 is not in its own order.
        index, at = [], 0
        for begin, end in given["positions"]:
            index.append(((slice(None), slice(at, at + end - begin)), (whole[0], slice(begin, end), *whole[2:])))
            at += end - begin
    return Part(spec.name, index, shape, spec.dtype, 0)


def check_numbers(name: str, array: np.ndarray[Any, Any], limit: int, ignored: int | None, *, has_batch: bool) -> None:
    """Of ids and labels, which the ranks would pass over where they are out of range. InputError: some are.

    Args:
        name: Of the input.
        array: What it has.
        limit: Its numbers are 0 to below it.
        ignored: A number beside these that is allowed.
        has_batch: Whether dim 0 are the samples.
    """
    if array.size == 0 or (array.min() >= 0 and array.max() < limit):
        return
    is_wrong = (array < 0) | (array >= limit)
    if ignored is not None:
        is_wrong &= array != ignored
    if is_wrong.any():
        others = "" if ignored is None else f", or {ignored} where nothing counts"
        raise InputError(
            f"{name!r} has {array[is_wrong][0]} in sample {int(is_wrong.nonzero()[0][0]) if has_batch else 0} of the batch, which is out of "
            f"range: the model takes 0 to {limit - 1}{others}"
        )


def _wanted(spec: SessionInput, rows: int) -> tuple[int, ...]:
    return (rows, *spec.shape[1:]) if spec.has_batch else spec.shape


def _array(batch: Mapping[str, Any], spec: SessionInput, rows: int) -> np.ndarray[Any, Any]:
    import numpy as np

    if spec.name not in batch:
        raise InputError(f"the batch has no {spec.name!r}; it has {', '.join(map(repr, batch)) or 'nothing'}")
    array = np.asarray(batch[spec.name])
    wanted = _wanted(spec, rows)
    if array.shape != wanted:
        raise InputError(f"{spec.name!r} has the shape {list(array.shape)}; wanted {list(wanted)}")
    if spec.limit is not None:
        check_numbers(spec.name, array, spec.limit, spec.ignored, has_batch=spec.has_batch)
    if array.dtype == spec.dtype or np.can_cast(array.dtype, spec.dtype, "safe"):
        return array
    if not np.can_cast(array.dtype, spec.dtype, "same_kind"):
        raise InputError(f"{spec.name!r} is of {array.dtype}; wanted {spec.dtype}")
    if spec.dtype.kind == "i" and array.size > 0:
        limits = np.iinfo(spec.dtype)
        if array.min() < limits.min or array.max() > limits.max:
            raise InputError(f"{spec.name!r} has numbers that {spec.dtype} does not hold")
    return array
