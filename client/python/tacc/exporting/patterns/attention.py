"""Finds attention in any spelling: PyTorch's own op, or softmax(q k^T scale + mask) v."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from tacc.exporting.patterns.constant_values import ConstantValues
from tacc.exporting.patterns.masks import HIDDEN, Mask, classify
from tacc.exporting.patterns.matching import is_op, only_user, scalar, strip

ATTENTION = "tacc_attention"


def tacc_attention(*_: Any, **__: Any) -> None:
    """The target of nodes that stand for attention: q [...,H,S,D], k [...,K,T,D], v [...,K,T,V]."""


def find_attention(graph: Graph, values: ConstantValues) -> int:
    """Puts a tacc_attention in the place of each that it finds; returns how many."""
    masks: dict[tuple[Node, int], Mask | None] = {}

    def mask_of(node: Node, rank: int) -> Mask | None:
        if (node, rank) not in masks:
            masks[node, rank] = classify(node, rank, values)
        return masks[node, rank]

    count = 0
    for node in list(graph.nodes):
        if is_op(node, "scaled_dot_product_attention"):
            count += _rewrite_sdpa(graph, node, mask_of)
        elif is_op(node, "softmax", "_softmax"):
            count += _rewrite_softmax(graph, node, mask_of)
    graph.eliminate_dead_code()
    return count


def _replace(graph: Graph, node: Node, args: tuple[Node, ...], mask: Mask, **kwargs: Any) -> None:
    with graph.inserting_before(node):
        made = graph.call_function(tacc_attention, args, {"keys": mask.keys, "no_key": mask.no_key, "causal": mask.causal, "window": mask.window, **kwargs})
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def _result_of_nothing(mask: Mask) -> str:
    """As rows/attention.py names the result of a query that sees nothing, if the mask is added. softmax alone makes NaNs of nothing but -inf."""
    return "nothing" if not mask.is_finite else "all" if mask.is_weak else "mean"


def _rewrite_sdpa(graph: Graph, node: Node, mask_of: Any) -> int:
    names = ("q", "k", "v", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, node.args)), **node.kwargs}
    node_mask = given.get("attn_mask")
    rank = node.meta["val"].dim()
    mask = Mask(causal=bool(given.get("is_causal", False))) if node_mask is None else mask_of(node_mask, rank)
    if mask is None or any(x.meta["val"].dim() != rank for x in node.args[:3]):
        return 0  # the row has it, with the mask as it is
    nothing_seen = _result_of_nothing(mask)
    _replace(graph, node, node.args[:3], mask, dropout=float(given.get("dropout_p", 0.0)), scale=given.get("scale"), nothing_seen=nothing_seen)
    return 1


@dataclass
class _Scores:
    """softmax's operand, taken apart."""

    product: Node
    scale: float = 1.0
    softcap: float = 0.0
    mask: Node | None = None
    hides: bool = False  # the mask is true where the key is hidden
    filled: float | None = None  # what stands in the place of a score that is hidden; None: something is added to it


def _rewrite_softmax(graph: Graph, node: Node, mask_of: Any) -> int:
    rank = node.meta["val"].dim()
    if node.args[1] not in (-1, rank - 1) or rank not in (3, 4):
        return 0
    scores = _scores(node.args[0])
    if scores is None:
        return 0
    probabilities, dropout = node, 0.0
    while (user := only_user(probabilities)) is not None and not is_op(user, "matmul", "bmm"):
        if is_op(user, "dropout", "native_dropout"):
            dropout = float(user.args[1]) if user.args[2] else 0.0
        elif not (is_op(user, "_to_copy", "clone", "to", "contiguous") or getattr(user.target, "__name__", "") == "getitem"):
            return 0
        if isinstance(user.meta["val"], torch.Tensor) and not user.meta["val"].is_floating_point():
            return 0
        probabilities = user
    if user is None or user.args[0] is not probabilities:
        return 0
    if scores.mask is None:
        mask: Mask | None = Mask()
    elif scores.hides:
        mask = _hidden(graph, scores.mask, rank, mask_of)
    else:
        mask = mask_of(scores.mask, rank)
    q, k = scores.product.args[-2:]
    if mask is None or any(x.meta["val"].dim() != rank for x in (q, k, user.args[1])):
        return 0
    nothing_seen = _result_of_nothing(mask) if scores.filled in (None, -math.inf) else "constant"
    _replace(
        graph, user, (q, k, user.args[1]), mask, dropout=dropout, scale=scores.scale, softcap=scores.softcap, transposed_keys=True, nothing_seen=nothing_seen
    )
    return 1


def _hidden(graph: Graph, node: Node, rank: int, mask_of: Any) -> Mask | None:
    """Of a mask that is true where the key is hidden."""
    with graph.inserting_after(node):
        seen = graph.call_function(torch.ops.aten.logical_not.default, (node,))
    seen.meta = dict(node.meta)
    found: Mask | None = mask_of(seen, rank)
    return found


def _scores(node: Node) -> _Scores | None:
    """From the softmax inward: a mask, a soft cap, a scale, the product. All but the product may be missing."""
    found = _Scores(node)
    node = strip(node)
    if is_op(node, "add") and len(node.args) == 2 and not node.kwargs and isinstance(node.args[1], Node) and node.args[1].meta["val"].dim() > 0:
        first_is_mask = _is_mask_like(node.args[0], node)
        found.mask, node = node.args if first_is_mask else node.args[::-1]
    elif is_op(node, "masked_fill") and (scalar(node.args[2]) or 0.0) <= HIDDEN:
        found.mask, found.hides, found.filled, node = node.args[1], True, scalar(node.args[2]), node.args[0]
    elif is_op(node, "where") and (scalar(node.args[2]) or 0.0) <= HIDDEN:
        found.mask, found.filled, node = node.args[0], scalar(node.args[2]), node.args[1]
    node, found.softcap = _uncapped(strip(node))
    while (factor := _factor(node)) is not None:
        found.scale *= factor
        node = strip(node.args[0])
    if is_op(node, "baddbmm") and found.mask is None and not node.kwargs and found.scale == 1.0 and not found.softcap:
        found.mask = node.args[0]
    elif not is_op(node, "matmul", "bmm"):
        return None
    found.product = node
    return found


def _factor(node: Node) -> float | None:
    """What a product or a quotient with a number multiplies by."""
    if not is_op(node, "mul", "div") or node.kwargs or (number := scalar(node.args[1])) is None:
        return None
    return number if is_op(node, "mul") else 1.0 / number


def _uncapped(node: Node) -> tuple[Node, float]:
    """s and cap of cap * tanh(s / cap); the node itself and 0 where it is none."""
    if (cap := _factor(node)) is None or not is_op(inner := strip(node.args[0]), "tanh"):
        return node, 0.0
    divided = strip(inner.args[0])
    if (factor := _factor(divided)) is None or not math.isclose(factor * cap, 1.0, rel_tol=1e-6):
        return node, 0.0
    return strip(divided.args[0]), cap


def _is_mask_like(node: Node, total: Node) -> bool:
    """Whether it is the summand that is repeated over heads or samples."""
    return tuple(node.meta["val"].shape) != tuple(total.meta["val"].shape)
