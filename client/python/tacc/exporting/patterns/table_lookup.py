"""Finds a parameter whose rows are taken by fixed numbers, table[index], as tables of relative positions: it becomes PyTorch's embedding."""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from tacc.exporting.patterns.constant_values import ConstantValues
from tacc.exporting.patterns.matching import is_op


def find_table_lookups(graph: Graph, values: ConstantValues) -> None:
    for node in list(graph.nodes):
        if not is_op(node, "index") or not _is_of_rows(node):
            continue
        table, (numbers,) = node.args
        if values.data_of(numbers) or table.meta["val"].dim() != 2 or not values.data_of(table) or _least(numbers, values) < 0:
            continue
        with graph.inserting_before(node):
            made = graph.call_function(torch.ops.aten.embedding.default, (table, numbers))
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
    graph.eliminate_dead_code()


def _is_of_rows(node: Node) -> bool:
    """Whether whole numbers index the first dim alone."""
    indices = node.args[1]
    return len(indices) == 1 and isinstance(indices[0], Node) and indices[0].meta["val"].dtype in (torch.int32, torch.int64)


def _least(numbers: Node, values: ConstantValues) -> int:
    return int(values.evaluate(numbers, 2, 5).min())
