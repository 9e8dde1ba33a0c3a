"""Finds floor(rand + p), which is 1 with the probability p, as models drop the layers of single samples: it becomes PyTorch's bernoulli."""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from tacc.exporting.patterns.matching import is_op, scalar


def find_stochastic_depth(graph: Graph) -> None:
    for node in list(graph.nodes):
        if (found := _drawn(node)) is None:
            continue
        drawn, probability = found
        with graph.inserting_before(node):
            empty = graph.call_function(torch.ops.aten.empty.memory_format, (drawn.args[0],))
            made = graph.call_function(torch.ops.aten.bernoulli.p, (empty, probability))
        empty.meta, made.meta = dict(drawn.meta), dict(node.meta)
        node.replace_all_uses_with(made)
        for unused in (node, node.args[0], drawn):  # PyTorch itself keeps what draws
            if not unused.users:
                graph.erase_node(unused)


def _drawn(node: Node) -> tuple[Node, float] | None:
    """The node that draws, and p."""
    if not is_op(node, "floor") or not is_op(total := node.args[0], "add") or len(total.args) != 2:
        return None
    for drawn, summand in (total.args, total.args[::-1]):
        probability = scalar(summand)
        if is_op(drawn, "rand") and probability is not None and 0 <= probability <= 1:
            return drawn, probability
    return None
