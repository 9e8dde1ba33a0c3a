"""What nodes of an exported program are that depend on no data: masks, positions, tables. They are evaluated for several sizes of the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from tacc.exporting.extents import BATCH, Extents, InexpressibleError, at

# They ask only for the shape of their operand.
_OF_SHAPES = ("aten.sym_size", "aten.zeros_like", "aten.ones_like", "aten.full_like", "aten.empty_like", "aten.new_", "aten._assert")


MAX_LENGTH = 8192  # Of a sequence for which masks are evaluated, but for a few tokens more.
_SHORTEST = 8  # Tokens of the sequences for which everything is evaluated.
_NO_POSITION = 10**6  # A number of that size and more is none: it hides a key, or is the end of a slice.
_FEW = 64  # Elements of a table that may be positions.
_FURTHEST = 2048  # Positions that products and quotients of numbers may make.


class Lengths(NamedTuple):
    """Of sequences.

    Attributes:
        behind: Behind what products and quotients of its numbers make of positions.
        last: Behind the numbers in its computation and the sizes of its tables; or as long as its largest table. The first that can be evaluated shows all
            that it is. Empty where short sequences show it.
    """

    behind: tuple[int, ...]
    last: tuple[int, ...]


class ConstantValues:
    """Evaluates nodes from `constants`, the tensors of placeholders that no batch changes."""

    def __init__(self, extents: Extents, constants: Mapping[Node, torch.Tensor]):
        self._extents = extents
        self._constants = constants
        self._data: dict[Node, frozenset[Node]] = {}

    def data_of(self, node: Node) -> frozenset[Node]:
        """The placeholders, other than constants, on whose values the node depends, and what is drawn at random."""
        if node in self._data:
            return self._data[node]
        if node.op == "placeholder":
            result = frozenset() if node in self._constants else frozenset([node])
        elif str(node.target).startswith(_OF_SHAPES):
            result = frozenset()
        elif _draws(node):
            result = frozenset([node])
        else:
            result = frozenset[Node]().union(*(self.data_of(n) for n in node.all_input_nodes))
        self._data[node] = result
        return result

    def evaluate(self, node: Node, batch: int, sequence: int, data: Mapping[Node, torch.Tensor] | None = None) -> Any:
        """The node's value for so many samples and tokens, with these tensors for placeholders of data.

        Raises InexpressibleError when a size is unknown, NotImplementedError when PyTorch cannot compute it here.
        """
        return _Evaluation(self._extents, {**self._constants, **(data or {})}, batch, sequence).of(node)

    def is_batch(self, node: Node) -> bool:
        """Whether its first dim is that of the samples."""
        first = self._extents.of(node.meta["val"].shape[0])
        return bool(first == BATCH) or (isinstance(first, int) and first > 1 and not self._extents.has(BATCH))

    def numbers(self, node: Node) -> list[float]:
        """In its computation, and in its small tables, but for those so large that they hide keys."""
        return list(dict.fromkeys(x for n in self._behind(node) for x in self._numbers_of(n) if abs(x) < _NO_POSITION))

    def revealing(self, node: Node) -> Lengths:
        """Of sequences for which to evaluate the node, beside short ones."""
        found, scales = set[int](), set[int]()
        for n in self._behind(node):
            numbers = self._numbers_of(n)
            found |= {math.ceil(x) for x in numbers if _SHORTEST < x < _NO_POSITION}
            scales |= {math.ceil(x) for x in numbers if 2 <= x < _NO_POSITION} | {math.ceil(1 / x) for x in numbers if 1 / _FURTHEST < x < 1}
            if "shift" in str(n.target):
                scales |= {2 ** int(x) for x in numbers if 0 < x <= _FURTHEST.bit_length()}
        products = [a * (b + 1) for a in scales for b in scales if a * (b + 1) <= _FURTHEST]
        # Two rules may show only where neither of them hides the other.
        last = () if not found else ((sum(found) if sum(found) <= MAX_LENGTH else max(found)) + _SHORTEST + 4, max(found))
        return Lengths((max(products) + _SHORTEST + 4,) if products else (), last)

    def _behind(self, node: Node) -> set[Node]:
        """The node and all that it is computed from."""
        seen, stack = set[Node](), [node]
        while stack:
            n = stack.pop()
            if n not in seen:
                seen.add(n)
                stack += n.all_input_nodes
        return seen

    def _numbers_of(self, node: Node) -> list[float]:
        numbers = [*_numbers(node.args), *_numbers(tuple(node.kwargs.values()))]
        if (table := self._constants.get(node)) is not None:
            numbers += [*table.shape, *(_numbers(table.flatten().tolist()) if table.numel() <= _FEW else ())]
        return numbers

    def constant(self, node: Node) -> torch.Tensor | None:
        """The tensor of a placeholder that no batch changes."""
        return self._constants.get(node)

    def shape(self, node: Node, batch: int, sequence: int) -> list[int]:
        return [at(self._extents.of(d), batch, sequence) for d in node.meta["val"].shape]


class _Evaluation:
    def __init__(self, extents: Extents, known: Mapping[Node, torch.Tensor], batch: int, sequence: int):
        self._extents, self._batch, self._sequence = extents, batch, sequence
        self._values: dict[Node, Any] = dict(known)

    def of(self, node: Node) -> Any:
        for n in _in_order(node, self._values):
            self._values[n] = self._run(n)
        return self._values[node]

    def _run(self, node: Node) -> Any:
        value = node.meta.get("val")
        if isinstance(value, (int, bool, float)):
            return value
        if isinstance(value, torch.SymInt):
            return at(self._extents.of(value), self._batch, self._sequence)
        if node.op != "call_function":
            raise NotImplementedError(str(node))
        args = torch.fx.node.map_arg(node.args, self._argument)
        kwargs = dict(torch.fx.node.map_arg(dict(node.kwargs), self._argument))
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        if kwargs.get("dtype") in (torch.bfloat16, torch.float16):  # a graph is in f32
            kwargs["dtype"] = torch.float32
        return node.target(*args, **kwargs)

    def _argument(self, node: Node) -> Any:
        if node in self._values:
            return self._values[node]
        value = node.meta["val"]  # of data, whose shape alone is asked
        return torch.empty([at(self._extents.of(d), self._batch, self._sequence) for d in value.shape], dtype=value.dtype)


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value


def _draws(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _in_order(node: Node, known: Mapping[Node, Any]) -> Iterator[Node]:
    """What must be computed for the node, operands first."""
    done: set[Node] = set()
    stack = [(node, False)]
    while stack:
        n, ready = stack.pop()
        if n in known or n in done:
            continue
        if ready:
            done.add(n)
            yield n
            continue
        stack.append((n, True))
        value = n.meta.get("val")
        if isinstance(value, (int, bool, float, torch.SymInt)) or str(n.target).startswith(_OF_SHAPES):
            continue
        stack += [(operand, False) for operand in n.all_input_nodes]


__all__ = ["MAX_LENGTH", "ConstantValues", "InexpressibleError", "Lengths"]
