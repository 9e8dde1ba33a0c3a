"""ATen ops that no row says in our ops. They become nodes of the op `aten`:

    %y = aten %x, %w schema="aten::cumsum.default" args=["%0","#0"] ints=[1] result_dtypes=[f32] result_ranks=[2] result_dims=[B,4]

`args` are the arguments of the schema, in its order: %N is operand N, #N is entry N of `ints` (sizes may depend on B and S, which only numbers of
the text form can), [..] a list, `none`, `true`, `false`, a float such as 0.5, or a word (a dtype, "mean"). Arguments behind the last that was given
have their defaults. i%N is operand N as complex numbers, of which graphs have pairs; complex results are such pairs too. The rank calls the operator of that name,
of LibTorch or of a library that whoever runs its worker gives it (`foreign.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import sympy
import torch

from tacc.exporting.foreign import OF_PYTHON, RefusedError, check_derivative, check_foreign, is_of_libtorch, words_for_people
from tacc.exporting.graph_text import Node, Value, Word
from tacc.exporting.table import NoRowError

if TYPE_CHECKING:
    from tacc.exporting.lowering import Lowering


_TEXT = re.compile(r'[^%#@\[\]"\\\x00-\x1f]*')


def changing_op(node: torch.fx.Node) -> torch._ops.OpOverload | None:
    """The op of another library that changes its operands, of which torch.export has made a call that does not."""
    return node.args[0] if str(node.target).startswith("auto_functionalized") and isinstance(node.args[0], torch._ops.OpOverload) else None


def _check(node: torch.fx.Node) -> None:
    """Raises RefusedError for what the rank cannot call."""
    target = node.target
    if changing_op(node) is not None:
        raise RefusedError("changes its operands; give the library one that returns what it makes of them")
    if not isinstance(target, torch._ops.OpOverload):
        raise RefusedError(OF_PYTHON)
    if target.namespace != "aten":
        check_foreign(node)
    if torch.Tag.nondeterministic_seeded in target.tags:
        raise RefusedError(
            "draws random numbers, which would differ with the number of ranks; those of torch.rand, randn, randint (each also _like), normal, bernoulli, "
            "Tensor.uniform_, normal_, exponential_ and of dropout do not: draw by them"
        )
    if torch.Tag.dynamic_output_shape in target.tags or torch.Tag.data_dependent_output in target.tags:
        raise RefusedError(
            "the size of its result depends on values; keep the whole tensor, and take out what does not count by torch.where or by a product with the mask, "
            "or take a fixed number (topk)"
        )
    if target._schema.is_mutable:
        raise RefusedError("changes its operands")


def _types(lowering: Lowering, made: Any) -> list[tuple[str, list[Any]]]:
    try:
        return [lowering.type_of(v) for v in (made if isinstance(made, (list, tuple)) else [made]) if isinstance(v, torch.Tensor)]
    except NoRowError as error:
        raise RefusedError(str(error)) from error


def add_aten_node(lowering: Lowering, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Adds the op `aten` for the FX node; returns its results as the ATen op has them. Raises RefusedError."""
    _check(node)
    operands: list[Value] = []
    ints: list[Any] = []
    try:
        write = _writer(operands, ints, lowering.complex_operands(node))
    except NoRowError as error:
        raise RefusedError(str(error)) from error
    schema = node.target._schema
    names = [a.name for a in schema.arguments]
    given = {**dict(zip(names, args)), **kwargs}
    last = max((i for i, name in enumerate(names) if name in given), default=-1)
    texts = [write(given.get(a.name, a.default_value)) for a in schema.arguments[: last + 1]]
    name = str(node.target).replace(".", "::", 1)
    made = node.meta["val"]
    types = _types(lowering, made)
    attrs: dict[str, Any] = {"ints": ints} if ints else {}
    attrs["result_dtypes"] = [Word(dtype) for dtype, _ in types]
    attrs["result_ranks"] = [len(dims) for _, dims in types]
    attrs["result_dims"] = [d for _, dims in types for d in dims]
    if not is_of_libtorch(node.target):
        check_derivative(lowering, node, operands)
        attrs |= words_for_people(node.target, lowering.source)
    results = lowering.add("aten", operands, types, schema=name, args=texts, **attrs)
    return results if isinstance(made, (list, tuple)) else results[0]


def _writer(operands: list[Value], ints: list[Any], complex_ones: set[Value]) -> Callable[[Any], str]:
    """Writes an argument, and puts its tensors and numbers into the lists."""

    def write(value: Any) -> str:
        if isinstance(value, Value):
            if value not in operands:
                operands.append(value)
            return f"{'i' if value in complex_ones else ''}%{operands.index(value)}"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (int, sympy.Expr)):
            ints.append(value)
            return f"#{len(ints) - 1}"
        if value is None:
            return "none"
        if isinstance(value, complex):
            raise RefusedError("has a complex number as an argument; give it as a tensor")
        if isinstance(value, (list, tuple)):
            if any(isinstance(v, str) and (not v or "," in v) for v in value):
                raise RefusedError(f"has the texts {value!r} as an argument; those of a list are not empty in a graph, and have no comma")
            return f"[{','.join(write(v) for v in value)}]"
        if isinstance(value, str):
            if value == "none" or not _TEXT.fullmatch(value):
                raise RefusedError(f'has the text {value!r} as an argument; in a graph none is "none", and none has one of %#@[]"\\ or control characters')
            return value
        return str(value).removeprefix("torch.")

    return write


# Operators of one tensor that compute each row, or box, along the dims that an argument names for itself: its place, and what it is if it is not given.
_ALONG: dict[str, tuple[int, list[int]]] = {
    **{f"aten::{name}.default": (1, [-1]) for name in ("cummax", "cummin", "cumprod", "logcumsumexp", "sort")},
    "aten::topk.default": (2, [-1]),
    **{f"aten::fft_{name}.default": (2, [-1]) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{f"aten::fft_{name}.default": (2, [-2, -1]) for name in ("fft2", "ifft2", "rfft2", "irfft2")},
}


def dims_along(node: Node) -> list[int] | None:
    """Of a node `aten`, the dims of its only operand along which elements meet; None where nothing is known of the operator."""
    args = node.attrs["args"]
    if node.attrs["schema"] not in _ALONG or len(node.operands) != 1 or not args[0].endswith("%0"):
        return None
    place, default = _ALONG[node.attrs["schema"]]
    said = args[place].strip("[]").split(",") if place < len(args) and args[place] != "none" else []
    dims = [node.attrs["ints"][int(number[1:])] for number in said] or default
    rank = node.operands[0].rank - args[0].startswith("i")  # of complex numbers, without their pairs
    return [d % rank for d in dims]
