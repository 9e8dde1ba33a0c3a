"""ATen ops that no row says in our ops. They become nodes of the op `aten`:

    %y = aten %x, %w schema="aten::cumsum.default" args=["%0","#0"] ints=[1] : f32[B,4]

`args` are the arguments of the schema, in its order: %N is operand N, #N is entry N of `ints` (sizes may depend on B and S, which only numbers of
the text form can), [..] a list, `none`, `true`, `false`, a float such as 0.5, or a word (a dtype, "mean"). Arguments behind the last that was given
have their defaults. Results have the types that the line declares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import sympy
import torch

from tacc.exporting.graph_text import Value

if TYPE_CHECKING:
    from tacc.exporting.lowering import Lowering


def add_aten_node(lowering: Lowering, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Adds the op `aten` for the FX node; returns its results as the ATen op has them."""
    operands: list[Value] = []
    ints: list[Any] = []
    write = _writer(operands, ints)
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        values = [*args, *kwargs.values()]
    else:
        names = [a.name for a in schema.arguments]
        given = {**dict(zip(names, args)), **kwargs}
        last = max((i for i, name in enumerate(names) if name in given), default=-1)
        values = [given.get(a.name, a.default_value) for a in schema.arguments[: last + 1]]
    texts = [write(value) for value in values]
    name = str(node.target).replace("aten.", "aten::", 1)
    made = node.meta["val"]
    types = [lowering.type_of(v) for v in (made if isinstance(made, (list, tuple)) else [made]) if isinstance(v, torch.Tensor)]
    numbers: dict[str, Any] = {"ints": ints} if ints else {}
    results = lowering.add("aten", operands, types, schema=name, args=texts, **numbers)
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
