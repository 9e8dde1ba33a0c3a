"""Cuts weights whose product is cut at once, as one of queries, keys and values, into params of their own, each some rows of the tensor.

So each can be split over ranks by what it is. The compiler joins products again where that is faster.
"""

from __future__ import annotations

from collections import defaultdict

from tacc.exporting.graph_text import Graph, Node, Value


def split_fused(graph: Graph) -> None:
    """Changes the graph's nodes in place."""
    users: dict[Value, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        for value in node.operands:
            users[value].append(node)
    for node in list(graph.nodes):
        if node.op == "einsum" and _is_own(node.operands[1], 2, users):
            _split(graph, node, users)
        elif node.op == "expert_matmul" and _is_own(node.operands[2], 3, users) and "transposed" not in node.attrs:
            _split_experts(graph, node, users)


def _is_own(param: Value, rank: int, users: dict[Value, list[Node]]) -> bool:
    return param.node.op == "param" and param.rank == rank and len(users[param]) == 1


def _split(graph: Graph, product: Node, users: dict[Value, list[Node]]) -> None:
    x, weight = product.operands
    letters = product.attrs["spec"].split(",")[1].partition("->")[0]
    if letters not in ("nk", "kn"):
        return
    made, bias = product.results[0], None
    if len(users[made]) == 1 and (add := users[made][0]).op == "add" and add.operands[0] is made and _is_own(add.operands[1], 1, users):
        made, bias = add.results[0], add.operands[1]
    cuts = users[made]
    if len(cuts) < 2 or not _cover(cuts, made):
        return
    for cut in cuts:
        start, limit = cut.attrs["start"], cut.attrs["limit"]
        graph.module, graph.source = product.module, product.source
        begin = len(graph.nodes)
        part = _rows(graph, weight, letters.index("n"), start, limit)
        dims = (*made.dims[:-1], limit - start)
        value = graph.add("einsum", [x, part], [("f32", dims)], spec=product.attrs["spec"])[0]
        if bias is not None:
            value = graph.add("add", [value, _rows(graph, bias, 0, start, limit)], [("f32", dims)])[0]
        _put_in_place(graph, begin, cut, value, users)


def _split_experts(graph: Graph, product: Node, users: dict[Value, list[Node]]) -> None:
    """Of each expert [out,in] the rows that a cut takes."""
    made, (x, ids, matrices) = product.results[0], product.operands
    cuts = users[made]
    if len(cuts) < 2 or not _cover(cuts, made):
        return
    for cut in cuts:
        start, limit = cut.attrs["start"], cut.attrs["limit"]
        graph.module, graph.source = product.module, product.source
        begin = len(graph.nodes)
        part = _rows(graph, matrices, 1, start, limit)
        value = graph.add("expert_matmul", [x, ids, part], [("f32", (*made.dims[:-1], limit - start))], **product.attrs)[0]
        _put_in_place(graph, begin, cut, value, users)


def _put_in_place(graph: Graph, begin: int, cut: Node, value: Value, users: dict[Value, list[Node]]) -> None:
    """Moves the nodes since `begin` to where the cut stands, whose result `value` takes the place of."""
    added = graph.nodes[begin:]
    del graph.nodes[begin:]
    at = graph.nodes.index(cut)
    graph.nodes[at : at + 1] = added
    for user in users[cut.results[0]]:
        user.operands = [value if v is cut.results[0] else v for v in user.operands]


def _cover(cuts: list[Node], made: Value) -> bool:
    """Whether they are slices of the last dim, one behind the other, of all of it."""
    if any(cut.op != "slice" or cut.attrs["dim"] != made.rank - 1 for cut in cuts):
        return False
    ends = sorted((cut.attrs["start"], cut.attrs["limit"]) for cut in cuts)
    return ends[0][0] == 0 and ends[-1][1] == made.dims[-1] and all(a[1] == b[0] for a, b in zip(ends, ends[1:]))


def _rows(graph: Graph, param: Value, dim: int, start: int, limit: int) -> Value:
    """A param that is the rows [start, limit) of dim `dim` of this one."""
    dims = list(param.dims)
    dims[dim] = limit - start
    node = param.node
    symbol = f"{node.symbol}[{':,' if dim == 1 else ''}{start}:{limit}]"
    return graph.add("param", [], [("f32", dims)], symbol=symbol, name=param.name, module=node.module, **node.attrs)[0]
