"""What a graph says of a loss: a sum, and the number of what it is taken over. So any split of a batch gives the same step."""

from __future__ import annotations

import sympy

from tacc.exporting.extents import BATCH
from tacc.exporting.graph_text import Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.samples import ignorable_targets
from tacc.exporting.weighted_rows import weighted


def sum_and_count(g: Lowering, loss: Value, *, has_batch: bool, by_samples: bool, is_sum: bool = False, weighs_rows: bool = False) -> tuple[Value, Value]:
    """The two, f32[] each, whose quotient is `loss`. Of a loss that is no mean that we know, and with `by_samples` of any: loss * B and B.
    Of one that `is_sum`: itself, and B. With `weighs_rows`, and where no label takes a sample out of it, samples are weighted if they can be."""
    samples = g.constant(BATCH if has_batch else 1, "f32", [])
    if is_sum:
        return g.reshape(loss, []), samples
    found = _mean(g, loss)
    if found is not None and weighs_rows and not ignorable_targets(*found) and (of_rows := weighted(g, *found)) is not None:
        found, loss = of_rows, g.binary("div", *of_rows)
    if found is None or by_samples:
        found = g.binary("mul", g.reshape(loss, []), samples), samples
    return g.reshape(found[0], []), g.reshape(found[1], [])


def _mean(g: Lowering, value: Value) -> tuple[Value, Value] | None:
    if value in g.means:
        return g.means[value]
    node = value.node
    if node.op in ("reshape", "scale", "neg"):
        if (found := _mean(g, node.operands[0])) is None:
            return None
        return g.scale(g.reshape(found[0], []), -1.0 if node.op == "neg" else node.attrs.get("factor", 1.0)), found[1]
    if node.op in ("add", "sub") and value.rank == 0:
        first, second = (_mean(g, v) for v in node.operands)
        if first is not None and second is not None and (ratio := _ratio(first[1], second[1])) is not None:
            return g.binary(node.op, first[0], g.scale(second[0], ratio)), first[1]
    if node.op == "add" and value.rank == 0:
        # Another term is the same for all that is counted.
        for a, b in (node.operands, node.operands[::-1]):
            if (found := _mean(g, a)) is not None:
                return g.binary("add", found[0], g.binary("mul", g.reshape(b, []), found[1])), found[1]
    return None


def _ratio(count: Value, of: Value) -> float | None:
    """A number that is the same for each batch; None: it is not."""
    if count.node.op != "constant" or of.node.op != "constant":
        return None
    ratio = sympy.sympify(count.node.attrs["value"]) / of.node.attrs["value"]
    return float(ratio) if ratio.is_number else None
