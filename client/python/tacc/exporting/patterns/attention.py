"""Finds attention in any spelling: PyTorch's own op, or softmax(q k^T scale + mask) v."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from tacc.exporting.patterns.constant_values import ConstantValues
from tacc.exporting.patterns.masks import OUTWEIGHS, Mask, classify
from tacc.exporting.patterns.matching import is_op, only_user, scalar, strip
from tacc.exporting.patterns.scores import Scores, called, product_of, repeated_parts, scores_of

ATTENTION = "tacc_attention"


def tacc_attention(*_: Any, **__: Any) -> None:
    """The target of nodes that stand for attention: q [...,H,S,D], k [...,K,T,D], v [...,K,T,V]."""


class _Masks:
    """What is known of nodes that are masks.

    Attributes:
        trained: The placeholders of parameters.
    """

    def __init__(self, values: ConstantValues, trained: frozenset[Node]):
        self._values, self._trained = values, trained
        self._found: dict[tuple[Node, int], Mask | None] = {}

    def of(self, node: Node, rank: int) -> Mask | None:
        if (node, rank) not in self._found:
            self._found[node, rank] = classify(node, rank, self._values)
        return self._found[node, rank]

    def is_trained(self, node: Node) -> bool:
        return not self._trained.isdisjoint(self._values.data_of(node))


def find_attention(graph: Graph, values: ConstantValues, trained: frozenset[Node]) -> int:
    """Puts a tacc_attention in the place of each that it finds; returns how many. trained: the placeholders of parameters."""
    masks = _Masks(values, trained)
    count = 0
    for node in list(graph.nodes):
        if is_op(node, "scaled_dot_product_attention"):
            count += _rewrite_sdpa(graph, node, masks)
        elif is_op(node, "softmax", "_softmax"):
            count += _rewrite_softmax(graph, node, masks)
    graph.eliminate_dead_code()
    return count


@dataclass
class _Masking:
    """Of the scores.

    Attributes:
        mask: What the op knows of it.
        chosen: A node that is true where a key is seen.
        added: A node that is added.
        hides_added: `added` has no derivative where the key is not seen.
        of_parts: A node [P,H,S,T], or dims of 1, that is added: the samples of the scores are P parts of each of fewer, as windows of an image.
        filled: What stands in the place of a score that is hidden, if not -inf; None: it is added.
    """

    mask: Mask = field(default_factory=Mask)
    chosen: Node | None = None
    added: Node | None = None
    hides_added: bool = False
    of_parts: Node | None = None
    filled: float | None = None

    @property
    def nothing_seen(self) -> str:
        """As rows/attention.py names the result of a query that sees nothing. softmax alone makes NaNs of nothing but -inf."""
        if self.filled is not None:
            return "constant"
        return "nothing" if not self.mask.is_finite else "all" if self.mask.is_weak else "mean"


def _replace(graph: Graph, node: Node, args: tuple[Node, ...], found: _Masking, order: list[int] | None = None, **kwargs: Any) -> None:
    """order: of the dims of `node`, those of the result by their places in [B,H,S,V]; None: these."""
    mask = found.mask
    kwargs |= {"keys": mask.keys, "no_key": mask.no_key, "causal": mask.causal, "window": mask.window}
    kwargs |= {"chosen": found.chosen, "added": found.added, "hides_added": found.hides_added, "of_parts": found.of_parts}
    kwargs |= {"nothing_seen": found.nothing_seen}
    with graph.inserting_before(node):
        made = graph.call_function(tacc_attention, args, kwargs)
        made.meta = dict(node.meta)
        result = made
        if order is not None and order != sorted(order):
            made.meta["val"] = node.meta["val"].permute([order.index(d) for d in range(len(order))])
            result = called(graph, torch.ops.aten.permute.default, made, order)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _rewrite_sdpa(graph: Graph, node: Node, masks: _Masks) -> int:
    names = ("q", "k", "v", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, node.args)), **node.kwargs}
    q, k, v = node.args[:3]
    rank = node.meta["val"].dim()
    if any(x.meta["val"].dim() != rank for x in (q, k, v)):
        return 0  # the row has it, with the mask as it is
    found = _Masking(Mask(causal=bool(given.get("is_causal", False))))
    if (node_mask := given.get("attn_mask")) is not None:
        is_added = node_mask.meta["val"].is_floating_point()
        scores = Scores(added=[node_mask]) if is_added else Scores(mask=node_mask, filled=-math.inf)
        made = _masking(graph, scores, (*q.meta["val"].shape[:-1], k.meta["val"].shape[-2]), node, masks)
        if made is None or found.mask.causal:
            return 0
        found = made
    _replace(graph, node, (q, k, v), found, dropout=float(given.get("dropout_p", 0.0)), scale=given.get("scale"))
    return 1


def _rewrite_softmax(graph: Graph, node: Node, masks: _Masks) -> int:
    rank = node.meta["val"].dim()
    if node.args[1] not in (-1, rank - 1) or rank not in (3, 4, 5):
        return 0
    scores = scores_of(node.args[0])
    if scores.product is None:
        return 0
    probabilities, dropout = node, 0.0
    while (user := only_user(probabilities)) is not None and not is_op(user, "matmul", "bmm", "einsum"):
        if is_op(user, "dropout", "native_dropout"):
            if dropout:
                return 0
            dropout = float(user.args[1]) if user.args[2] else 0.0
        elif not (is_op(user, "_to_copy", "clone", "to", "contiguous") or getattr(user.target, "__name__", "") == "getitem"):
            return 0
        if isinstance(user.meta["val"], torch.Tensor) and not user.meta["val"].is_floating_point():
            return 0
        probabilities = user
    values = None if user is None else product_of(user, probabilities)
    if values is None:
        return 0
    found = _masking(graph, scores, tuple(node.meta["val"].shape), node, masks)
    if found is None:
        return 0
    q, k = scores.product.put(graph, values.node)
    with graph.inserting_before(values.node):
        for op, factor in scores.factors:
            q = called(graph, op, q, factor)
    _, v = values.put(graph, values.node)
    if any(x.meta["val"].dim() != rank for x in (q, k, v)) or not _is_product(q, k, v, node.meta["val"].shape, found.of_parts is not None):
        return 0
    _replace(
        graph, values.node, (q, k, v), found, values.result_dims, dropout=dropout, scale=scores.scale, softcap=scores.softcap, transposed_keys=True
    )
    return 1


def _is_product(q: Node, k: Node, v: Node, scores: tuple[Any, ...], of_all: bool) -> bool:
    """Whether q [...,S,D], k [...,D,T], v [...,T,V] make scores of that shape. What is added may have more samples, unless `of_all` or where heads are theirs."""
    q_dims, k_dims, v_dims, wanted = ([str(d) for d in dims] for dims in (q.meta["val"].shape, k.meta["val"].shape, v.meta["val"].shape, scores))
    if q_dims[-1] != k_dims[-2] or k_dims[-1] != v_dims[-2]:
        return False  # an einsum repeats dims of 1
    made = [a if b == "1" else b for a, b in zip(q_dims[:-2], k_dims[:-2])] + [q_dims[-2], k_dims[-1]]
    return made == wanted if of_all or len(wanted) == 3 else made[1:] == wanted[1:]


def _masking(graph: Graph, scores: Scores, shape: tuple[Any, ...], place: Node, masks: _Masks) -> _Masking | None:
    """What the op is told of the masks of scores of that shape; None: it cannot be told. Nodes that it takes are made before `place`."""
    found = _Masking(filled=None if scores.filled == -math.inf else scores.filled)
    parts: list[Node] = []
    of_parts = list(scores.of_parts)
    for part in (part for node in scores.added for part in _summands(node, shape)):
        # (Of scores of five dims PyTorch aligns such a mask with the second.)
        repeated = repeated_parts(part) if len(shape) == 4 and str(part.meta["val"].shape[0]) == str(shape[0]) else None
        (parts if repeated is None else of_parts).append(part if repeated is None else repeated)
    if not all(_is_spread(part, shape) and part.meta["val"].is_floating_point() for part in parts):
        return None
    # Numbers that hide keys add up: what a query sees that sees no key depends on all of them.
    hiding = [part for part in parts if not masks.is_trained(part) or _hidden(part, masks) is not None]
    biases = [part for part in parts if part not in hiding]
    if of_parts:
        if scores.filled is not None or len({node.meta["val"].shape[-4] for node in of_parts}) != 1:
            return None
        biases, known = parts, True
    elif scores.filled is not None:
        assert scores.mask is not None
        if hiding and found.filled is not None:
            return None
        known, biases = _seen(graph, scores.mask, scores.hides, found, masks, shape), parts
    elif len(hiding) == 1 and (apart := _hidden(hiding[0], masks)) is not None:
        known = _seen(graph, apart.mask, apart.hides, found, masks, shape)
        found.mask = replace(found.mask, is_finite=apart.number != -math.inf)
        found.hides_added = True
        biases.append(apart.bias)
    elif len(hiding) == 1 and (mask := masks.of(hiding[0], len(shape))) is not None:
        found.mask, known = mask, True
    else:
        biases, known = scores.added, True
    if not known:
        return None
    with graph.inserting_before(place):
        found.added = _sum(graph, biases)
        found.of_parts = _sum(graph, [called(graph, torch.ops.aten.squeeze.dim, x, 0) if x.meta["val"].dim() == 5 else x for x in of_parts])
    return found


def _sum(graph: Graph, nodes: list[Node]) -> Node | None:
    return functools.reduce(lambda a, b: called(graph, torch.ops.aten.add.Tensor, a, b), nodes) if nodes else None


def _seen(graph: Graph, node: Node, hides: bool, found: _Masking, masks: _Masks, shape: tuple[Any, ...]) -> bool:
    """Tells of a bool node where keys are seen, or hidden; whether it can be told."""
    if hides:
        with graph.inserting_after(node):
            node = called(graph, torch.ops.aten.logical_not.default, node)
    if (mask := masks.of(node, len(shape))) is not None:
        found.mask = mask
    else:
        found.chosen = node
    return mask is not None or _is_spread(node, shape)


@dataclass
class _HiddenBias:
    """A bias, in whose place a number stands where keys are hidden."""

    bias: Node
    mask: Node
    hides: bool
    number: float


def _hidden(node: Node, masks: _Masks) -> _HiddenBias | None:
    node = strip(node)
    while is_op(node, "unsqueeze") and node.args[1] == 0:
        node = strip(node.args[0])
    found = None
    if is_op(node, "where") and isinstance(node.args[1], Node):
        found = _HiddenBias(node.args[1], node.args[0], False, scalar(node.args[2]) or 0.0)
    elif is_op(node, "masked_fill"):
        found = _HiddenBias(node.args[0], node.args[1], True, scalar(node.args[2]) or 0.0)
    # Beside such a number a score says nothing.
    is_one = found is not None and found.number <= OUTWEIGHS and masks.is_trained(found.bias) and not masks.is_trained(found.mask)
    return found if is_one else None


def _summands(node: Node, shape: tuple[Any, ...]) -> list[Node]:
    parts = strip(node)
    if not is_op(parts, "add") or len(parts.args) != 2 or parts.kwargs or not all(isinstance(x, Node) and _is_spread(x, shape) for x in parts.args):
        return [node]
    return [part for x in parts.args for part in _summands(x, shape)]


def _is_spread(x: Node, shape: tuple[Any, ...]) -> bool:
    """Whether each of its dims, from the last on, is one of `shape`, or 1."""
    own = x.meta["val"].shape
    return len(own) <= len(shape) and all(a == 1 or str(a) == str(b) for a, b in zip(own[::-1], shape[::-1]))
