"""Says of params what their dims are (axes=), by which tensor parallelism splits them: heads, the inner dim of an MLP, the vocabulary.

A weight whose product is cut into heads, or takes heads that were merged, gets a dim of its own for the heads; in the files it stays as it is.
"""

from __future__ import annotations

from collections import defaultdict

from tacc.exporting.graph_text import Graph, Node, Value, Word

_KEEPS_HEADS = ("rotary", "rms_norm", "layer_norm", "scale", "dropout")
_POINTWISE = ("gelu", "relu", "silu", "swiglu", "tanh", "sigmoid", "square", "mul", "add", "sub", "scale", "add_scalar", "clamp", "dropout", "mul_rows")
_KEEPS_CLASSES = ("reshape", "scale", "tanh", "cast")


def name_dims(graph: Graph) -> None:
    """Changes the graph's nodes in place."""
    names = _Names(graph)
    for node in list(graph.nodes):
        if node.op == "reshape":
            names.split_heads(node)
    for node in graph.nodes:
        if node.op == "einsum":
            names.merge_heads(node)
    for node in graph.nodes:
        if node.op == "einsum":
            names.mlp(node)
        elif node.op == "expert_matmul":
            names.experts(node)
        elif node.op == "embedding" and _is_looked_up(node.operands[1]):
            names.say(node.operands[0], "vocab", "embed")
        elif node.op == "cross_entropy":
            names.head(node.operands[0])
    for node in graph.nodes:
        if node.op == "expert_matmul":
            names.other_experts(node)


class _Names:
    def __init__(self, graph: Graph):
        self._graph = graph
        self._users: dict[Value, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            for value in node.operands:
                self._users[value].append(node)

    def say(self, param: Value, *axes: str) -> None:
        if param.node.op == "param" and "axes" not in param.node.attrs and len(axes) == param.rank:
            param.node.attrs["axes"] = [Word(axis) for axis in axes]

    def _only_user(self, value: Value) -> Node | None:
        users = self._users[value]
        return users[0] if len(users) == 1 else None

    def _is_own(self, param: Value, rank: int) -> bool:
        """A param with so many dims that one node alone reads."""
        return param.node.op == "param" and param.rank == rank and len(self._users[param]) == 1 and "stored" not in param.node.attrs

    def split_heads(self, node: Node) -> None:
        """reshape(x W^T + b) to [..., heads, head dim], which attention takes: W [heads, head dim, in]."""
        (merged,), result = node.operands, node.results[0]
        if merged.rank == 0 or result.rank != merged.rank + 1 or result.dims[:-2] != merged.dims[:-1] or self._only_user(merged) is not node:
            return
        heads, width = result.dims[-2:]
        if not isinstance(heads, int) or heads == 1 or heads * width != merged.dims[-1] or (name := self._heads_name(result)) is None:
            return
        bias = None
        product = merged.node
        if product.op == "add" and self._is_own(product.operands[1], 1) and self._only_user(product.operands[0]) is product:
            bias, product = product.operands[1], product.operands[0].node
        if product.op != "einsum" or not self._is_own(product.operands[1], 2):
            return
        left, right = product.attrs["spec"].split(",")
        weight, letters = product.operands[1], right.partition("->")[0]
        if letters not in ("nk", "kn") or left[-1] != "k":
            return
        inner = letters.replace("n", "yz")
        product.attrs["spec"] = f"{left},{inner}->{left[:-1]}yz"
        apart = {"nk": (heads, width, weight.dims[1]), "kn": (weight.dims[0], heads, width)}[letters]
        self._set_dims(weight, apart, {"nk": (name, "head_dim", "embed"), "kn": ("embed", name, "head_dim")}[letters])
        if bias is not None:
            self._set_dims(bias, (heads, width), (name, "head_dim"))
        for value in {product.results[0], merged}:
            value.dims = result.dims
        for user in self._users[result]:
            user.operands = [merged if v is result else v for v in user.operands]
        self._users[merged] = self._users.pop(result)
        self._graph.nodes.remove(node)

    def _set_dims(self, param: Value, dims: tuple[int, ...], axes: tuple[str, ...]) -> None:
        param.node.attrs["stored"] = list(param.dims)
        param.dims = dims
        self.say(param, *axes)

    def _heads_name(self, value: Value) -> str | None:
        """Whether the value's heads are those of queries, or of keys and values."""
        user = self._only_user(value)
        while user is not None and user.op in _KEEPS_HEADS and user.operands[0] is value:
            value = user.results[0]
            user = self._only_user(value)
        if user is None or user.op != "attention":
            return None
        return "heads" if value is user.operands[0] else "kv_heads"

    def merge_heads(self, node: Node) -> None:
        """A product with what attention made, whose heads were merged: W [out, heads, head dim]."""
        merged, weight = node.operands
        if merged.node.op != "reshape" or (made := merged.node.operands[0]).node.op != "attention" or not self._is_own(weight, 2):
            return
        heads, width = made.dims[-2:]
        if made.dims[:-2] != merged.dims[:-1] or heads * width != merged.dims[-1]:
            return
        left, right = node.attrs["spec"].split(",")
        letters = right.partition("->")[0]
        if letters not in ("nk", "kn") or left[-1] != "k":
            return
        node.attrs["spec"] = f"{left[:-1]}yz,{letters.replace('k', 'yz')}->{left[:-1]}n"
        node.operands[0] = made
        apart = {"nk": (weight.dims[0], heads, width), "kn": (heads, width, weight.dims[1])}[letters]
        self._set_dims(weight, apart, {"nk": ("embed", "heads", "head_dim"), "kn": ("heads", "head_dim", "embed")}[letters])

    def mlp(self, node: Node) -> None:
        """Products with pointwise ops between."""
        x, weight = node.operands
        if not self._is_own(weight, 2) or "axes" in weight.node.attrs:
            return
        sources: list[Node] = []
        if not self._pointwise_sources(x, sources) or not any(s.op == "einsum" for s in sources) or x.node.op == "einsum":
            return
        for source in sources:
            param = source.operands[1] if source.op == "einsum" else source.results[0]
            self.say(param, *(_order(source, "mlp", "embed") if source.op == "einsum" else ("mlp",)))
        self.say(weight, *_order(node, "embed", "mlp"))

    def experts(self, node: Node) -> None:
        """The last product of experts, with pointwise ops between it and those before."""
        sources: list[Node] = []
        if not self._pointwise_sources(node.operands[0], sources) or not sources or any(s.op != "expert_matmul" for s in sources):
            return
        for source in sources:
            self._say_experts(source, "mlp", "embed")
        self._say_experts(node, "embed", "mlp")

    def _say_experts(self, product: Node, out: str, inner: str) -> None:
        self.say(product.operands[2], "experts", *((inner, out) if "transposed" in product.attrs else (out, inner)))

    def other_experts(self, node: Node) -> None:
        self.say(node.operands[2], "experts", "none", "none")

    def _pointwise_sources(self, value: Value, sources: list[Node]) -> bool:
        """Collects what the value is made of by pointwise ops alone: products with params, and biases. False: other things too."""
        node = value.node
        if node.op == "expert_matmul":
            sources.append(node)
            return True
        if node.op in _POINTWISE:
            operands = node.operands[:1] if node.op in ("dropout", "mul_rows") else node.operands
            return all(self._pointwise_sources(v, sources) for v in operands)
        is_product = node.op == "einsum" and self._is_own(node.operands[1], 2)
        if is_product or node.op == "param" and value.rank == 1:
            sources.append(node)
            return True
        return node.op == "constant" and value.rank == 0

    def head(self, logits: Value) -> None:
        while logits.node.op in _KEEPS_CLASSES:
            logits = logits.node.operands[0]
        if logits.node.op == "einsum" and logits.node.operands[1].rank == 2:
            self.say(logits.node.operands[1], *_order(logits.node, "vocab", "embed"))


def _order(node: Node, out: str, inner: str) -> tuple[str, str]:
    """Names of a weight's dims [out, in], or [in, out] as the product has them."""
    letters = node.attrs["spec"].split(",")[1].partition("->")[0]
    return (out, inner) if letters.startswith("n") else (inner, out)


def _is_looked_up(ids: Value) -> bool:
    """Whether they are ids of a batch, and not positions."""
    while ids.node.op in ("cast", "reshape"):
        ids = ids.node.operands[0]
    return ids.node.op == "input"
