"""Batch norms: sums of each channel, their moments, and one factor and summand a channel (graph/ops/README.md, "Images")."""

from __future__ import annotations

from typing import Any

from tacc.exporting.graph_text import Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.source import module_type
from tacc.exporting.table import row


def of_channels(g: Lowering, x: Value, weight: Value | None, bias: Value | None) -> Value:
    """x [N,C,...] times the weight of each channel, and its bias added."""
    if weight is None and bias is None:
        return x
    if weight is None:
        weight = g.constant(1.0, "f32", [x.dims[1]])
    return g.one("channel_affine", [v for v in (x, weight, bias) if v is not None], "f32", x.dims)


def by_statistics(g: Lowering, x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value, eps: float) -> Value:
    """(x - mean) / sqrt(variance + eps) * weight + bias, in the type of the statistics until it is x that is multiplied."""
    channels, dtype = [x.dims[1]], mean.dtype

    def one(op: str, *operands: Value, **attrs: Any) -> Value:
        return g.one(op, operands, dtype, channels, **attrs)

    factor = one("rsqrt", one("add_scalar", variance, value=float(eps)))
    if weight is not None:
        factor = one("mul", factor, g.cast(weight, dtype))
    shift = one("mul", mean, factor)
    summand = one("neg", shift) if bias is None else one("sub", g.cast(bias, dtype), shift)
    return g.one("channel_affine", [x, factor, summand], "f32", x.dims)


@row("aten._native_batch_norm_legit_functional.default")
def batch_norm(
    g: Lowering,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_variance: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Any]:
    """Returns how the running statistics go on as well, as buffers that the model changes."""
    if not training:
        return [by_statistics(g, x, weight, bias, running_mean, running_variance, eps), None, None, running_mean, running_variance]
    mean, variance, new_mean, new_variance = _moments(g, x, [running_mean, running_variance], momentum=float(momentum))
    return [by_statistics(g, x, weight, bias, mean, variance, eps), None, None, new_mean, new_variance]


@row("aten._native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(g: Lowering, x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float) -> list[Any]:
    mean, variance = _moments(g, x, [])
    return [by_statistics(g, x, weight, bias, mean, variance, eps), None, None]


@row("aten._native_batch_norm_legit_no_training.default")
def batch_norm_of_running(
    g: Lowering, x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value, momentum: float, eps: float
) -> list[Any]:
    return [by_statistics(g, x, weight, bias, mean, variance, eps), None, None]


def _moments(g: Lowering, x: Value, running: list[Value], **attrs: Any) -> list[Value]:
    """Those of a SyncBatchNorm are of all samples, whatever the job says of batch norms."""
    channels = [x.dims[1]]
    if module_type(g.node).endswith("SyncBatchNorm"):
        attrs["sync"] = True
    sums = g.add("channel_sums", [x], [("f64", channels)] * 2)
    types = [("f64", channels)] * 2 + [("f32", channels)] * len(running)
    return g.add("batch_moments", [*sums, *running], types, extents=[x.dims[0], *x.dims[2:]], **attrs)
