"""Comparisons, choices by a condition, and elements by their index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from tacc.exporting.extents import Extent, product
from tacc.exporting.graph_text import Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.table import NoRowError, row

_MAX_CHOSEN = 64  # by top_k, which looks at each row once for each


def as_value(g: Lowering, x: Any, like: Value) -> Value:
    """A number as a value: of the type of `like` if that can hold it."""
    if isinstance(x, Value):
        return x
    is_whole = isinstance(x, (int, sympy.Expr))
    return g.constant(x, like.dtype if is_whole and like.dtype != "bool" else "i32" if is_whole else "f32", [])


def _register_comparisons() -> None:
    def make(comparison: str) -> Any:
        return lambda g, a, b: g.compare(comparison, a, as_value(g, b, a))

    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        row(f"aten.{name}.Tensor", f"aten.{name}.Scalar")(make(name))


_register_comparisons()


@row("aten.where")
def where(g: Lowering, condition: Value, a: Any = None, b: Any = None) -> Value:
    if a is None:
        raise NoRowError("the indices of what is true")
    like = a if isinstance(a, Value) else b if isinstance(b, Value) else g.constant(0, g.dtype, [])
    a, b = (g.cast(as_value(g, x, like), g.dtype) for x in (a, b))
    return g.broadcast(g.select(g.cast(condition, "bool"), a, b), g.dims) if g.dtype != "bool" else _where_bool(g, condition, a, b)


def _where_bool(g: Lowering, condition: Value, a: Value, b: Value) -> Value:
    return g.cast(g.select(g.cast(condition, "bool"), g.cast(a, "i32"), g.cast(b, "i32")), "bool")


@row("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(g: Lowering, x: Value, mask: Value, value: Any) -> Value:
    return where(g, mask, as_value(g, value, x), x)


@row("aten.gather.default")
def gather(g: Lowering, x: Value, dim: int, ids: Value, **_: Any) -> Value:
    dim %= max(x.rank, 1)
    if x.rank != ids.rank or x.rank == 0:
        raise NoRowError(f"of {x.rank} dims by {ids.rank}")
    for d in range(x.rank):
        if d != dim:
            x = g.slice(x, d, 0, ids.dims[d])
    return g.gather(x, g.cast(ids, "i64"), dim)


@row("aten.scatter.value")
def scatter_value(g: Lowering, x: Value, dim: int, ids: Value, value: Any) -> Value:
    """The value where any index points to, else x."""
    dim %= x.rank
    hits = _scattered(g, g.constant(1.0, "f32", ids.dims), dim, ids, x)
    return where(g, g.compare("gt", hits, g.constant(0.0, "f32", [])), as_value(g, value, x), x)


@row("aten.scatter_add.default")
def scatter_add(g: Lowering, x: Value, dim: int, ids: Value, source: Value) -> Value:
    if not x.is_floating:
        raise NoRowError("of whole numbers")
    return g.binary("add", x, _scattered(g, source, dim % x.rank, ids, x))


@row("aten.index_add.default")
def index_add(g: Lowering, x: Value, dim: int, ids: Value, source: Value, *, alpha: float = 1) -> Value:
    if not x.is_floating or ids.rank != 1:
        raise NoRowError("of whole numbers")
    dim %= x.rank
    along = g.broadcast(g.reshape(ids, [ids.dims[0] if d == dim else 1 for d in range(x.rank)]), source.dims)
    return g.binary("add", x, _scattered(g, g.scale(source, alpha), dim, along, x))


def _scattered(g: Lowering, source: Value, dim: int, ids: Value, x: Value) -> Value:
    """Sums of `source` by index, with x's dims."""
    for d in range(x.rank):
        if source.dims[d] != ids.dims[d]:
            source = g.slice(source, d, 0, ids.dims[d])
        if d != dim and ids.dims[d] != x.dims[d]:
            raise NoRowError("of a part of the other dims")
    extent = x.dims[dim]
    return g.one("scatter_add", [source, g.cast(ids, "i64")], source.dtype, x.dims, dim=dim, extent=extent)


@row("aten.index_select.default")
def index_select(g: Lowering, x: Value, dim: int, ids: Value) -> Value:
    return g.reshape(_indexed(g, x, dim % max(x.rank, 1), g.reshape(ids, [g.count(ids)])), g.dims)


@row("aten.index.Tensor")
def index(g: Lowering, x: Value, indices: list[Value | None]) -> Value:
    given = [d for d, i in enumerate(indices) if i is not None]
    tensors = [i for i in indices if i is not None]
    if not given or given != list(range(given[0], given[-1] + 1)) or any(i.is_floating or i.dtype == "bool" for i in tensors):
        raise NoRowError("by a mask, or in dims that are apart")
    first, extents = given[0], [x.dims[d] for d in given]
    ids = _counted_from_start(g, tensors[0], extents[0])
    for i, extent in zip(tensors[1:], extents[1:]):
        ids = g.binary("mul", g.cast(ids, "i64"), g.constant(extent, "i64", []))
        ids = g.binary("add", ids, g.cast(_counted_from_start(g, i, extent), "i64"))
    merged = g.reshape(x, [*x.dims[:first], product(extents), *x.dims[given[-1] + 1 :]])
    return g.reshape(_indexed(g, merged, first, ids), g.dims)


def _counted_from_start(g: Lowering, ids: Value, extent: Extent) -> Value:
    """Indices, of which -1 is the last."""
    source = ids
    while source.node.op in ("cast", "reshape", "broadcast", "transpose"):
        source = source.node.operands[0]
    if source.node.op in ("positions", "iota", "top_k"):
        return ids
    zero, n = g.constant(0, ids.dtype, []), g.constant(extent, ids.dtype, [])
    return g.select(g.compare("lt", ids, zero), g.binary("add", ids, n), ids)


def _indexed(g: Lowering, x: Value, dim: int, ids: Value) -> Value:
    """x with `dim` in the place of the dims of ids: rows of a table."""
    before, after = x.dims[:dim], x.dims[dim + 1 :]
    rows = g.reshape(g.transpose(x, [dim, *range(dim), *range(dim + 1, x.rank)]), [x.dims[dim], product([*before, *after])])
    width = rows.dims[1]
    if x.is_floating:
        made = g.one("embedding", [rows, g.cast(ids, "i32")], "f32", [*ids.dims, width])
    else:
        flat = g.reshape(g.cast(ids, "i64"), [g.count(ids), 1])
        made = g.gather(g.cast(rows, "i64") if x.dtype == "bool" else rows, g.broadcast(flat, [flat.dims[0], width]), 0)
    apart = g.reshape(g.cast(made, x.dtype), [*ids.dims, *before, *after])
    n, m = ids.rank, len(before)
    return g.transpose(apart, [*range(n, n + m), *range(n), *range(n + m, apart.rank)])


@row("aten.topk.default")
def topk(g: Lowering, x: Value, k: int, dim: int = -1, largest: bool = True, is_sorted: bool = True) -> list[Value]:
    return _largest(g, x if largest else g.unary("neg", x), k, dim % max(x.rank, 1), sign=1 if largest else -1)


@row("aten.max.dim", "aten.min.dim")
def max_dim(g: Lowering, x: Value, dim: int, keepdim: bool = False) -> list[Value]:
    is_max = "max" in str(g.node.target)
    made = _largest(g, x if is_max else g.unary("neg", x), 1, dim % max(x.rank, 1), sign=1 if is_max else -1)
    return [g.reshape(v, g.dims) for v in made]


@row("aten.argmax.default", "aten.argmin.default")
def argmax(g: Lowering, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    if dim is None:
        x, dim = g.reshape(x, [g.count(x)]), 0
    is_max = "max" in str(g.node.target)
    return g.reshape(_largest(g, x if is_max else g.unary("neg", x), 1, dim % max(x.rank, 1), sign=1)[1], g.dims)


def _largest(g: Lowering, x: Value, k: int, dim: int, sign: int) -> list[Value]:
    """The k largest of each row along `dim`, times `sign`, and their places."""
    if not x.is_floating or x.rank == 0 or not isinstance(k, int) or k > _MAX_CHOSEN:
        raise NoRowError(f"{k} of {x.dtype}" if not x.is_floating else f"{k} of each row")
    last = g.swap(x, dim, x.rank - 1)
    slots = [*last.dims[:-1], k]
    values, ids = g.add("top_k", [last], [("f32", slots), ("i32", slots)], k=k)
    return [g.swap(g.scale(values, sign), dim, x.rank - 1), g.cast(g.swap(ids, dim, x.rank - 1), "i64")]


@row("aten.cumsum.default")
def cumsum(g: Lowering, x: Value, dim: int, **_: Any) -> Value:
    if x.rank == 0:
        raise NoRowError("of a scalar")
    dtype = g.dtype if g.dtype == "f32" else "i64"
    return g.cast(g.one("cumsum", [g.cast(x, dtype)], dtype, x.dims, dim=dim % x.rank), g.dtype)


@row("aten.flip.default")
def flip(g: Lowering, x: Value, dims: list[int]) -> Value:
    over = sorted(d % x.rank for d in dims)
    return g.one("flip", [x], x.dtype, x.dims, dims=over) if over else x


@row("aten.copy.default")
def copy(g: Lowering, x: Value, source: Value, *_: Any) -> Value:
    return g.broadcast(g.cast(source, x.dtype), x.dims)


@row("aten.slice_scatter.default")
def slice_scatter(g: Lowering, x: Value, source: Value, dim: int = 0, start: Extent | None = None, end: Extent | None = None, step: int = 1) -> Value:
    if step != 1:
        raise NoRowError(f"with step {step}")
    dim %= x.rank
    start = 0 if start is None else start
    return _replaced(g, x, source, dim, x.dims[dim] + start if isinstance(start, int) and start < 0 else start)


@row("aten.select_scatter.default")
def select_scatter(g: Lowering, x: Value, source: Value, dim: int, place: Extent) -> Value:
    dim %= x.rank
    place = x.dims[dim] + place if isinstance(place, int) and place < 0 else place
    return _replaced(g, x, g.reshape(source, [*x.dims[:dim], 1, *x.dims[dim + 1 :]]), dim, place)


def _replaced(g: Lowering, x: Value, source: Value, dim: int, start: Extent) -> Value:
    """x with `source` in the place of its elements from `start` on along `dim`."""
    source = g.cast(source, x.dtype)
    parts: Sequence[Value] = [g.slice(x, dim, 0, start), source, g.slice(x, dim, start + source.dims[dim], x.dims[dim])]
    return g.concat([part for part in parts if part.dims[dim] != 0], dim)
