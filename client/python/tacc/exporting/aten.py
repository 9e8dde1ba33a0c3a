"""ATen ops that no row says in our ops. They become nodes of the op `aten`:

    %y = aten %x, %w schema="aten::cumsum.default" args=["%0","#0"] ints=[1] result_dtypes=[f32] result_ranks=[2] result_dims=[B,4]

`args` are the arguments of the schema, in its order: %N is operand N, #N is entry N of `ints` (sizes may depend on B and S, which only numbers of
the text form can), [..] a list, `none`, `true`, `false`, a float such as 0.5, or a word (a dtype, "mean"). Arguments behind the last that was given
have their defaults. The rank calls LibTorch's operator of that name, so one that LibTorch has not cannot be a node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import sympy
import torch

from tacc.exporting.graph_text import Value, Word
from tacc.exporting.table import NoRowError

if TYPE_CHECKING:
    from tacc.exporting.lowering import Lowering


class RefusedError(Exception):
    """An op that no graph can have; the message has the reason."""


def _check(node: torch.fx.Node) -> None:
    """Raises RefusedError for what the rank cannot call."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        raise RefusedError("an op that is written in Python, or in a library that is not PyTorch; put the ops that it consists of into the model")
    if torch.Tag.nondeterministic_seeded in target.tags:
        raise RefusedError("draws random numbers, which would differ with the number of ranks; torch.nn.functional.dropout may stay")
    if torch.Tag.dynamic_output_shape in target.tags or torch.Tag.data_dependent_output in target.tags:
        raise RefusedError("the size of its result depends on values; use torch.where or a mask")
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
    write = _writer(operands, ints)
    schema = node.target._schema
    names = [a.name for a in schema.arguments]
    given = {**dict(zip(names, args)), **kwargs}
    last = max((i for i, name in enumerate(names) if name in given), default=-1)
    texts = [write(given.get(a.name, a.default_value)) for a in schema.arguments[: last + 1]]
    name = str(node.target).replace("aten.", "aten::", 1)
    made = node.meta["val"]
    types = _types(lowering, made)
    attrs: dict[str, Any] = {"ints": ints} if ints else {}
    attrs["result_dtypes"] = [Word(dtype) for dtype, _ in types]
    attrs["result_ranks"] = [len(dims) for _, dims in types]
    attrs["result_dims"] = [d for _, dims in types for d in dims]
    results = lowering.add("aten", operands, types, schema=name, args=texts, **attrs)
    return results if isinstance(made, (list, tuple)) else results[0]


def _writer(operands: list[Value], ints: list[Any]) -> Callable[[Any], str]:
    """Writes an argument, and puts its tensors and numbers into the lists."""

    def write(value: Any) -> str:
        if isinstance(value, Value):
            if value not in operands:
                operands.append(value)
            return f"%{operands.index(value)}"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (int, sympy.Expr)):
            ints.append(value)
            return f"#{len(ints) - 1}"
        if value is None:
            return "none"
        if isinstance(value, (list, tuple)):
            return f"[{','.join(write(v) for v in value)}]"
        return str(value).removeprefix("torch.")

    return write
