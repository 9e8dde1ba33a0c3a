"""What the ranks of a session answer: parts of tensors, put together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Imported when used, so that the names are there without it.
    import numpy as np

Answer = tuple[dict[str, Any], bytearray]

# Of the ranks' inputs and outputs. numpy has no bfloat16: its bits.
DTYPES = {"bool": "?", "i32": "<i4", "i64": "<i8", "bf16": "<u2", "f16": "<f2", "f32": "<f4", "f64": "<f8"}


def number(answer: dict[str, Any], name: str) -> float:
    """A field of an answer. JSON has no numbers that are none."""
    value = answer.get(name)
    return math.nan if value is None else float(value)


def outputs_of(answers: list[Answer], micro_batch_size: int) -> dict[str, np.ndarray[Any, Any]]:
    """What the model returns, by name. What has samples as dim 0 has those of all micro-batches."""
    import numpy as np

    whole: dict[str, np.ndarray[Any, Any]] = {}
    for answer, payload in answers:
        at = 0
        for part in answer.get("outputs", []):
            ranges = [slice(begin, end) for begin, end in part["ranges"]]
            dtype, dims = np.dtype(DTYPES[part["dtype"]]), list(part["dims"])
            shape = [r.stop - r.start for r in ranges]
            values = np.frombuffer(payload, dtype, math.prod(shape), at).reshape(shape)
            at += values.nbytes
            if dims and dims[0] == micro_batch_size:  # Those of a micro-batch follow those of the one before.
                first = part["micro_batch"] * dims[0]
                ranges[0] = slice(first + ranges[0].start, first + ranges[0].stop)
                dims[0] *= answer["micro_batches"]
            if part["name"] not in whole:
                whole[part["name"]] = np.empty(dims, dtype)
            whole[part["name"]][tuple(ranges)] = values
    return whole


def states_of(answers: list[Answer]) -> dict[str, np.ndarray[Any, Any]]:
    """The states of a `read`, by name."""
    import numpy as np

    whole: dict[str, np.ndarray[Any, Any]] = {}
    for answer, payload in answers:
        at = 0
        for part in answer["parts"]:
            dtype, shape, merged = np.dtype(DTYPES[part["dtype"].lower()]), part["shape"], part["merged_dims"]
            values = np.frombuffer(payload, dtype, math.prod(part["extent"]), at).reshape(part["extent"])
            at += values.nbytes
            target = whole.setdefault(part["name"], np.empty(shape, dtype))
            # Shards may be cut along the first dims taken as one.
            seen = target.reshape([math.prod(shape[:merged]), *shape[merged:]]) if shape else target
            seen[tuple(slice(o, o + n) for o, n in zip(part["offset"], part["extent"]))] = values
    return whole
