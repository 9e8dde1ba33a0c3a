"""A graph in the text form (docs/design/graph-text.md), as it is built."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tacc.exporting.extents import Extent, simplified, text

FLOATING = ("bf16", "f16", "f32", "f64")


@dataclass(frozen=True)
class Word:
    """An attribute's value that is written without quotes."""

    text: str


@dataclass(eq=False)
class Value:
    """A value of a graph. `node` is None of none: each value is made by one."""

    name: str
    dtype: str
    dims: tuple[Extent, ...]
    node: Node

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def is_floating(self) -> bool:
        return self.dtype in FLOATING

    def __repr__(self) -> str:
        return f"%{self.name} : {type_text(self.dtype, self.dims)}"


@dataclass(eq=False)
class Node:
    """A line of the text."""

    op: str
    symbol: str = ""
    operands: list[Value] = field(default_factory=list)
    attrs: dict[str, Any] = field(default_factory=dict)
    results: list[Value] = field(default_factory=list)
    module: str = ""
    source: str = ""  # line of the user's model

    def text(self) -> str:
        left = ", ".join(f"%{v.name}" for v in self.results)
        words = [self.op]
        if self.symbol:
            words.append(_quoted(self.symbol))
        if self.operands:
            words.append(", ".join(f"%{v.name}" for v in self.operands))
        words += [f"{key}={_attr(value)}" for key, value in sorted(self.attrs.items())]
        if self.results:
            words.append(": " + ", ".join(type_text(v.dtype, v.dims) for v in self.results))
        if self.module:
            words.append("@" + self.module)
        return (f"{left} = " if left else "") + " ".join(words)


def type_text(dtype: str, dims: Iterable[Extent]) -> str:
    return f"{dtype}[{','.join(text(d) for d in dims)}]"


def _quoted(word: str) -> str:
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _attr(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_attr(item) for item in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Word):
        return value.text
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        return repr(value)
    return text(value)


def units_of(nodes: Iterable[Node]) -> list[str]:
    """The paths of the nodes' modules up to their first number, in order, as import finds them."""
    units: dict[str, None] = {}
    for node in nodes:
        parts = node.module.split(".")
        if (end := next((i for i, part in enumerate(parts) if part.isdecimal()), None)) is not None:
            units[".".join(parts[: end + 1])] = None
    return list(units)


class Graph:
    """The nodes, in order."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._names: dict[str, int] = {}
        self.module = ""  # of the nodes that follow
        self.source = ""

    def add(
        self,
        op: str,
        operands: Sequence[Value],
        types: Sequence[tuple[str, Sequence[Extent]]],
        *,
        symbol: str = "",
        module: str | None = None,
        name: str = "",
        **attrs: Any,
    ) -> list[Value]:
        """Adds a node whose results have these types; returns them."""
        node = Node(op, symbol, list(operands), attrs, module=self.module if module is None else module, source=self.source)
        for dtype, dims in types:
            node.results.append(Value(self._name(name or op), dtype, tuple(simplified(d) for d in dims), node))
        self.nodes.append(node)
        return node.results

    def _name(self, hint: str) -> str:
        # A number behind a dot is a suffix of the text form's own.
        hint = re.sub(r"[^A-Za-z0-9_]", "_", hint)
        count = self._names[hint] = self._names.get(hint, 0) + 1
        return hint if count == 1 else f"{hint}.{count - 1}"

    def nodes_of(self, *values: Value, with_gradient: bool = False) -> set[Node]:
        """The nodes that make these values, and all that those are made of; those alone that have a gradient of the values, or all."""
        found: set[Node] = set()
        stack = [v.node for v in values]
        while stack:
            if (node := stack.pop()) not in found:
                found.add(node)
                if not (with_gradient and node.op == "stop_gradient"):
                    stack += [v.node for v in node.operands if v.is_floating or not with_gradient]
        return found

    def drop_unused(self) -> None:
        """Removes nodes that no output needs. Inputs stay: whoever sends batches knows them; and buffers that are written and not read."""
        needed: set[int] = set()
        kept = []
        written = {node.symbol.removeprefix("buffer:") for node in self.nodes if node.op == "output" and node.symbol.startswith("buffer:")}
        for node in reversed(self.nodes):
            is_written = node.op == "param" and node.symbol in written
            if node.results and node.op != "input" and not is_written and not any(id(v) in needed for v in node.results):
                continue
            needed.update(id(v) for v in node.operands)
            kept.append(node)
        self.nodes = kept[::-1]

    def move_params(self) -> None:
        """Puts each param before the first node that reads it: a layer's lines are together."""
        leaves = {id(node.results[0]): node for node in self.nodes if node.op == "param"}
        ordered = []
        for node in self.nodes:
            if node.op == "param":
                continue
            ordered += [leaf for v in node.operands if (leaf := leaves.pop(id(v), None)) is not None]
            ordered.append(node)
        self.nodes = [*leaves.values(), *ordered]

    def text(self) -> str:
        return "tacc.graph 1\n" + "".join(node.text() + "\n" for node in self.nodes)
