"""Convolutions. Those whose windows do not overlap, as those that cut pictures into patches, are products."""

from __future__ import annotations

import string
from typing import Any

from tacc.exporting.graph_text import Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.table import NoRowError, row


def each(value: Any, rank: int) -> list[Any]:
    """An argument with a number for each spatial dim, as PyTorch takes one for all of them."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values if len(values) == rank else values * rank


def require_samples(x: Value, rank: int) -> None:
    if x.rank != rank:
        raise NoRowError(f"of an image of {x.rank} dims; give it a dim of samples")


@row("aten.conv1d", "aten.conv2d", "aten.conv3d")
def conv(
    g: Lowering, x: Value, weight: Value, bias: Value | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Value:
    """`padding` may be a word: of "same" the result has the dims of x."""
    rank = weight.rank - 2
    require_samples(x, weight.rank)
    stride, dilation = each(stride, rank), each(dilation, rank)
    if padding == "same":
        padding, x = _same(g, x, [d * (k - 1) for d, k in zip(dilation, weight.dims[2:])])
    elif padding == "valid":
        padding = 0
    return convolution(g, x, weight, bias, stride, each(padding, rank), dilation, False, [0] * rank, groups)


def _same(g: Lowering, x: Value, totals: list[int]) -> tuple[list[int], Value]:
    """Half of each total as padding, and x with the element that is over where a total is odd."""
    for dim, total in enumerate(totals, start=2):
        if total % 2:
            x = g.pad(x, dim, 0, 1)
    return [total // 2 for total in totals], x


@row("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def conv_transpose(
    g: Lowering,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Value:
    rank = weight.rank - 2
    require_samples(x, weight.rank)
    stride, padding, output_padding, dilation = (each(v, rank) for v in (stride, padding, output_padding, dilation))
    return convolution(g, x, weight, bias, stride, padding, dilation, True, output_padding, groups)


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
    require_samples(x, weight.rank)
    x, weight = g.cast(x, "f32"), g.cast(weight, "f32")
    operands = [v for v in (x, weight, bias) if v is not None]
    window: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if transposed:  # output_padding says which of the possible sizes the result has
        return g.one("convolution_transposed", operands, "f32", g.dims, size=g.dims[2:], **window)
    if _are_patches(x, weight, window):
        return _product(g, x, weight, bias)
    return g.one("convolution", operands, "f32", g.dims, **window)


def _are_patches(x: Value, weight: Value, window: dict[str, Any]) -> bool:
    """Whether windows of several elements cover x and do not overlap."""
    kernel = list(weight.dims[2:])
    is_whole = all(isinstance(e, int) and e % k == 0 for e, k in zip(x.dims[2:], kernel))
    is_plain = not any(window["padding"]) and all(d == 1 for d in window["dilation"]) and window["groups"] == 1
    return is_whole and is_plain and window["stride"] == kernel and any(k > 1 for k in kernel)


def _product(g: Lowering, x: Value, weight: Value, bias: Value | None) -> Value:
    kernel = list(weight.dims[2:])
    patches = [size for e, k in zip(x.dims[2:], kernel) for size in (e // k, k)]
    outer, inner = string.ascii_lowercase[: len(kernel)], string.ascii_lowercase[len(kernel) : 2 * len(kernel)]
    window = "".join(o + i for o, i in zip(outer, inner))
    y = g.einsum(f"yz{window},xz{inner}->yx{outer}", g.reshape(x, [*x.dims[:2], *patches]), weight)
    return y if bias is None else g.binary("add", y, g.reshape(bias, [*bias.dims, *(1 for _ in kernel)]))
