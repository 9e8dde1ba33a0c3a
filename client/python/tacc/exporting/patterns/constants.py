"""Puts what depends on no data, and no row can make, in its place as a value: all alike, an index, or a table of fixed size."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from tacc.exporting.extents import InexpressibleError
from tacc.exporting.patterns.constant_values import ConstantValues

UNIFORM, INDEX, TABLE = "tacc_uniform", "tacc_index", "tacc_table"
_MAX_ELEMENTS = 1 << 24


def tacc_uniform(*_: Any) -> None:
    """The target of nodes that are VALUE everywhere: (VALUE)."""


def tacc_index(*_: Any) -> None:
    """The target of nodes that are START + STEP * i along DIM: (DIM, START, STEP)."""


def tacc_table(*_: Any) -> None:
    """The target of nodes that are a tensor: (TENSOR)."""


def fold_constants(graph: Graph, values: ConstantValues, has_row: Callable[[Node], bool]) -> None:
    """Replaces the last nodes that depend on no data, of those computations in which a node has no row, or whole numbers are stored ones."""
    needs_folding: dict[Node, bool] = {}
    for node in graph.nodes:
        is_constant = node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor) and not values.data_of(node)
        is_stored = any(_has_whole_numbers(values.constant(n)) for n in node.all_input_nodes)
        needs_folding[node] = is_constant and (not has_row(node) or is_stored or any(needs_folding[n] for n in node.all_input_nodes))
    last = [n for n in graph.nodes if needs_folding[n] and any(not needs_folding[user] for user in n.users)]
    found = [(node, _value_of(node, values)) for node in last]  # all of them before the graph changes
    for node, value in found:
        if value is None:
            continue
        with graph.inserting_before(node):
            made = graph.call_function(*value)
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
    graph.eliminate_dead_code()


def _has_whole_numbers(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and not tensor.is_floating_point()


def _value_of(node: Node, values: ConstantValues) -> tuple[Any, tuple[Any, ...]] | None:
    """The target and the arguments of a node that says it."""
    sizes = [(2, 5), (3, 8)]
    try:
        if lengths := values.revealing(node).last:
            sizes.append((2, _longest(node, values, *lengths)))
        found = [values.evaluate(node, batch, sequence) for batch, sequence in sizes]
    except (InexpressibleError, NotImplementedError, RuntimeError, IndexError):
        return None
    return _uniform(found) or _index(found) or _table(found)


def _longest(node: Node, values: ConstantValues, length: int, of_tables: int) -> int:
    """The length that shows most of the node and can be evaluated."""
    while math.prod(values.shape(node, 2, length)) > _MAX_ELEMENTS:
        length //= 2
    try:
        values.evaluate(node, 2, length)
    except (RuntimeError, IndexError):
        return min(of_tables, length)
    return length


def _uniform(found: list[torch.Tensor]) -> tuple[Any, tuple[Any, ...]] | None:
    if any(t.numel() == 0 for t in found):
        return None
    value = found[0].flatten()[0]
    return (tacc_uniform, (value.item(),)) if all(bool((t == value).all()) for t in found) else None


def _index(found: list[torch.Tensor]) -> tuple[Any, tuple[Any, ...]] | None:
    if found[0].is_floating_point() or found[0].is_complex() or found[0].dtype == torch.bool:
        return None
    for dim in range(found[0].dim()):
        if found[0].shape[dim] < 2:
            continue
        first, second = (int(found[0].select(dim, i).flatten()[0]) for i in (0, 1))
        step = second - first
        if all(torch.equal(t, _strided(t, dim, first, step)) for t in found):
            return tacc_index, (dim, first, step)
    return None


def _strided(like: torch.Tensor, dim: int, first: int, step: int) -> torch.Tensor:
    along = (first + step * torch.arange(like.shape[dim])).to(like.dtype)
    return along.reshape([-1 if d == dim else 1 for d in range(like.dim())]).expand(like.shape)


def _table(found: list[torch.Tensor]) -> tuple[Any, tuple[Any, ...]] | None:
    if found[0].numel() > _MAX_ELEMENTS or any(t.shape != found[0].shape or not torch.equal(t, found[0]) for t in found):
        return None
    return tacc_table, (found[0],)
