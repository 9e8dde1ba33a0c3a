"""Norms of the last dims, and of groups of channels."""

from __future__ import annotations

from tacc.exporting.extents import product
from tacc.exporting.graph_text import Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.patterns.rms_norm import RMS_NORM
from tacc.exporting.rows.batch_norm import by_statistics, of_channels
from tacc.exporting.table import NoRowError, row


def _as_rows(g: Lowering, x: Value, num_dims: int) -> Value:
    """x with the dims that are normalized as its last one."""
    return g.reshape(x, [*x.dims[: x.rank - num_dims], product(x.dims[x.rank - num_dims :])])


def _flat(g: Lowering, weight: Value) -> Value:
    return g.reshape(weight, [g.count(weight)])


@row("aten.layer_norm.default", "aten.native_layer_norm.default")
def layer_norm(
    g: Lowering, x: Value, shape: list[int], weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5, *_: object
) -> Value | list[Value]:
    rows = _as_rows(g, x, len(shape))
    if weight is None and bias is not None:
        weight = g.constant(1.0, "f32", bias.dims)
    operands = [rows, *(_flat(g, v) for v in (weight, bias) if v is not None)]
    statistics = ("f32", rows.dims[:-1])
    y, mean, rstd = g.add("layer_norm", operands, [("f32", rows.dims), statistics, statistics], eps=float(eps))
    y = g.reshape(y, x.dims)
    return [y, mean, rstd] if "native" in str(g.node.target) else y


@row("aten.rms_norm.default", RMS_NORM)
def rms_norm(g: Lowering, x: Value, shape: list[int], weight: Value | None = None, eps: float | None = None) -> Value:
    if x.node.op == "transpose" and x.node.attrs["perm"][-1] == x.rank - 1 and len(shape) == 1:  # of heads: as attention takes them
        return g.transpose(rms_norm(g, x.node.operands[0], shape, weight, eps), x.node.attrs["perm"])
    rows = _as_rows(g, x, len(shape))
    scale = g.constant(1.0, "f32", rows.dims[-1:]) if weight is None else _flat(g, weight)
    y, _ = g.add("rms_norm", [rows, scale], [("f32", rows.dims), ("f32", rows.dims[:-1])], eps=2.0**-23 if eps is None else float(eps))
    return g.reshape(y, x.dims)


@row("aten.group_norm.default")
def group_norm(g: Lowering, x: Value, groups: int, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5, *_: object) -> Value:
    rows = g.reshape(x, [x.dims[0], groups, product([x.dims[1] // groups, *x.dims[2:]])])
    return of_channels(g, g.reshape(_normalized(g, rows, eps), x.dims), weight, bias)


@row("aten.instance_norm.default")
def instance_norm(
    g: Lowering,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    of_input: bool,
    momentum: float,
    eps: float,
    *_: object,
) -> Value:
    if not of_input and mean is not None and variance is not None:
        return by_statistics(g, x, weight, bias, mean, variance, eps)
    if mean is not None:
        raise NoRowError("that tracks running statistics")
    rows = g.reshape(x, [*x.dims[:2], product(x.dims[2:])])
    return of_channels(g, g.reshape(_normalized(g, rows, eps), x.dims), weight, bias)


def _normalized(g: Lowering, rows: Value, eps: float) -> Value:
    statistics = ("f32", rows.dims[:-1])
    return g.add("layer_norm", [rows], [("f32", rows.dims), statistics, statistics], eps=float(eps))[0]
