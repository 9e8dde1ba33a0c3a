"""softmax's operand, taken apart: the product of queries and keys, and what was done to it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from tacc.exporting.patterns.masks import HIDDEN
from tacc.exporting.patterns.matching import is_op, scalar, strip


@dataclass
class Scores:
    """What the product of queries and keys became before the softmax."""

    product: Product | None = None
    scale: float = 1.0
    factors: list[tuple[Any, Node]] = field(default_factory=list)  # ops, mul or div, and numbers [...,1,1], as of heads
    softcap: float = 0.0
    added: list[Node] = field(default_factory=list)
    of_parts: list[Node] = field(default_factory=list)  # [1,P,H,S,T], [P,H,S,T] or dims of 1, of scores [B*P,H,S,T]
    mask: Node | None = None  # which says where `filled` stands in the place of a score
    hides: bool = False  # the mask is true there
    filled: float | None = None


@dataclass
class Product:
    """Of queries and keys, or of probabilities and values: which two, as torch.matmul takes them, once `put` into the graph."""

    node: Node
    left: Node
    right: Node
    # Of an einsum: the dims of its operands in matmul's order, None for a dim of 1 that one lacks; and those of its result.
    left_dims: list[int | None] | None = None
    right_dims: list[int | None] | None = None
    result_dims: list[int] | None = None

    def put(self, graph: Graph, before: Node) -> tuple[Node, Node]:
        if self.left_dims is None or self.right_dims is None:
            return self.left, self.right
        with graph.inserting_before(before):
            return _arranged(graph, self.left, self.left_dims), _arranged(graph, self.right, self.right_dims)


def _arranged(graph: Graph, x: Node, dims: list[int | None]) -> Node:
    order = [d for d in dims if d is not None]
    x = called(graph, torch.ops.aten.permute.default, x, order)
    for i, d in enumerate(dims):
        if d is None:
            x = called(graph, torch.ops.aten.unsqueeze.default, x, i)
    return x


def called(graph: Graph, op: Any, x: Node, *more: Any) -> Node:
    made = graph.call_function(op, (x, *more))
    made.meta = {**x.meta, "val": op(x.meta["val"], *(argument.meta["val"] if isinstance(argument, Node) else argument for argument in more))}
    return made


def product_of(node: Node, left: Node | None = None) -> Product | None:
    """Of torch.matmul, torch.bmm, or an einsum that is one but for the order of dims; with `left`, which is its left operand."""
    if is_op(node, "matmul", "bmm"):
        return Product(node, *node.args[-2:]) if left in (None, node.args[0]) else None
    if not is_op(node, "einsum") or len(node.args[1]) != 2 or "." in node.args[0] or "->" not in node.args[0]:
        return None
    parts, result = node.args[0].replace(" ", "").split("->")
    letters, operands = parts.split(","), list(node.args[1])
    if len(result) not in (4, 5) or any(len(set(part)) != len(part) for part in (*letters, result)):
        return None
    if left is None:  # [...,S,T]: the last is of keys
        *outer, row, column = result
        at = 0 if column in letters[1] else 1
    else:  # the probabilities [...,S,T], whose letters have this order
        if left not in operands or operands[0] is operands[1]:
            return None
        at = operands.index(left)
        *outer, row, inner = letters[at]
        rest = [letter for letter in result if letter not in letters[at]]
        if len(rest) != 1:
            return None
        column = rest[0]
    own, other = letters[at], letters[1 - at]
    inner_letters = (set(own) & set(other)) - set(result)
    if len(inner_letters) != 1 or set(own) | set(other) != {*outer, row, column, *inner_letters} or set(result) != {*outer, row, column}:
        return None
    [inner] = inner_letters
    if row not in own or column in own or column not in other or row in other:
        return None
    left_dims = [own.find(letter) for letter in (*outer, row, inner)]
    right_dims = [other.find(letter) for letter in (*outer, inner, column)]
    return Product(
        node,
        operands[at],
        operands[1 - at],
        [d if d >= 0 else None for d in left_dims],
        [d if d >= 0 else None for d in right_dims],
        [[*outer, row, column].index(letter) for letter in result],
    )


def scores_of(node: Node) -> Scores:
    """From the softmax inward: a mask, what is added, a soft cap, a scale, the product. All but that may be missing; without it, it is no attention."""
    found = Scores()
    node = strip(node)
    if is_op(node, "masked_fill") and (scalar(node.args[2]) or 0.0) <= HIDDEN:
        found.mask, found.hides, found.filled, node = node.args[1], True, scalar(node.args[2]), strip(node.args[0])
    elif is_op(node, "where") and (scalar(node.args[2]) or 0.0) <= HIDDEN:
        found.mask, found.filled, node = node.args[0], scalar(node.args[2]), strip(node.args[1])
    while True:
        if (apart := _added_to_parts(node)) is not None:
            node = strip(apart[0])
            found.of_parts += apart[1]
            continue
        if not is_op(node, "add") or len(node.args) != 2 or node.kwargs or not isinstance(node.args[1], Node) or node.args[1].meta["val"].dim() == 0:
            break
        first_is_mask = _is_mask_like(node.args[0], node) or not _may_be_scores(node.args[0])
        mask, node = node.args if first_is_mask else node.args[::-1]
        found.added.append(mask)
        node = strip(node)
    node, found.softcap = _uncapped(strip(node))
    while True:
        if (factor := _factor(node)) is not None:
            found.scale *= factor
            node = strip(node.args[0])
        elif (of_heads := _factor_of_heads(node)) is not None:
            node = strip(of_heads[0])
            found.factors.append(of_heads[1])
        else:
            break
    if is_op(node, "baddbmm") and not node.kwargs and found.scale == 1.0 and not found.factors and not found.softcap:
        found.added.append(node.args[0])
        found.product = Product(node, *node.args[1:])
        return found
    found.product = product_of(node)
    return found


def _may_be_scores(node: Node) -> bool:
    return is_op(strip(node), "matmul", "bmm", "baddbmm", "einsum", "mul", "div", "add") or _added_to_parts(strip(node)) is not None


def _factor(node: Node) -> float | None:
    """What a product or a quotient with a number multiplies by."""
    if not is_op(node, "mul", "div") or node.kwargs or (number := scalar(node.args[1])) is None:
        return None
    if is_op(node, "mul"):
        return number
    return 1.0 / number if number else None


def _factor_of_heads(node: Node) -> tuple[Node, tuple[Any, Node]] | None:
    """x of x * f or x / f, and op and f, where all scores of a head have one number of f: a temperature, as one that is trained."""
    if not is_op(node, "mul", "div") or len(node.args) != 2 or node.kwargs:
        return None
    rank = node.meta["val"].dim()
    for x, f in (node.args, node.args[::-1])[: 2 if is_op(node, "mul") else 1]:
        if not (_is_tensor(x) and _is_tensor(f)) or not f.meta["val"].is_floating_point() or x.meta["val"].dim() != rank:
            continue
        if (own := f.meta["val"].shape) == () or (2 <= len(own) <= rank and tuple(own[-2:]) == (1, 1)):
            return x, (torch.ops.aten.mul.Tensor if is_op(node, "mul") else torch.ops.aten.div.Tensor, f)
    return None


def _is_tensor(x: Any) -> bool:
    """Of floating or whole numbers, and no size."""
    return isinstance(x, Node) and isinstance(x.meta["val"], torch.Tensor)


def _uncapped(node: Node) -> tuple[Node, float]:
    """s and cap of cap * tanh(s / cap); the node itself and 0 where it is none."""
    if (cap := _factor(node)) is None or not is_op(inner := strip(node.args[0]), "tanh"):
        return node, 0.0
    divided = strip(inner.args[0])
    if (factor := _factor(divided)) is None or not math.isclose(factor * cap, 1.0, rel_tol=1e-12):
        return node, 0.0
    return strip(divided.args[0]), abs(cap)  # which is even in it


def _is_mask_like(node: Node, total: Node) -> bool:
    """Whether it is the summand that is repeated over heads or samples."""
    return tuple(node.meta["val"].shape) != tuple(total.meta["val"].shape)


def _is_reshape(node: Node, dims: int) -> bool:
    """Whether it is one of a tensor of so many dims, of which the last three stay."""
    if not is_op(node, "view", "reshape", "_unsafe_view", "unflatten", "flatten"):
        return False
    x, y = node.args[0].meta["val"], node.meta["val"]
    return x.dim() == dims and str(list(x.shape[-3:])) == str(list(y.shape[-3:]))


def _is_of_parts(node: Node) -> bool:
    """Whether it is [1,P,H,S,T] or [P,H,S,T]: the same for all that have P parts."""
    val = node.meta["val"]
    return _is_tensor(node) and val.is_floating_point() and (val.dim() == 4 or (val.dim() == 5 and val.shape[0] == 1)) and isinstance(val.shape[-4], int) and val.shape[-4] > 1


def repeated_parts(node: Node) -> Node | None:
    """m of reshape(expand(m), [B*P,H,S,T]), m [1,P,H,S,T] or dims of 1."""
    node = strip(node)
    if not _is_reshape(node, 5) or node.meta["val"].dim() != 4:
        return None
    spread = strip(node.args[0])
    if not is_op(spread, "expand") or not _is_of_parts(m := spread.args[0]) or str(m.meta["val"].shape[-4]) != str(spread.meta["val"].shape[1]):
        return None
    return m


def _added_to_parts(node: Node) -> tuple[Node, list[Node]] | None:
    """x and all m of reshape(reshape(x, [B,P,H,S,T]) + m + ..., [B*P,H,S,T]), each m [P,H,S,T] or dims of 1, or [1,P,H,S,T]."""
    if not _is_reshape(node, 5):
        return None
    total, added = strip(node.args[0]), []
    parts = total.meta["val"].shape[1]
    while is_op(total, "add") and len(total.args) == 2 and not total.kwargs:
        masks = [x for x in total.args if isinstance(x, Node) and _is_of_parts(x) and str(x.meta["val"].shape[-4]) == str(parts)]
        if len(masks) != 1:
            return None
        added += masks
        total = strip(total.args[1 if total.args[0] is masks[0] else 0])
    if not added or not _is_reshape(total, 4) or str(total.args[0].meta["val"].shape) != str(node.meta["val"].shape):
        return None
    return total.args[0], added
