"""Dropout. Which elements are kept depends on the rank's inputs `step` and `sample`, so that every layout drops the same."""

from __future__ import annotations

from typing import Any

from tacc.exporting.extents import BATCH
from tacc.exporting.graph_text import Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.table import NoRowError, row

SEED = 42  # of all dropouts of a graph


@row("aten.dropout.default", "aten.native_dropout.default")
def dropout(g: Lowering, x: Value, rate: float, train: bool = True) -> Any:
    y = x if rate == 0 or not train else dropped(g, x, rate)
    return [y, None] if "native" in str(g.node.target) else y


@row("aten.bernoulli.p")
def bernoulli(g: Lowering, x: Value, probability: float, **_: Any) -> Value:
    """1 with that probability, else 0, of which dropout of channels and of whole samples (stochastic depth) are made; in evaluation the probability."""
    ones = g.constant(1.0, "f32", g.dims)
    if probability in (0, 1):
        return g.constant(float(probability), "f32", g.dims)
    drawn = dropped(g, ones, 1.0 - probability)  # 0 or about 1 / probability; in evaluation 1
    is_one = g.compare("gt", drawn, g.constant(1.0, "f32", g.dims))  # A product would not be 1 to the bit, for which models ask.
    return g.select(is_one, ones, g.scale(drawn, probability))


def dropped(g: Lowering, x: Value, rate: float) -> Value:
    if all(isinstance(d, int) or not d.has(BATCH) for d in x.dims):  # the same for all samples, as a weight is
        rows, sample = g.reshape(x, [1, *x.dims]), g.constant(0, "i64", [1])
    else:
        rows, sample = g.reshape(x, sample_first(g, x)), g.rank_input("sample")
    step = g.rank_input("step")
    return g.reshape(g.unary_with("dropout", [rows, step, sample], rate=float(rate), key=g.next_dropout(), seed=SEED), x.dims)


def sample_first(g: Lowering, x: Value) -> list[Any]:
    """x's dims with the samples as the first one."""
    first = x.dims[0] if x.dims else 1
    if first == BATCH:
        return list(x.dims)
    if not isinstance(first, int):
        rest = first / BATCH
        if not rest.has(BATCH) and rest.is_polynomial():
            return [BATCH, rest, *x.dims[1:]]
    raise NoRowError("of a tensor whose first dim has no samples")
