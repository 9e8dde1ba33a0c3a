"""Finds rotary position embeddings where a model spells them: x * cos + rotate_half(x) * sin, of tables that depend on the position alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from tacc.exporting.extents import InexpressibleError
from tacc.exporting.patterns.constant_values import ConstantValues
from tacc.exporting.patterns.matching import is_op, strip

ROTARY = "tacc_rotary"
_LENGTH = 33  # of the tables that are compared
_EXACT = 1e-5  # of angles up to 33, in fp32


def tacc_rotary(*_: Any, **__: Any) -> None:
    """The target of nodes that stand for it: (x, DIM of the sequence, FREQUENCIES, SCALE)."""


@dataclass(frozen=True)
class _Tables:
    dim: int  # of the sequence, in x
    frequencies: tuple[float, ...]
    scale: float


def find_rotary(graph: Graph, values: ConstantValues) -> int:
    """Puts a tacc_rotary in the place of each that it finds; returns how many."""
    tables: dict[tuple[Node, Node], _Tables | None] = {}
    count = 0
    for node in list(graph.nodes):
        if (found := _turned(node)) is None:
            continue
        x, cos, sin = found
        if (cos, sin) not in tables:
            tables[cos, sin] = _tables(cos, sin, values)
        if (table := tables[cos, sin]) is None or x.meta["val"].dim() != 4:
            continue
        with graph.inserting_before(node):
            made = graph.call_function(tacc_rotary, (x, table.dim, list(table.frequencies), table.scale))
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        count += 1
    graph.eliminate_dead_code()
    return count


def _turned(node: Node) -> tuple[Node, Node, Node] | None:
    """x, cos and sin of x * cos + rotate_half(x) * sin."""
    if not is_op(node, "add") or len(node.all_input_nodes) != 2 or node.kwargs:
        return None
    for plain, turned in (node.args, node.args[::-1]):
        if not (is_op(plain, "mul") and is_op(turned, "mul")):
            continue
        for half, sin in (turned.args, turned.args[::-1]):
            if (x := _rotated(half)) is None:
                continue
            cos = plain.args[1] if strip(plain.args[0]) is x else plain.args[0] if strip(plain.args[1]) is x else None
            if isinstance(cos, Node) and isinstance(sin, Node):
                return x, cos, sin
    return None


def _rotated(node: Any) -> Node | None:
    """x of cat(-x[..., D/2:], x[..., :D/2])."""
    node = strip(node)
    if not is_op(node, "cat") or len(node.args[0]) != 2 or len(node.args) < 2:
        return None
    negated, first = node.args[0]
    rank, width = node.meta["val"].dim(), node.meta["val"].shape[-1]
    if node.args[1] not in (-1, rank - 1) or not is_op(negated, "neg"):
        return None
    second = negated.args[0]
    if not (_is_half(first, rank, 0, width) and _is_half(second, rank, width // 2, width)):
        return None
    return strip(first.args[0]) if strip(first.args[0]) is strip(second.args[0]) else None


def _is_half(node: Any, rank: int, start: int, width: int) -> bool:
    is_last = is_op(node, "slice") and len(node.args) >= 3 and node.args[1] in (-1, rank - 1)
    return is_last and node.args[2] == start and node.meta["val"].shape[-1] * 2 == width


def _tables(cos: Node, sin: Node, values: ConstantValues) -> _Tables | None:
    if values.data_of(cos) or values.data_of(sin):
        return None
    try:
        tables = [values.evaluate(n, 2, _LENGTH).double() for n in (cos, sin)]
    except (InexpressibleError, NotImplementedError, RuntimeError):
        return None
    shape = list(tables[0].shape)
    if len(shape) != 4 or shape != list(tables[1].shape) or shape[:3].count(_LENGTH) != 1 or sorted(shape[:3])[:2] not in ([1, 1], [1, 2]):
        return None
    dim = shape[:3].index(_LENGTH)
    c, s = (t.movedim(dim, 0).reshape(_LENGTH, -1, shape[-1])[:, 0] for t in tables)
    if dim == 0 or any(not torch.equal(t, t[:1].expand_as(t)) for t in tables):  # not the same for all samples
        return None
    scale = float(c[0, 0])
    angles = torch.atan2(s[1], c[1])
    half = shape[-1] // 2
    if (frequencies := _known(angles[:half], cos, values)) is None:
        return None
    position = torch.arange(_LENGTH, dtype=torch.float64)[:, None] * torch.cat([frequencies, frequencies])
    fits = ((c - scale * position.cos()).abs().max(), (s - scale * position.sin()).abs().max())
    return _Tables(dim, tuple(frequencies.tolist()), scale) if max(fits) <= _EXACT * abs(scale) else None


def _known(angles: torch.Tensor, node: Node, values: ConstantValues) -> torch.Tensor | None:
    """The buffer that the tables are made of: angles of tables are too inexact for positions that are far away."""
    stack, seen = [node], set()
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        stack += n.all_input_nodes
        tensor = values.constant(n)
        if tensor is not None and tensor.is_floating_point() and tensor.numel() == angles.numel():
            found = tensor.detach().double().flatten()
            if bool(((found - angles).abs() <= _EXACT).all()):
                return found
    return None
