"""Arithmetic and activations."""

from __future__ import annotations

import math
from typing import Any

import sympy

from tacc.exporting.graph_text import Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.rows.indexing import as_value
from tacc.exporting.table import NoRowError, row

_UNARY = ("neg", "exp", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "sigmoid", "relu", "silu")


def _as_float(g: Lowering, x: Value) -> Value:
    return x if x.is_floating else g.cast(x, "f32")


def _negated(g: Lowering, x: Value) -> Value:
    return g.binary("sub", g.constant(0, x.dtype, x.dims), x)


def _register_unaries() -> None:
    def make(op: str) -> Any:
        def unary(g: Lowering, x: Value, **_: Any) -> Value:
            if op == "neg" and not x.is_floating:
                return _negated(g, x)
            return g.unary(op, _as_float(g, x))

        return unary

    for op in _UNARY:
        row(f"aten.{op}.default")(make(op))


_register_unaries()


def _with_scalar(g: Lowering, op: str, x: Value, scalar: Any) -> Value:
    """op(x, scalar); add, sub, mul or div."""
    if op == "div":
        x = _as_float(g, x)
    if isinstance(scalar, sympy.Expr):  # a size
        dtype = x.dtype if isinstance(scalar, sympy.Expr) and not x.is_floating else "f32"
        return g.binary(op, x, g.constant(scalar, dtype, []))
    if not x.is_floating and isinstance(scalar, float):
        x = _as_float(g, x)
    if x.is_floating:
        match op:
            case "add" | "sub":
                return g.add_scalar(x, scalar if op == "add" else -scalar)
            case "mul":
                return g.scale(x, scalar)
            case "div":
                return g.scale(x, 1.0 / scalar) if _is_power_of_two(scalar) else g.binary("div", x, g.constant(scalar, "f32", []))
    if scalar == {"add": 0, "sub": 0, "mul": 1}[op]:
        return x
    return g.binary(op, x, g.constant(scalar, x.dtype, []))


def _is_power_of_two(number: float) -> bool:
    mantissa = abs(float(number)).hex().split("p")[0]
    return mantissa in ("0x1.0000000000000", "0x1.0")


def _binary(g: Lowering, op: str, a: Any, b: Any, alpha: Any = 1) -> Value:
    if not isinstance(a, Value):
        if op in ("add", "mul"):
            return _binary(g, op, b, a, alpha) if alpha == 1 else g.add_scalar(_scaled(g, b, alpha), a)
        dtype = "f32" if op == "div" or isinstance(a, float) or b.is_floating else b.dtype
        a = g.constant(a, dtype, [])
    if not isinstance(b, Value):
        return _with_scalar(g, op, a, b if alpha == 1 else b * alpha)
    b = _scaled(g, b, alpha)
    if op == "div":
        a, b = _as_float(g, a), _as_float(g, b)
    if a.dtype == b.dtype == "bool":
        if op != "mul":
            raise NoRowError("arithmetic of bools")
        return g.cast(g.binary("mul", g.cast(a, "i32"), g.cast(b, "i32")), "bool")
    return g.binary(op, a, b)


def _scaled(g: Lowering, x: Value, alpha: Any) -> Value:
    return x if alpha == 1 else _with_scalar(g, "mul", x, alpha)


@row("aten.add.Tensor", "aten.add.Scalar")
def add(g: Lowering, a: Any, b: Any, *, alpha: Any = 1) -> Value:
    return _binary(g, "add", a, b, alpha)


@row("aten.sub.Tensor", "aten.sub.Scalar")
def sub(g: Lowering, a: Any, b: Any, *, alpha: Any = 1) -> Value:
    return _binary(g, "sub", a, b, alpha)


@row("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(g: Lowering, a: Any, b: Any, alpha: Any = 1) -> Value:
    return _binary(g, "sub", b, _scaled(g, a, alpha))


@row("aten.mul.Tensor", "aten.mul.Scalar")
def mul(g: Lowering, a: Any, b: Any) -> Value:
    for gate, up in ((a, b), (b, a)):
        if isinstance(gate, Value) and isinstance(up, Value) and gate.node.op == "silu" and gate.dims == up.dims and up.is_floating:
            return g.unary_with("swiglu", [gate.node.operands[0], up])
    return _binary(g, "mul", a, b)


@row("aten.div.Tensor", "aten.div.Scalar")
def div(g: Lowering, a: Any, b: Any) -> Value:
    return _binary(g, "div", a, b)


@row("aten.maximum.default")
def maximum(g: Lowering, a: Value, b: Value) -> Value:
    return g.binary("maximum", a, b)


@row("aten.minimum.default")
def minimum(g: Lowering, a: Value, b: Value) -> Value:
    return g.binary("minimum", a, b)


@row("aten.pow.Tensor_Scalar")
def pow_scalar(g: Lowering, x: Value, exponent: float) -> Value:
    x = _as_float(g, x)
    match float(exponent):
        case 1.0:
            return x
        case 2.0:
            return g.unary("square", x)
        case 3.0:
            return g.binary("mul", g.unary("square", x), x)
        case 4.0:
            return g.unary("square", g.unary("square", x))
        case 0.5:
            return g.unary("sqrt", x)
        case -0.5:
            return g.unary("rsqrt", x)
        case -1.0:
            return g.unary("reciprocal", x)
        case -2.0:
            return g.unary("reciprocal", g.unary("square", x))
    return g.unary("pow", x, exponent=float(exponent))


@row("aten.pow.Scalar")
def pow_of_scalar(g: Lowering, base: float, exponent: Value) -> Value:
    if base <= 0:
        raise NoRowError(f"powers of {base}")
    return g.unary("exp", g.scale(_as_float(g, exponent), math.log(base)))


@row("aten.softplus.default")
def softplus(g: Lowering, x: Value, beta: float = 1.0, *_: Any) -> Value:
    """log(1 + exp(x)), as max(x, 0) + log(1 + exp(-|x|)): no exponential overflows."""
    x = g.scale(x, beta)
    below = g.binary("minimum", x, g.unary("neg", x))
    return g.scale(g.binary("add", g.unary("log1p", g.unary("exp", below)), g.unary("relu", x)), 1.0 / beta)


@row("aten.abs.default")
def absolute(g: Lowering, x: Value) -> Value:
    if not x.is_floating:
        return g.binary("maximum", x, _negated(g, x))
    zero = g.constant(0.0, "f32", [])
    sign = g.binary("sub", g.cast(g.compare("gt", x, zero), "f32"), g.cast(g.compare("lt", x, zero), "f32"))
    return g.binary("mul", x, sign)


@row("aten.square.default")
def square(g: Lowering, x: Value) -> Value:
    return g.unary("square", _as_float(g, x))


@row("aten.gelu.default")
def gelu(g: Lowering, x: Value, *, approximate: str = "none") -> Value:
    return g.unary("gelu", x, approximate=approximate)


@row("aten.clamp.default", "aten.clamp.Tensor", "aten.hardtanh.default")
def clamp(g: Lowering, x: Value, min: Any = None, max: Any = None) -> Value:
    if x.is_floating and not isinstance(min, (Value, sympy.Expr)) and not isinstance(max, (Value, sympy.Expr)):
        low, high = (-float("inf") if min is None else float(min)), (float("inf") if max is None else float(max))
        return g.unary("clamp", x, min=low, max=high)
    for op, bound in (("maximum", min), ("minimum", max)):
        if bound is not None:
            x = g.binary(op, x, as_value(g, bound, x))
    return g.cast(x, g.dtype)


@row("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(g: Lowering, x: Value, min: Any) -> Value:
    return clamp(g, x, min)


@row("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(g: Lowering, x: Value, max: Any) -> Value:
    return clamp(g, x, None, max)


def _as_bool(g: Lowering, x: Value, is_bitwise: bool) -> Value:
    if is_bitwise and x.dtype != "bool":
        raise NoRowError("of whole numbers")
    return g.cast(x, "bool")


def _register_logic() -> None:
    def make(combine: Any, is_bitwise: bool) -> Any:
        return lambda g, a, b: combine(g, *(g.cast(_as_bool(g, x, is_bitwise), "i32") for x in (a, as_value(g, b, a))))

    combines = {
        "and": lambda g, a, b: g.cast(g.binary("mul", a, b), "bool"),
        "or": lambda g, a, b: g.cast(g.binary("maximum", a, b), "bool"),
        "xor": lambda g, a, b: g.compare("ne", a, b),
    }
    for name, combine in combines.items():
        row(f"aten.bitwise_{name}.Tensor", f"aten.bitwise_{name}.Scalar", f"aten.__{name}__.Tensor")(make(combine, True))
        row(f"aten.logical_{name}.default")(make(combine, False))


_register_logic()


@row("aten.bitwise_not.default", "aten.logical_not.default")
def logical_not(g: Lowering, x: Value) -> Value:
    return g.negated(_as_bool(g, x, "bitwise" in str(g.node.target)))


@row("aten.detach.default")
def detach(g: Lowering, x: Value) -> Value:
    return g.unary("stop_gradient", x)


@row("aten._to_copy.default", "aten.to.dtype", "aten.to.dtype_layout", "aten.type_as.default")
def to_copy(g: Lowering, x: Value, *_: Any, **__: Any) -> Value:
    """Between floating types too: see DTYPES."""
    return g.cast(x, g.dtype)


@row("aten.clone.default", "aten.contiguous.default", "aten.alias.default", "aten.lift_fresh_copy.default")
def clone(g: Lowering, x: Value, **_: Any) -> Value:
    return x
