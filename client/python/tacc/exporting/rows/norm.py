"""Norms."""

from __future__ import annotations

from tacc.exporting.extents import product
from tacc.exporting.graph_text import Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.patterns.rms_norm import RMS_NORM
from tacc.exporting.table import row


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
    rows = _as_rows(g, x, len(shape))
    scale = g.constant(1.0, "f32", rows.dims[-1:]) if weight is None else _flat(g, weight)
    y, _ = g.add("rms_norm", [rows, scale], [("f32", rows.dims), ("f32", rows.dims[:-1])], eps=2.0**-23 if eps is None else float(eps))
    return g.reshape(y, x.dims)
