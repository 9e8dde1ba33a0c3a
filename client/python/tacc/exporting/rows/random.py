"""Random numbers. Like what a dropout keeps, they depend on the rank's inputs `step` and `sample`, so that every layout draws the same. In evaluation too
they are drawn, as PyTorch does it: those of the number of updates that were made."""

from __future__ import annotations

from typing import Any

from tacc.exporting.extents import BATCH, SEQUENCE, Extent
from tacc.exporting.graph_text import Value, Word
from tacc.exporting.lowering import Lowering
from tacc.exporting.rows.dropout import SEED
from tacc.exporting.rows.indexing import as_value
from tacc.exporting.table import NoRowError, row

_STEPS = 1 << 24  # a uniform number is one of so many


def drawn(g: Lowering, distribution: str) -> Value:
    """Numbers of the shape of the FX node's result; `uniform`: in [0, 1); `normal`: of mean 0 and variance 1. Of a shape without samples the same for all
    of a step."""
    dims = g.dims
    at = [i for i, d in enumerate(dims) if not isinstance(d, int) and d.has(BATCH)]
    if not at:
        return g.reshape(_random(g, distribution, [1, *dims], g.constant(0, "i64", [1])), dims)
    place = at[0]
    rest = dims[place] / BATCH
    if len(at) > 1 or not isinstance(rest, int) and (rest.has(BATCH) or not rest.is_polynomial()):
        raise NoRowError("of a shape in which samples are not one dim")
    others = [*dims[:place], *([] if rest == 1 else [rest]), *dims[place + 1 :]]
    made = _random(g, distribution, [BATCH, *others], g.rank_input("sample"))
    perm = list(range(1, made.rank))
    return g.reshape(g.transpose(made, [*perm[:place], 0, *perm[place:]]), dims)


def _random(g: Lowering, distribution: str, shape: list[Extent], sample: Value) -> Value:
    attrs: dict[str, Any] = {"sequence": True} if len(shape) > 1 and shape[1] == SEQUENCE else {}
    attrs |= {"distribution": Word(distribution), "dtype": Word("f32"), "key": g.next_dropout(), "seed": SEED}
    return g.one("random", [g.rank_input("step"), sample], "f32", shape, shape=shape, **attrs)


def _between(g: Lowering, low: float, high: float) -> Value:
    return g.add_scalar(g.scale(drawn(g, "uniform"), high - low), low)


@row("aten.rand", "aten.rand_like")
def rand(g: Lowering, *_: Any, **__: Any) -> Value:
    return drawn(g, "uniform")


@row("aten.uniform.default")
def uniform(g: Lowering, x: Value, low: float = 0.0, high: float = 1.0, **_: Any) -> Value:
    return _between(g, low, high)


@row("aten.randn", "aten.randn_like")
def randn(g: Lowering, *_: Any, **__: Any) -> Value:
    return drawn(g, "normal")


@row("aten.normal_functional.default")
def normal_functional(g: Lowering, x: Value, mean: float = 0.0, std: float = 1.0, **_: Any) -> Value:
    return normal(g, mean, std)


@row("aten.normal.float_float", "aten.normal.Tensor_Tensor", "aten.normal.Tensor_float", "aten.normal.float_Tensor")
def normal(g: Lowering, mean: Any = 0.0, std: Any = 1.0, *_: Any, **__: Any) -> Value:
    """No gradient flows to a mean or a deviation that is a tensor, as in PyTorch."""
    made = drawn(g, "normal")
    mean, std = (g.unary("stop_gradient", of) if isinstance(of, Value) else of for of in (mean, std))
    made = g.binary("mul", made, std) if isinstance(std, Value) else g.scale(made, std)
    return g.binary("add", made, mean) if isinstance(mean, Value) else g.add_scalar(made, mean)


@row("aten.exponential.default")
def exponential(g: Lowering, x: Value, rate: float = 1.0, **_: Any) -> Value:
    """Never 0, of which models take the logarithm."""
    made = g.unary("neg", g.unary("log1p", g.unary("neg", drawn(g, "uniform"))))
    return g.scale(g.unary("clamp", made, min=0.5 / _STEPS, max=float("inf")), 1.0 / rate)


@row("aten.randint.default", "aten.randint_like.default")
def randint(g: Lowering, *args: Any, **_: Any) -> Value:
    high = args[1] if isinstance(args[0], Value) else args[0]
    return _whole_numbers(g, 0, high)


@row("aten.randint.low", "aten.randint_like.low_dtype")
def randint_between(g: Lowering, *args: Any, **_: Any) -> Value:
    low, high = args[1:3] if isinstance(args[0], Value) else args[:2]
    return _whole_numbers(g, low, high)


def _whole_numbers(g: Lowering, low: Any, high: Any) -> Value:
    if not isinstance(low, int) or not isinstance(high, int):
        raise NoRowError("of limits that depend on the batch's size")
    if high - low > _STEPS:
        raise NoRowError(f"of {high - low} numbers; {_STEPS} may be drawn from")
    made = g.cast(_between(g, 0, high - low), "i64")  # cut off
    return g.cast(g.binary("add", made, as_value(g, low, made)), g.dtype)
