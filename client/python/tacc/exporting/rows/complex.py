"""Complex numbers, which a graph has as pairs of real ones in a last dim of 2: the arithmetic of rotary embeddings and filters. These rows are those of ops
that take or make complex tensors; what has none, as the Fourier transforms, is LibTorch's, which gets the pairs as complex numbers."""

from __future__ import annotations

from typing import Any

from tacc.exporting.graph_text import Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.patterns.constants import TABLE, UNIFORM
from tacc.exporting.table import NoRowError, row


def _part(g: Lowering, x: Value, which: int) -> Value:
    """Real (0) or imaginary (1) parts of pairs."""
    return g.reshape(g.slice(x, x.rank - 1, which, which + 1), x.dims[:-1])


def _pairs(g: Lowering, real: Value, imaginary: Value) -> Value:
    return g.concat([g.reshape(x, [*x.dims, 1]) for x in (real, imaginary)], real.rank)


def _as_pairs(g: Lowering, argument: int, x: Any) -> Value:
    """An argument of the FX node, a tensor or a number, as pairs."""
    if not isinstance(x, Value):
        number = complex(x)
        return _pairs(g, *(g.constant(part, "f32", []) for part in (number.real, number.imag)))
    return x if g.is_complex(argument) else g.pad(g.reshape(g.cast(x, "f32"), [*x.dims, 1]), x.rank, 0, 1)


@row("complex.aten.view_as_real.default", "complex.aten.view_as_complex.default")
@row("complex.aten.clone.default", "complex.aten.alias.default", "complex.aten.contiguous.default", "complex.aten.lift_fresh_copy.default")
def same(g: Lowering, x: Value, **_: Any) -> Value:
    return x


@row("complex.aten.detach.default")
def detach(g: Lowering, x: Value) -> Value:
    return g.unary("stop_gradient", x)


@row("complex.aten._to_copy.default")
def to_copy(g: Lowering, x: Value, **_: Any) -> Value:
    made = g.node.meta["val"]
    return _as_pairs(g, 0, x) if made.is_complex() else g.cast(_part(g, x, 0), g.dtype)


@row("complex.aten.complex.default")
def of_parts(g: Lowering, real: Value, imaginary: Value) -> Value:
    return _pairs(g, real, imaginary)


@row("complex.aten.polar.default")
def polar(g: Lowering, length: Value, angle: Value) -> Value:
    return _pairs(g, *(g.binary("mul", length, g.unary(op, angle)) for op in ("cos", "sin")))


@row("complex.aten._conj.default", "complex.aten.conj_physical.default")
def conjugate(g: Lowering, x: Value) -> Value:
    return _pairs(g, _part(g, x, 0), g.unary("neg", _part(g, x, 1)))


@row("complex.aten.neg.default")
def negative(g: Lowering, x: Value) -> Value:
    return g.unary("neg", x)


@row("complex.aten.add.Tensor", "complex.aten.sub.Tensor")
def add(g: Lowering, a: Any, b: Any, *, alpha: Any = 1) -> Value:
    if alpha != 1:
        raise NoRowError(f"with alpha={alpha}")
    return g.binary("add" if ".add." in str(g.node.target) else "sub", _as_pairs(g, 0, a), _as_pairs(g, 1, b))


@row("complex.aten.mul.Tensor")
def multiply(g: Lowering, a: Any, b: Any) -> Value:
    a_real, a_imaginary = (_part(g, _as_pairs(g, 0, a), which) for which in (0, 1))
    b_real, b_imaginary = (_part(g, _as_pairs(g, 1, b), which) for which in (0, 1))
    real = g.binary("sub", g.binary("mul", a_real, b_real), g.binary("mul", a_imaginary, b_imaginary))
    return _pairs(g, real, g.binary("add", g.binary("mul", a_real, b_imaginary), g.binary("mul", a_imaginary, b_real)))


@row("complex.aten.div.Tensor")
def divide(g: Lowering, a: Value, b: Any) -> Value:
    if isinstance(b, Value) and not g.is_complex(1):
        return g.binary("div", a, g.broadcast(g.reshape(g.cast(b, "f32"), [*b.dims, 1]), [*b.dims, 2]))
    if isinstance(b, Value) or b == 0:
        raise NoRowError("by complex numbers")
    return multiply(g, a, 1 / complex(b))


@row("complex." + UNIFORM)
def uniform(g: Lowering, value: complex) -> Value:
    return _pairs(g, *(g.constant(part, "f32", g.dims[:-1]) for part in (value.real, value.imag)))


@row("complex." + TABLE)
def table(g: Lowering, tensor: Any) -> Value:
    return g.add_table(tensor)
