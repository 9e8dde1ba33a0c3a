"""Tensors that are made of nothing."""

from __future__ import annotations

from typing import Any

from tacc.exporting.extents import SEQUENCE, Extent
from tacc.exporting.graph_text import Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.patterns.constants import INDEX, TABLE, UNIFORM
from tacc.exporting.table import row


def _strided(g: Lowering, dim: int, start: Extent, step: Extent) -> Value:
    """start + step times the index along `dim`."""
    if g.dims[dim] == SEQUENCE and all(d == 1 or i == dim for i, d in enumerate(g.dims)):
        # Positions, which context parallelism holds in an order of its own.
        index = g.cast(g.reshape(g.one("positions", [], "i32", [SEQUENCE], length=SEQUENCE), g.dims), g.dtype)
    else:
        index = g.iota(dim, g.dtype, g.dims)
    if step != 1:
        index = g.binary("mul", index, g.constant(step, g.dtype, []))
    return index if start == 0 else g.binary("add", index, g.constant(start, g.dtype, []))


@row("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def arange(g: Lowering, *args: Any, **_: Any) -> Value:
    return _strided(g, 0, 0 if len(args) == 1 else args[0], args[2] if len(args) > 2 else 1)


@row("aten.full.default", "aten.new_full.default")
def full(g: Lowering, *args: Any, **_: Any) -> Value:
    return g.constant(args[-1], g.dtype, g.dims)


@row("aten.full_like.default")
def full_like(g: Lowering, x: Value, value: float, **_: Any) -> Value:
    return g.constant(value, g.dtype, g.dims)


@row("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default")
@row("aten.empty.memory_format", "aten.empty_permuted.default", "aten.new_empty.default")
def zeros(g: Lowering, *_: Any, **__: Any) -> Value:
    return g.constant(0, g.dtype, g.dims)


@row("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(g: Lowering, *_: Any, **__: Any) -> Value:
    return g.constant(1, g.dtype, g.dims)


@row("aten.scalar_tensor.default")
def scalar_tensor(g: Lowering, value: float, **_: Any) -> Value:
    return g.constant(value, g.dtype, g.dims)


@row(UNIFORM)
def uniform(g: Lowering, value: float) -> Value:
    return g.constant(value, g.dtype, g.dims)


@row(INDEX)
def index(g: Lowering, dim: int, start: int, step: int) -> Value:
    return _strided(g, dim, start, step)


@row(TABLE)
def table(g: Lowering, tensor: Any) -> Value:
    return g.cast(g.add_table(tensor), g.dtype)
