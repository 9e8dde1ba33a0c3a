"""Sums, means, maxima, and softmax."""

from __future__ import annotations

from typing import Any

from tacc.exporting.extents import product
from tacc.exporting.graph_text import Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.table import NoRowError, row


def _dims_of(x: Value, dims: Any) -> list[int]:
    if dims is None or dims == []:
        return list(range(x.rank))
    return sorted(d % x.rank for d in (dims if isinstance(dims, list) else [dims])) if x.rank else []


@row("aten.sum.default", "aten.sum.dim_IntList")
def sum_(g: Lowering, x: Value, dims: Any = None, keepdim: bool = False, **_: Any) -> Value:
    if not x.is_floating and g.dtype != "f32":
        raise NoRowError("a sum of whole numbers")
    return g.reshape(g.reduce_sum(g.cast(x, "f32"), _dims_of(x, dims)), g.dims)


@row("aten.mean.default", "aten.mean.dim")
def mean(g: Lowering, x: Value, dims: Any = None, keepdim: bool = False, **_: Any) -> Value:
    over = _dims_of(x, dims)
    total = g.reduce_sum(g.cast(x, "f32"), over)
    return g.reshape(mean_of(g, total, product([x.dims[d] for d in over])), g.dims)


def mean_of(g: Lowering, total: Value, number: Any) -> Value:
    """total / number, of a sum. The loss of a model may be such a mean: its sum and number are kept."""
    count = g.constant(number, "f32", [])
    result = g.scale(total, 1.0 / number) if isinstance(number, int) else g.binary("div", total, count)
    if total.rank == 0:
        g.means[result] = (total, count)
    return result


@row("aten.amax.default")
def amax(g: Lowering, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    if not x.is_floating:
        raise NoRowError("a maximum of whole numbers")
    return g.reshape(g.reduce_max(x, _dims_of(x, dims)), g.dims)


@row("aten.var.correction", "aten.var.dim")
def var(g: Lowering, x: Value, dims: Any = None, *more: Any, correction: float | None = None, keepdim: bool = False) -> Value:
    over = _dims_of(x, dims)
    if more:  # unbiased, of aten.var.dim
        correction = float(more[0])
    number = product([x.dims[d] for d in over])
    if not isinstance(number, int):
        raise NoRowError("over a batch or a sequence of any length")
    kept = [1 if d in over else extent for d, extent in enumerate(x.dims)]
    mean_value = g.reshape(g.scale(g.reduce_sum(x, over), 1.0 / number), kept)
    squares = g.unary("square", g.binary("sub", x, mean_value))
    return g.reshape(g.scale(g.reduce_sum(squares, over), 1.0 / (number - (1 if correction is None else correction))), g.dims)


@row("aten.softmax.int", "aten._softmax.default")
def softmax(g: Lowering, x: Value, dim: int, *_: Any) -> Value:
    dim %= x.rank
    return g.swap(g.unary("softmax", g.swap(g.cast(x, "f32"), dim, x.rank - 1)), dim, x.rank - 1)


@row("aten.linalg_vector_norm.default")
def vector_norm(g: Lowering, x: Value, order: float = 2, dims: Any = None, keepdim: bool = False, **_: Any) -> Value:
    if order != 2:
        raise NoRowError(f"of order {order}")
    return g.reshape(g.unary("sqrt", g.reduce_sum(g.unary("square", g.cast(x, "f32")), _dims_of(x, dims))), g.dims)


@row("aten.logsumexp.default")
def logsumexp(g: Lowering, x: Value, dims: list[int], keepdim: bool = False) -> Value:
    over = _dims_of(x, dims)
    kept = [1 if d in over else extent for d, extent in enumerate(x.dims)]
    most = g.reshape(g.reduce_max(x, over), kept)
    total = g.reduce_sum(g.unary("exp", g.binary("sub", x, most)), over)
    return g.reshape(g.binary("add", g.reshape(g.unary("log", total), kept), most), g.dims)


@row("aten.log_softmax.int", "aten._log_softmax.default")
def log_softmax(g: Lowering, x: Value, dim: int, *_: Any) -> Value:
    x = g.cast(x, "f32")
    dim %= x.rank
    most = g.reshape(g.reduce_max(x, [dim]), [1 if d == dim else e for d, e in enumerate(x.dims)])
    below = g.binary("sub", x, most)
    total = g.reduce_sum(g.unary("exp", below), [dim])
    return g.binary("sub", below, g.reshape(g.unary("log", total), most.dims))


@row("aten.any")
def any_(g: Lowering, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    return g.cast(g.reshape(g.reduce_max(g.cast(g.cast(x, "bool"), "f32"), _dims_of(x, dims)), g.dims), "bool")


@row("aten.all")
def all_(g: Lowering, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    return g.negated(any_(g, g.negated(x), dims, keepdim))
