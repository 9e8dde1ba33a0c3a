"""Pieces of which patterns are made."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

_PASSES_ON = ("_to_copy", "to", "clone", "contiguous", "alias")


def is_op(node: Any, *names: str) -> bool:
    """Whether it calls one of these ATen ops, of any overload."""
    if not isinstance(node, Node) or node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    namespace, _, name = node.target._schema.name.partition("::")
    return namespace == "aten" and name in names


def strip(node: Any) -> Any:
    """What the node is made of by copies and casts between floating types."""
    while is_op(node, *_PASSES_ON) and node.args[0].meta["val"].is_floating_point() == node.meta["val"].is_floating_point():
        node = node.args[0]
    return node


def only_user(node: Node) -> Node | None:
    """Its user, if there is one alone."""
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def scalar(argument: Any) -> float | None:
    """The number that an argument is, written out or as a tensor that is filled with it."""
    if isinstance(argument, (int, float)) and not isinstance(argument, bool):
        return float(argument)
    if is_op(argument, "full", "scalar_tensor") and argument.meta["val"].dim() == 0:
        return scalar(argument.args[-1])
    return None


def factors(node: Any) -> tuple[float, list[Node]]:
    """A product taken apart: its number, and its other factors; x^n is n of them."""
    number = scalar(node)
    if number is not None:
        return number, []
    node = strip(node)
    if is_op(node, "mul") and len(node.args) == 2:
        (a, left), (b, right) = factors(node.args[0]), factors(node.args[1])
        return a * b, left + right
    if is_op(node, "pow") and scalar(node.args[1]) in (2.0, 3.0):
        base, parts = factors(node.args[0])
        power = int(node.args[1])
        return base**power, parts * power
    return 1.0, [node]
