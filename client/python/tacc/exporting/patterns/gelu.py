"""Finds GELU's tanh approximation where a model spells it: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Graph, Node

from tacc.exporting.patterns.matching import factors, is_op, scalar, strip

_CLOSE = 1e-6  # models write the constants with seven digits or more


def find_gelu(graph: Graph) -> int:
    """Puts aten.gelu in the place of each that it finds; returns how many."""
    count = 0
    for node in list(graph.nodes):
        if (x := _gelu(node)) is None:
            continue
        with graph.inserting_before(node):
            made = graph.call_function(torch.ops.aten.gelu.default, (x,), {"approximate": "tanh"})
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        count += 1
    graph.eliminate_dead_code()
    return count


def _gelu(node: Node) -> Node | None:
    if not is_op(node, "mul"):
        return None
    number, parts = factors(node)
    if not math.isclose(number, 0.5, rel_tol=_CLOSE) or len(parts) != 2:
        return None
    for x, gate in (parts, parts[::-1]):
        if is_op(gate, "add") and scalar(gate.args[1]) == 1.0 and is_op(tanh := strip(gate.args[0]), "tanh") and _is_inner(tanh.args[0], x):
            return x
    return None


def _is_inner(node: Any, x: Node) -> bool:
    """sqrt(2 / pi) * (x + 0.044715 x^3), or with x taken out of the sum."""
    number, parts = factors(node)
    if not math.isclose(number, math.sqrt(2 / math.pi), rel_tol=_CLOSE):
        return False
    if len(parts) == 1:
        return is_op(parts[0], "add") and len(parts[0].args) == 2 and _terms(parts[0], x, 3)
    sums = [p for p in parts if p is not x]
    return len(parts) == 2 and len(sums) == 1 and is_op(sums[0], "add") and scalar(sums[0].args[1]) == 1.0 and _is_power(sums[0].args[0], x, 2)


def _terms(node: Node, x: Node, power: int) -> bool:
    return any(strip(a) is x and _is_power(b, x, power) for a, b in (node.args, node.args[::-1]))


def _is_power(node: Any, x: Node, power: int) -> bool:
    """0.044715 x^power."""
    number, parts = factors(node)
    return math.isclose(number, 0.044715, rel_tol=_CLOSE) and parts == [x] * power
