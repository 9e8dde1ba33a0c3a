"""Tables that ids look up, and losses over classes."""

from __future__ import annotations

from typing import Any

from tacc.exporting.extents import product
from tacc.exporting.graph_text import Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.rows.reduction import mean_of
from tacc.exporting.table import NoRowError, row


@row("aten.embedding.default")
def embedding(g: Lowering, table: Value, ids: Value, padding_idx: int = -1, *_: Any) -> Value:
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
    if weight is not None:
        raise NoRowError("with weights of classes")
    if label_smoothing != 0:
        raise NoRowError("with label_smoothing")
    if target.is_floating:
        raise NoRowError("with probabilities as targets")
    if _REDUCTIONS[reduction] == "none":
        raise NoRowError('with reduction="none"')
    if ignore_index >= 0:
        raise NoRowError(f"with ignore_index={ignore_index}; mark what is not counted by a negative number, as -100")
    if logits.rank > 2:  # [N,C,...]: classes come last here
        logits = g.transpose(logits, [0, *range(2, logits.rank), 1])
    logits, target = _unmerged(g, logits, g.cast(target, "i32"))
    loss, count, _ = g.add("cross_entropy", [logits, target], [("f32", []), ("f32", []), ("f32", target.dims)])
    if _REDUCTIONS[reduction] == "sum":
        return loss
    mean = g.binary("div", loss, count)
    g.means[mean] = (loss, count)
    return mean


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
    difference = g.binary("sub", x, target)
    return _reduced(g, g.binary("maximum", difference, g.unary("neg", difference)), reduction)


def _reduced(g: Lowering, each: Value, reduction: int) -> Value:
    if _REDUCTIONS[reduction] == "none":
        return each
    total = g.reduce_sum(each, list(range(each.rank)))
    return total if _REDUCTIONS[reduction] == "sum" else mean_of(g, total, product(each.dims))


@row("aten.nll_loss_nd.default", "aten.nll_loss.default")
def nll_loss(g: Lowering, log_probabilities: Value, target: Value, weight: Value | None = None, reduction: int = 1, ignore_index: int = -100) -> Value:
    """Of log_softmax(x): the cross-entropy of x, since log_softmax changes nothing of log_softmax's own."""
    return cross_entropy_loss(g, log_probabilities, target, weight, reduction, ignore_index)
