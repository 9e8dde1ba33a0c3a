"""What a graph says of a loss: a sum, and the number of what it is taken over. So any split of a batch gives the same step."""

from __future__ import annotations

from tacc.exporting.extents import BATCH
from tacc.exporting.graph_text import Value
from tacc.exporting.lowering import Lowering


def sum_and_count(g: Lowering, loss: Value, *, has_batch: bool, by_samples: bool) -> tuple[Value, Value]:
    """The two, f32[] each, whose quotient is `loss`. Of a loss that is no mean that we know, and with `by_samples` of any: loss * B and B."""
    found = None if by_samples else _mean(g, loss)
    if found is None:
        samples = g.constant(BATCH if has_batch else 1, "f32", [])
        found = g.binary("mul", g.reshape(loss, []), samples), samples
    return g.reshape(found[0], []), g.reshape(found[1], [])


def _mean(g: Lowering, value: Value) -> tuple[Value, Value] | None:
    if value in g.means:
        return g.means[value]
    node = value.node
    if node.op in ("reshape", "scale"):
        if (found := _mean(g, node.operands[0])) is None:
            return None
        return (g.scale(g.reshape(found[0], []), node.attrs["factor"]) if node.op == "scale" else found[0]), found[1]
    if node.op == "add" and value.rank == 0:
        # Another term is the same for all that is counted.
        for a, b in (node.operands, node.operands[::-1]):
            if (found := _mean(g, a)) is not None:
                return g.binary("add", found[0], g.binary("mul", g.reshape(b, []), found[1])), found[1]
    return None
