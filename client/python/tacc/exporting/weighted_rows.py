"""A loss whose samples are weighted by an input of the graph, 1 or 0: so a batch may be filled up, and what fills it does not count."""

from __future__ import annotations

from tacc.exporting.extents import BATCH, Extent, product, simplified
from tacc.exporting.graph_text import Node, Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.samples import made_by, samples_meet

ROW_WEIGHTS = "row_weights"  # the input, f32[B]


def weighted(g: Lowering, total: Value, count: Value) -> tuple[Value, Value] | None:
    """Sum and number of a mean, of the samples that count alone. None: it is not seen how the mean depends on each sample."""
    weights = _Weights(g)
    new_total, new_count = weights.of(total), weights.of(count)
    if new_total is None or new_count is None or weights.value is None:
        g.nodes = [node for node in g.nodes if weights.value is None or node is not weights.value.node]
        return None
    return new_total, new_count


class _Weights:
    def __init__(self, g: Lowering):
        self._g = g
        self.value: Value | None = None

    def _input(self) -> Value:
        if self.value is None:
            self.value = self._g.add("input", [], [("f32", [BATCH])], symbol=ROW_WEIGHTS, name=ROW_WEIGHTS, module="")[0]
        return self.value

    def of(self, value: Value) -> Value | None:
        """The same number of what is summed over the samples, with their weights."""
        g, node = self._g, value.node
        if node.op == "constant" and (each := _samples_of(node.attrs["value"])) is not None:
            return g.binary("mul", g.reduce_sum(self._input(), [0]), g.constant(each, "f32", []))
        if node.op == "reduce_sum":
            return self._sum(node, value)
        if node.op in ("reshape", "scale"):
            inner = self.of(node.operands[0])
            return None if inner is None else g.reshape(g.scale(inner, node.attrs["factor"]) if node.op == "scale" else inner, value.dims)
        if node.op in ("mul", "div"):
            a, b = node.operands
            if not _depends_on_batch(b) and (inner := self.of(a)) is not None:
                return g.binary(node.op, inner, b)
            if node.op == "mul" and not _depends_on_batch(a) and (inner := self.of(b)) is not None:
                return g.binary("mul", a, inner)
        if node.op in ("add", "sub"):
            left, right = (self.of(v) for v in node.operands)
            return None if left is None or right is None else g.binary(node.op, left, right)
        return None

    def _sum(self, node: Node, value: Value) -> Value | None:
        g, x = self._g, node.operands[0]
        if value.rank != 0 or samples_meet([x]):
            return None
        first = next((i for i, d in enumerate(x.dims) if not isinstance(d, int) and d.has(BATCH)), None)
        each = _samples_of(product(x.dims))
        if first is None or each is None or product(list(x.dims[:first])) != 1:
            return None
        by_row = g.reshape(x, [BATCH, each])
        return g.reduce_sum(g.unary_with("mul_rows", [by_row, self._input()]), [0, 1])


def _samples_of(extent: Extent) -> Extent | None:
    """n of n * B; None: it is another extent."""
    if isinstance(extent, (int, float)) or not extent.has(BATCH):
        return None
    quotient = simplified(extent / BATCH) if extent.coeff(BATCH, 0) == 0 else BATCH
    return None if not isinstance(quotient, int) and quotient.has(BATCH) else quotient


def _depends_on_batch(value: Value) -> bool:
    return any(node.op == "input" or any(not isinstance(d, int) and d.has(BATCH) for v in node.results for d in v.dims) for node in made_by([value]))
