"""Finds RMS norm where a model spells it: x * rsqrt(mean(x^2) + eps), then times a weight."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node

from tacc.exporting.patterns.matching import is_op, scalar, strip

RMS_NORM = "tacc_rms_norm"


def tacc_rms_norm(*_: Any, **__: Any) -> None:
    """The target of nodes that stand for it: the arguments of aten.rms_norm."""


def find_rms_norm(graph: Graph) -> int:
    """Puts a tacc_rms_norm in the place of each that it finds; returns how many."""
    count = 0
    for node in list(graph.nodes):
        if (found := _normed(node)) is None:
            continue
        x, eps = found
        target, weight = _with_weight(node)
        arguments = (x, [x.meta["val"].shape[-1]], weight, eps)
        with graph.inserting_before(target):
            made = graph.call_function(tacc_rms_norm, arguments)
        made.meta = dict(target.meta)
        target.replace_all_uses_with(made)
        count += 1
    graph.eliminate_dead_code()
    return count


def _normed(node: Node) -> tuple[Node, float] | None:
    """x and eps of x * rsqrt(mean(x^2, -1) + eps)."""
    if not is_op(node, "mul") or len(node.all_input_nodes) != 2:
        return None
    for x, rstd in (node.args, reversed(node.args)):
        if not is_op(strip(rstd), "rsqrt"):
            continue
        total = strip(strip(rstd).args[0])
        if not is_op(total, "add") or (eps := scalar(total.args[1])) is None:
            continue
        mean = strip(total.args[0])
        if not is_op(mean, "mean") or len(mean.args) < 3 or not mean.args[2] or list(mean.args[1]) not in ([-1], [mean.args[0].meta["val"].dim() - 1]):
            continue
        square = strip(mean.args[0])
        if _squared(square) is not None and strip(_squared(square)) is strip(x):
            return strip(x), eps
    return None


def _squared(node: Any) -> Node | None:
    if is_op(node, "pow") and scalar(node.args[1]) == 2.0 or is_op(node, "square"):
        return node.args[0]
    return node.args[0] if is_op(node, "mul") and node.args[0] is node.args[1] else None


def _with_weight(node: Node) -> tuple[Node, Node | None]:
    """The product with a weight [N] that takes the norm, and the weight; the norm itself where there is none."""
    width = node.meta["val"].shape[-1]
    inner = node
    while len(inner.users) == 1 and strip(next(iter(inner.users))) is strip(node) and is_op(next(iter(inner.users)), "_to_copy", "to"):
        inner = next(iter(inner.users))
    if len(inner.users) == 1:
        user = next(iter(inner.users))
        if is_op(user, "mul") and len(user.args) == 2:
            other = user.args[0] if user.args[1] is inner else user.args[1]
            if isinstance(other, Node) and tuple(other.meta["val"].shape) == (width,):
                return user, other
    return node, None
