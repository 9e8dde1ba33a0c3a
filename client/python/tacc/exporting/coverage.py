"""Which part of a graph's computation are ops that can be split over ranks, and which are `aten`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tacc.exporting.extents import at, product
from tacc.exporting.results import Coverage

if TYPE_CHECKING:
    from tacc.exporting.graph_text import Graph, Node

_LEAVES = ("input", "param", "constant", "iota", "output")
_FREE = ("reshape",)


def coverage_of(graph: Graph, batch: int, sequence: int) -> Coverage:
    """Counts for so many samples and tokens."""
    flops = {node: _flops(node, batch, sequence) for node in graph.nodes}
    ops = Counter(node.op for node in graph.nodes if node.op not in _LEAVES)
    return Coverage(dict(sorted(ops.items())), sum(flops.values()), sum(f for node, f in flops.items() if node.op == "aten"))


def _flops(node: Node, batch: int, sequence: int) -> float:
    def elements(i: int) -> int:
        return at(product(node.results[i].dims), batch, sequence)

    if node.op in _LEAVES + _FREE or not node.results:
        return 0.0
    if node.op == "einsum":
        left, _ = node.attrs["spec"].split("->")
        extents = dict(zip(left.replace(",", ""), (*node.operands[0].dims, *node.operands[1].dims)))
        return 2.0 * at(product(list(extents.values())), batch, sequence)
    if node.op == "expert_matmul":
        return 2.0 * elements(0) * at(node.operands[0].dims[-1], batch, sequence)
    if node.op.startswith("convolution"):  # each window of the smaller image with each element of its kernel and channel of its group
        windows = node.operands[0] if node.op == "convolution_transposed" else node.results[0]
        return 2.0 * at(product([*windows.dims, *node.operands[1].dims[1:]]), batch, sequence)
    if node.op == "attention":
        q, k, v = (o.dims for o in node.operands[:3])
        return 2.0 * at(product([q[0], q[1], q[2], k[1], q[3] + v[3]]), batch, sequence)
    return float(sum(elements(i) for i in range(len(node.results))))
