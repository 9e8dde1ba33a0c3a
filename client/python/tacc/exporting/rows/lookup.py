"""Tables that ids look up, and losses over classes."""

from __future__ import annotations

from typing import Any

from tacc.exporting.extents import product
from tacc.exporting.graph_text import Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.rows.pointwise import absolute
from tacc.exporting.rows.reduction import log_softmax, mean_of
from tacc.exporting.table import NoRowError, row


@row("aten.embedding.default")
def embedding(g: Lowering, table: Value, ids: Value, padding_idx: int = -1, *_: Any) -> Value:
    g.looks_up(ids, table.dims[0])
    ids = g.cast(ids, "i32")
    y = g.one("embedding", [table, ids], "f32", [*ids.dims, table.dims[1]])
    if padding_idx < 0:
        return y
    # The row of padding is looked up, and has no gradient.
    is_other = g.unary("clamp", g.unary("square", g.add_scalar(g.cast(ids, "f32"), -padding_idx)), min=0.0, max=1.0)
    is_padding = g.add_scalar(g.scale(is_other, -1.0), 1.0)
    return g.binary("add", g.unary_with("mul_rows", [y, is_other]), g.unary_with("mul_rows", [g.unary("stop_gradient", y), is_padding]))


_REDUCTIONS = ("none", "mean", "sum")


@row("aten.cross_entropy_loss.default")
def cross_entropy_loss(
    g: Lowering, logits: Value, target: Value, weight: Value | None = None, reduction: int = 1, ignore_index: int = -100, label_smoothing: float = 0.0
) -> Value:
    if target.is_floating:
        raise NoRowError("with probabilities as targets")
    if logits.rank > 2:  # [N,C,...]: classes come last here
        logits = g.transpose(logits, [0, *range(2, logits.rank), 1])
    g.looks_up(target, logits.dims[-1], ignore_index)
    logits, target = _unmerged(g, logits, g.cast(target, "i32"))
    if ignore_index >= 0:  # the op does not count negative ones
        is_ignored = g.compare("eq", target, g.constant(ignore_index, "i32", []))
        target = g.select(is_ignored, g.constant(-1, "i32", []), target)
    if weight is None and label_smoothing == 0 and _REDUCTIONS[reduction] != "none":
        loss, count, _ = g.add("cross_entropy", [logits, target], [("f32", []), ("f32", []), ("f32", target.dims)])
        return loss if _REDUCTIONS[reduction] == "sum" else _mean(g, loss, count)
    return _of_each_target(g, logits, target, weight, reduction, label_smoothing)


def _mean(g: Lowering, total: Value, count: Value) -> Value:
    mean = g.binary("div", total, count)
    g.means[mean] = (total, count)
    return mean


def _of_each_target(g: Lowering, logits: Value, target: Value, weight: Value | None, reduction: int, smoothing: float) -> Value:
    """From each target's own loss, which is weighed, or smoothed by the mean of the losses of all classes."""
    classes = logits.dims[-1]
    log_probabilities = log_softmax(g, logits, -1)
    is_counted = g.cast(g.compare("ge", target, g.constant(0, "i32", [])), "f32")
    ids = g.cast(g.binary("maximum", target, g.constant(0, "i32", [])), "i64")
    own = g.gather(log_probabilities, g.reshape(ids, [*ids.dims, 1]), ids.rank)
    each = g.unary("neg", g.reshape(own, target.dims))
    weights = is_counted
    if weight is not None:
        table = g.reshape(weight, [classes, 1])
        looked_up = g.one("embedding", [table, g.cast(ids, "i32")], "f32", [*ids.dims, 1])
        weights = g.binary("mul", is_counted, g.reshape(looked_up, ids.dims))
    each = g.binary("mul", each, weights)
    if smoothing != 0:
        of_all = log_probabilities if weight is None else g.binary("mul", log_probabilities, weight)
        mean_of_all = g.scale(g.reduce_sum(of_all, [ids.rank]), -1.0 / classes)
        each = g.binary("add", g.scale(each, 1.0 - smoothing), g.scale(g.binary("mul", mean_of_all, is_counted), smoothing))
    if _REDUCTIONS[reduction] == "none":
        return g.reshape(each, g.dims)
    total = g.reduce_sum(each, list(range(each.rank)))
    return total if _REDUCTIONS[reduction] == "sum" else _mean(g, total, g.reduce_sum(weights, list(range(weights.rank))))


def _unmerged(g: Lowering, logits: Value, target: Value) -> tuple[Value, Value]:
    """Both before samples and tokens were merged, if they were: then each layout can split them."""
    while logits.node.op == "reshape" and (inner := logits.node.operands[0]).dims[-1:] == logits.dims[-1:] and inner.rank > logits.rank:
        logits = inner
    return logits, g.reshape(target, logits.dims[:-1])


@row("aten.mse_loss.default")
def mse_loss(g: Lowering, x: Value, target: Value, reduction: int = 1) -> Value:
    squares = g.unary("square", g.binary("sub", g.cast(x, "f32"), g.cast(target, "f32")))
    return _reduced(g, squares, reduction)


@row("aten.l1_loss.default")
def l1_loss(g: Lowering, x: Value, target: Value, reduction: int = 1) -> Value:
    return _reduced(g, absolute(g, g.binary("sub", x, target)), reduction)


def _reduced(g: Lowering, each: Value, reduction: int) -> Value:
    if _REDUCTIONS[reduction] == "none":
        return each
    total = g.reduce_sum(each, list(range(each.rank)))
    return total if _REDUCTIONS[reduction] == "sum" else mean_of(g, total, product(each.dims))


@row("aten.nll_loss_nd.default", "aten.nll_loss.default")
def nll_loss(g: Lowering, log_probabilities: Value, target: Value, weight: Value | None = None, reduction: int = 1, ignore_index: int = -100) -> Value:
    """Of log_softmax(x): the cross-entropy of x, since log_softmax changes nothing of log_softmax's own."""
    return cross_entropy_loss(g, log_probabilities, target, weight, reduction, ignore_index)
