"""Mixtures of experts in the form that the families have: samples, tokens and a token's slots stay dims of their own, and the sum over the slots of a token
is that of the experts' product. So tokens can be sent to the ranks that have their experts."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tacc.exporting.extents import BATCH, SEQUENCE, Extent
from tacc.exporting.graph_text import Graph, Node, Value

_POINTWISE = (
    "add", "add_scalar", "cast", "clamp", "compare", "div", "gelu", "maximum", "minimum", "mul", "neg", "reciprocal", "relu", "scale", "select", "sigmoid",
    "silu", "square", "sub", "swiglu", "tanh",
)
_OF_LAST_DIM = ("rms_norm", "softmax", "top_k")
_ALONG_DIM = ("concat", "cumsum", "flip", "gather", "pad", "reduce_max", "reduce_sum", "scatter_add", "slice")
_OTHER = ("broadcast", "einsum", "mul_rows")


def form_mixtures(graph: Graph) -> None:
    """Changes the graph's nodes in place."""
    if any(node.op == "expert_matmul" for node in graph.nodes):
        _Rows(graph).keep_apart()
        graph.drop_unused()
        _sum_slots(graph)
        graph.drop_unused()


class _Rows:
    """Computes what is computed of each row [B*S,...] of samples and tokens that were merged before they are merged."""

    def __init__(self, graph: Graph):
        self._graph = graph
        self._apart: dict[Value, Value] = {}  # a merged value -> the same, not merged
        self._same: dict[Value, Value] = {}

    def keep_apart(self) -> None:
        nodes, self._graph.nodes = self._graph.nodes, []
        for node in nodes:
            node.operands = [self._same.get(v, v) for v in node.operands]
            self._graph.module, self._graph.source = node.module, node.source
            if node.op == "reshape":
                self._reshape(node)
            elif not self._moved(node):
                self._graph.nodes.append(node)
        self._graph.module = self._graph.source = ""

    def _reshape(self, node: Node) -> None:
        result = node.results[0]
        x = self._apart.get(node.operands[0], node.operands[0])
        if x.dims == result.dims:
            self._same[result] = x
            return
        node.operands = [x]
        self._graph.nodes.append(node)
        behind = x.rank - result.rank + 1
        if x.dims[:2] == (BATCH, SEQUENCE) and behind >= 2 and x.dims[behind:] == result.dims[1:]:
            self._apart[result] = x

    def _moved(self, node: Node) -> bool:
        """Whether it was done: with a node on values that are not merged, whose results are merged for who reads them so."""
        merged = next((v for v in node.operands if v in self._apart), None)
        if merged is None or node.op not in (*_POINTWISE, *_OF_LAST_DIM, *_ALONG_DIM, *_OTHER):
            return False
        apart = self._apart[merged]
        lead, rows = apart.dims[: apart.rank - merged.rank + 1], merged.dims[0]
        is_along_rows = node.op in _OF_LAST_DIM and merged.rank == 1
        if is_along_rows or any(r.rank == 0 or r.dims[0] != rows for r in node.results) or (attrs := _attrs(node, lead)) is None:
            return False
        rank = merged.rank
        operands = []
        for i, value in enumerate(node.operands):
            has_rows = value.rank == rank or node.op == "mul_rows" and i == 1
            if node.op == "einsum" and i == 1:
                has_rows = False
            if has_rows and value.dims[:1] != (rows,):
                return False
            operands.append(self._apart_of(value, lead) if has_rows else value)
        types = [(r.dtype, (*lead, *r.dims[1:])) for r in node.results]
        for old, new in zip(node.results, self._graph.add(node.op, operands, types, **attrs)):
            again = Node("reshape", "", [new], {"shape": list(old.dims)}, [old], node.module, node.source)
            old.node = again
            self._graph.nodes.append(again)
            self._apart[old] = new
        return True

    def _apart_of(self, value: Value, lead: tuple[Extent, ...]) -> Value:
        found = self._apart.get(value)
        if found is not None and found.dims == (*lead, *value.dims[1:]):
            return found
        dims = (*lead, *value.dims[1:])
        return self._graph.add("reshape", [value], [(value.dtype, dims)], shape=list(dims))[0]


def _attrs(node: Node, lead: tuple[Extent, ...]) -> dict[str, Any] | None:
    """The node's attributes where its first dim is several; None if it is not done row by row."""
    attrs, more = dict(node.attrs), len(lead) - 1
    if node.op in _ALONG_DIM:
        dims = [attrs["dim"]] if "dim" in attrs else attrs["dims"]
        if 0 in dims:
            return None
        dims = [d + more for d in dims]
        attrs.update({"dim": dims[0]} if "dim" in attrs else {"dims": dims})
    elif node.op == "broadcast":
        if attrs["dims"][:1] != [0]:
            return None
        attrs["dims"] = [*range(more + 1), *(d + more for d in attrs["dims"][1:])]
        attrs["shape"] = [*lead, *attrs["shape"][1:]]
    elif node.op == "einsum":
        left, result = attrs["spec"].split("->")
        first, second = left.split(",")
        if result[:1] != first[0] or first[0] in second:
            return None
        letters = "".join(c for c in "abcdefghijlopqrstuvwxyz" if c not in attrs["spec"])[: len(lead)]
        attrs["spec"] = f"{letters}{first[1:]},{second}->{letters}{result[1:]}"
    return attrs


def _sum_slots(graph: Graph) -> None:
    """A sum over the slots of each token, of rows that an expert made and that are weighted, is the product's: its rows are weighted before it."""
    users: dict[Value, int] = defaultdict(int)
    for node in graph.nodes:
        for value in node.operands:
            users[value] += 1
    nodes, graph.nodes = graph.nodes, []
    for node in nodes:
        if not _sums_slots(node, users):
            graph.nodes.append(node)
            continue
        made = node.operands[0].node
        weights = made.operands[1] if made.op == "mul_rows" else None
        product = made.operands[0].node if weights is not None else made
        x, ids, matrices = product.operands
        graph.module, graph.source = product.module, product.source
        if weights is not None:
            x = graph.add("mul_rows", [x, weights], [("f32", x.dims)])[0]
        graph.nodes.append(Node("expert_matmul", "", [x, ids, matrices], {**product.attrs, "sum_slots": True}, node.results, product.module, product.source))
        node.results[0].node = graph.nodes[-1]
    graph.module = graph.source = ""


def _sums_slots(node: Node, users: dict[Value, int]) -> bool:
    if node.op != "reduce_sum" or node.attrs["dims"] != [2] or node.operands[0].rank != 4 or users[node.operands[0]] != 1:
        return False
    made = node.operands[0].node
    if made.op == "mul_rows":
        made = made.operands[0].node
        return made.op == "expert_matmul" and made.operands[0].rank == 4 and users[made.results[0]] == 1
    return made.op == "expert_matmul"
