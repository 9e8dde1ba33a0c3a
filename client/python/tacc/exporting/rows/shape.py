"""Ops that move elements."""

from __future__ import annotations

from typing import Any

from tacc.exporting.extents import Extent
from tacc.exporting.graph_text import Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.table import NoRowError, row


@row("aten.view", "aten.reshape", "aten._unsafe_view", "aten.unsqueeze", "aten.squeeze", "aten.flatten", "aten.unflatten")
def view(g: Lowering, x: Value, *_: Any) -> Value:
    return g.reshape(x, g.dims)


@row("aten.permute.default")
def permute(g: Lowering, x: Value, perm: list[int]) -> Value:
    return g.transpose(x, perm)


@row("aten.transpose.int")
def transpose(g: Lowering, x: Value, a: int, b: int) -> Value:
    return g.swap(x, a % x.rank, b % x.rank)


@row("aten.t.default", "aten.numpy_T.default")
def t(g: Lowering, x: Value) -> Value:
    return g.transpose(x, list(range(x.rank))[::-1])


@row("aten.expand.default", "aten.expand_as.default")
def expand(g: Lowering, x: Value, *_: Any, **__: Any) -> Value:
    return g.broadcast(x, g.dims)


@row("aten.repeat.default")
def repeat(g: Lowering, x: Value, repeats: list[Extent]) -> Value:
    """Each dim of n becomes times x n, and then one."""
    dims = (1,) * (len(repeats) - x.rank) + x.dims
    apart = [d for n, size in zip(repeats, dims) for d in (n, size)]
    spread = g.broadcast(g.reshape(x, [d for size in dims for d in (1, size)]), apart)
    return g.reshape(spread, g.dims)


def _is_from_end(index: Extent) -> bool:
    return isinstance(index, int) and index < 0


@row("aten.slice.Tensor")
def slice_tensor(g: Lowering, x: Value, dim: int = 0, start: Extent | None = None, end: Extent | None = None, step: int = 1) -> Value:
    dim %= x.rank
    extent = x.dims[dim]
    start = 0 if start is None else extent + start if _is_from_end(start) else start
    if step != 1:
        return _every(g, x, dim, start, step)
    # What export says of the result is exact, where `end` may lie behind the last element.
    return g.slice(x, dim, start, start + g.dims[dim])


def _every(g: Lowering, x: Value, dim: int, start: Extent, step: int) -> Value:
    """Each step-th element of a dim that is cut into whole steps, from one of the first step on."""
    extent = x.dims[dim]
    if not isinstance(extent, int) or not isinstance(start, int) or extent % step or start >= step or g.dims[dim] != extent // step:
        raise NoRowError(f"a slice with step {step}")
    apart = g.reshape(x, [*x.dims[:dim], extent // step, step, *x.dims[dim + 1 :]])
    return g.reshape(g.slice(apart, dim + 1, start, start + 1), g.dims)


@row("aten.roll.default")
def roll(g: Lowering, x: Value, shifts: list[Extent], dims: list[int]) -> Value:
    if not dims:
        raise NoRowError("of all elements")
    for shift, dim in zip(shifts, (d % x.rank for d in dims)):
        extent = x.dims[dim]
        begin = extent - shift if not _is_from_end(shift) else -shift  # the element that becomes the first
        x = g.concat([g.slice(x, dim, begin, extent), g.slice(x, dim, 0, begin)], dim)
    return x


@row("aten.select.int")
def select(g: Lowering, x: Value, dim: int, index: Extent) -> Value:
    dim %= x.rank
    index = x.dims[dim] + index if _is_from_end(index) else index
    return g.reshape(g.slice(x, dim, index, index + 1), g.dims)


@row("aten.narrow.default")
def narrow(g: Lowering, x: Value, dim: int, start: Extent, length: Extent) -> Value:
    return g.slice(x, dim % x.rank, start, start + length)


@row("aten.split_with_sizes.default", "aten.split.Tensor", "aten.chunk.default", "aten.unbind.int")
def split(g: Lowering, x: Value, *args: Any) -> list[Value]:
    """Where to cut follows from the parts that export has found."""
    parts = [g.type_of(v)[1] for v in g.node.meta["val"]]
    is_unbind = len(parts[0]) < x.rank
    dim = (args[0] if is_unbind and args else args[1] if len(args) > 1 and not is_unbind else 0) % x.rank
    values, start = [], 0
    for dims in parts:
        limit = start + (1 if is_unbind else dims[dim])
        values.append(g.reshape(g.slice(x, dim, start, limit), dims))
        start = limit
    return values


@row("aten.cat.default", "aten.concat.default")
def cat(g: Lowering, values: list[Value], dim: int = 0) -> Value:
    whole = [v for v in values if not (v.dims == (0,) and len(g.dims) != 1)]  # torch.cat skips tensors of shape [0]
    whole = [g.cast(v, g.dtype) for v in whole if v.dims[dim] != 0]
    return g.concat(whole, dim % len(g.dims))


@row("aten.stack.default")
def stack(g: Lowering, values: list[Value], dim: int = 0) -> Value:
    dim %= len(g.dims)
    return g.concat([g.reshape(g.cast(v, g.dtype), [*v.dims[:dim], 1, *v.dims[dim:]]) for v in values], dim)


@row("aten.constant_pad_nd.default", "aten.pad.default")
def pad(g: Lowering, x: Value, pads: list[Extent], *more: Any) -> Value:
    mode, value = ("constant", more[0] if more else 0) if not more or not isinstance(more[0], str) else (more[0], more[1] if len(more) > 1 else 0)
    if mode != "constant":
        raise NoRowError(f"pad with mode {mode}")
    for i in range(len(pads) // 2):
        x = _pad_dim(g, x, x.rank - 1 - i, pads[2 * i], pads[2 * i + 1], value or 0)
    return x


def _pad_dim(g: Lowering, x: Value, dim: int, low: Extent, high: Extent, value: float) -> Value:
    extent = x.dims[dim]
    if _is_from_end(low) or _is_from_end(high):  # cuts
        start, limit = (-low if _is_from_end(low) else 0), (extent + high if _is_from_end(high) else extent)
        x = g.slice(x, dim, start, limit)
        low, high = (0 if _is_from_end(low) else low), (0 if _is_from_end(high) else high)
    if low == 0 and high == 0:
        return x
    if value == 0:
        return g.pad(x, dim, low, high)

    def filled(size: Extent) -> Value:
        return g.constant(value, x.dtype, [*x.dims[:dim], size, *x.dims[dim + 1 :]])

    parts = [filled(low)] if low != 0 else []
    parts.append(x)
    return g.concat([*parts, filled(high)] if high != 0 else parts, dim)
