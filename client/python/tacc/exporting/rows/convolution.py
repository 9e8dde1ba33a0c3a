"""Convolutions whose windows do not overlap, as those that cut pictures into patches: products."""

from __future__ import annotations

import string
from typing import Any

from tacc.exporting.graph_text import Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.table import NoRowError, row


@row("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default")
def conv(
    g: Lowering, x: Value, weight: Value, bias: Value | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Value:
    rank = weight.rank - 2
    stride, padding, dilation = (_each(v, rank) for v in (stride, padding, dilation))
    return convolution(g, x, weight, bias, stride, padding, dilation, False, [0] * rank, groups)


def _each(value: Any, rank: int) -> list[Any]:
    if not isinstance(value, list):
        return [value] * rank
    return value if len(value) == rank else value * rank


@row("aten.convolution.default")
def convolution(
    g: Lowering,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Value:
    kernel = list(weight.dims[2:])
    extents = x.dims[2:]
    is_patches = stride == kernel and not any(padding) and all(d == 1 for d in dilation) and groups == 1 and not transposed
    if not is_patches or x.rank != weight.rank or any(not isinstance(e, int) or e % k for e, k in zip(extents, kernel)):
        raise NoRowError("its windows overlap, or are padded, dilated, grouped or transposed")
    patches = [size for e, k in zip(extents, kernel) for size in (e // k, k)]
    outer, inner = string.ascii_lowercase[: len(kernel)], string.ascii_lowercase[len(kernel) : 2 * len(kernel)]
    window = "".join(o + i for o, i in zip(outer, inner))
    y = g.einsum(f"yz{window},xz{inner}->yx{outer}", g.reshape(x, [*x.dims[:2], *patches]), weight)
    return y if bias is None else g.binary("add", y, g.reshape(bias, [*bias.dims, *(1 for _ in kernel)]))
