"""Which whole numbers an input may have: those that a table has rows for, or a loss has classes for. PyTorch raises IndexError at others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tacc.exporting.graph_text import Node, Value
from tacc.exporting.samples import MOVES, input_behind

_READERS = ("embedding", "cross_entropy", "compare", "select", "maximum")  # of ids and labels, where slices of an input are looked up


@dataclass(frozen=True)
class Limit:
    """Numbers from 0 to below `limit`, and `ignored`, if it is none of them."""

    limit: int
    ignored: int | None = None


@dataclass
class Lookup:
    """Numbers that something is looked up by."""

    ids: Value
    limit: Limit


def limits_of_inputs(nodes: list[Node], lookups: Iterable[Lookup]) -> dict[str, Limit]:
    """By input. Of one whose slices are looked up in several ways, what any of them may have; none where a part of it is used otherwise."""
    whole: dict[str, list[Limit]] = {}
    parts: dict[str, list[Limit]] = {}
    for lookup in lookups:
        if (name := input_behind(lookup.ids)) is not None:
            (parts if _is_cut(lookup.ids.node) else whole).setdefault(name, []).append(lookup.limit)
    found = {}
    for name, of_all in whole.items():
        ignored = {limit.ignored for limit in of_all}
        found[name] = Limit(min(limit.limit for limit in of_all), ignored.pop() if len(ignored) == 1 else None)
    for name, of_parts in parts.items():
        ignored = {limit.ignored for limit in of_parts} - {None}
        if name not in whole and len(ignored) <= 1 and _is_looked_up_alone(nodes, name):
            found[name] = Limit(max(limit.limit for limit in of_parts), next(iter(ignored), None))
    return found


def _is_cut(node: Node) -> bool:
    return node.op == "slice" or (node.op in MOVES and any(_is_cut(v.node) for v in node.operands))


def _is_looked_up_alone(nodes: list[Node], name: str) -> bool:
    moved: set[Value] = set()
    for node in nodes:
        if node.op == "input" and node.symbol == name or node.op in MOVES and any(v in moved for v in node.operands):
            moved.update(v for v in node.results if not v.is_floating)
            if any(v.is_floating for v in node.results):
                return False
        elif any(v in moved for v in node.operands) and node.op not in _READERS:
            return False
    return True
