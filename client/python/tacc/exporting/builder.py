"""Ops of the text form with their result types. What would compute nothing, as a reshape to the same dims, adds no node."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from tacc.exporting.extents import Extent, product, simplified
from tacc.exporting.graph_text import FLOATING, Graph, Node, Value, Word

INTEGERS = {"i32": 31, "i64": 63}  # their bits without the sign


_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


class Builder(Graph):
    """A graph with a method for each op that the exporter uses."""

    def one(self, op: str, operands: Sequence[Value], dtype: str, dims: Sequence[Extent], /, **attrs: Any) -> Value:
        return self.add(op, operands, [(dtype, dims)], **attrs)[0]

    # Leaves.

    def constant(self, value: Extent | float, dtype: str, dims: Sequence[Extent]) -> Value:
        if isinstance(value, (int, float)):
            value = float(value)
        return self.one("constant", [], dtype, dims, value=value, dtype=Word(dtype), shape=list(dims))

    def iota(self, dim: int, dtype: str, dims: Sequence[Extent]) -> Value:
        """The index along `dim`."""
        return self.one("iota", [], dtype, dims, dim=dim, dtype=Word(dtype), shape=list(dims))

    # Shapes.

    def reshape(self, x: Value, dims: Sequence[Extent]) -> Value:
        dims = tuple(simplified(d) for d in dims)
        while x.node.op == "reshape":
            x = x.node.operands[0]
        if x.node.op == "cast" and x.node.operands[0].node.op == "reshape":
            return self.cast(self.reshape(x.node.operands[0], dims), x.dtype)
        return x if x.dims == dims else self.one("reshape", [x], x.dtype, dims, shape=list(dims))

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        perm = [p % x.rank for p in perm]
        if x.node.op == "transpose":
            inner = x.node.attrs["perm"]
            return self.transpose(x.node.operands[0], [inner[p] for p in perm])
        if perm == list(range(x.rank)):
            return x
        moved = [d for d in perm if x.dims[d] != 1]
        if moved == sorted(moved):
            return self.reshape(x, [x.dims[p] for p in perm])
        return self.one("transpose", [x], x.dtype, [x.dims[p] for p in perm], perm=perm)

    def swap(self, x: Value, a: int, b: int) -> Value:
        perm = list(range(x.rank))
        perm[a], perm[b] = perm[b], perm[a]
        return self.transpose(x, perm)

    def slice(self, x: Value, dim: int, start: Extent, limit: Extent) -> Value:
        start, limit = simplified(start), simplified(limit)
        if start == 0 and limit == x.dims[dim]:
            return x
        dims = list(x.dims)
        dims[dim] = limit - start
        return self.one("slice", [x], x.dtype, dims, dim=dim, start=start, limit=limit)

    def pad(self, x: Value, dim: int, low: Extent, high: Extent) -> Value:
        """With zeros."""
        dims = list(x.dims)
        dims[dim] = dims[dim] + low + high
        return self.one("pad", [x], x.dtype, dims, dim=dim, low=low, high=high)

    def concat(self, values: Sequence[Value], dim: int) -> Value:
        dims = list(values[0].dims)
        dims[dim] = sum((v.dims[dim] for v in values[1:]), dims[dim])
        return values[0] if len(values) == 1 else self.one("concat", values, values[0].dtype, dims, dim=dim)

    def broadcast(self, x: Value, dims: Sequence[Extent]) -> Value:
        """As PyTorch does: dims are aligned at the last, and those that are missing or 1 are repeated."""
        dims = tuple(simplified(d) for d in dims)
        if x.dims == dims:
            return x
        offset = len(dims) - x.rank
        kept = [i + offset for i in range(x.rank) if x.dims[i] == dims[i + offset]]
        narrow = self.reshape(x, [dims[i] for i in kept])
        return self.one("broadcast", [narrow], x.dtype, dims, shape=list(dims), dims=kept)

    # Pointwise.

    def cast(self, x: Value, dtype: str) -> Value:
        widened = x.node.operands[0] if x.node.op == "reshape" else x
        if widened.node.op == "cast" and _keeps(widened.node.operands[0].dtype, x.dtype):
            return self.cast(self.reshape(widened.node.operands[0], x.dims), dtype)
        return x if x.dtype == dtype else self.one("cast", [x], dtype, x.dims, dtype=Word(dtype))

    def unary(self, op: str, x: Value, **attrs: Any) -> Value:
        return self.one(op, [x], x.dtype, x.dims, **attrs)

    def scale(self, x: Value, factor: float) -> Value:
        return x if factor == 1 else self.unary("scale", x, factor=float(factor))

    def add_scalar(self, x: Value, value: float) -> Value:
        return x if value == 0 else self.unary("add_scalar", x, value=float(value))

    def binary(self, op: str, a: Value, b: Value) -> Value:
        """Of what PyTorch would broadcast. The op repeats its second operand over leading dims by itself."""
        dims = broadcast_dims(a.dims, b.dims)
        dtype = "f32" if a.is_floating or b.is_floating else max(a.dtype, b.dtype)
        a, b = self.cast(a, dtype), self.cast(b, dtype)
        if op == "mul" and dtype == "f32" and (scaled := self._scaled(a, b) or self._scaled(b, a)) is not None:
            return scaled
        if op in ("add", "mul", "maximum", "minimum") and a.dims != dims and b.dims == dims:
            a, b = b, a
        return self.one(op, [self.broadcast(a, dims), self._repeated_by_op(b, dims)], dtype, dims)

    def _repeated_by_op(self, b: Value, dims: tuple[Extent, ...]) -> Value:
        """b without the leading dims over which an op repeats it; with all of `dims` where it would be repeated over others."""
        short = list(b.dims)
        while len(short) > 0 and len(short) <= len(dims) and short[0] == 1 and dims[len(dims) - len(short)] != 1:
            short.pop(0)
        return self.reshape(b, short) if tuple(short) == dims[len(dims) - len(short) :] else self.broadcast(b, dims)

    def compare(self, comparison: str, a: Value, b: Value) -> Value:
        """`eq`, `ne`, `lt`, `le`, `gt` or `ge`, of what PyTorch would broadcast."""
        dims = broadcast_dims(a.dims, b.dims)
        dtype = "f32" if a.is_floating or b.is_floating else max(a.dtype, b.dtype, "i32")
        a, b = self.cast(a, dtype), self.cast(b, dtype)
        if a.dims != dims and b.dims == dims:
            a, b, comparison = b, a, _MIRRORED[comparison]
        operands = [self.broadcast(a, dims), self._repeated_by_op(b, dims)]
        return self.one("compare", operands, "bool", dims, comparison=Word(comparison))

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """a where the condition is true, else b; a and b have one dtype."""
        dims = broadcast_dims(condition.dims, broadcast_dims(a.dims, b.dims))
        condition = self._repeated_by_op(condition, dims)
        return self.one("select", [condition, self.broadcast(a, dims), self.broadcast(b, dims)], a.dtype, dims)

    def gather(self, x: Value, ids: Value, dim: int) -> Value:
        return self.one("gather", [x, ids], x.dtype, ids.dims, dim=dim)

    def negated(self, x: Value) -> Value:
        """Of true and false."""
        return self.compare("eq", x, self.constant(0, "i32", []))

    def _scaled(self, x: Value, factors: Value) -> Value | None:
        """x times a factor for each of its rows, [N,C,1,1] of [N,C,H,W], or for each channel, [C,1,1]: without a copy of them as large as x."""
        ones = next((i for i, d in enumerate(reversed(factors.dims)) if d != 1), factors.rank)
        kept = factors.dims[: factors.rank - ones]
        if not kept or not ones:
            return None
        if factors.rank == x.rank and kept == x.dims[: len(kept)]:
            rows = self.reshape(x, [*kept, product(x.dims[len(kept) :])])
            return self.reshape(self.unary_with("mul_rows", [rows, self.reshape(factors, kept)]), x.dims)
        behind_samples = kept[-1:] if all(d == 1 for d in kept[:-1]) else ()
        if x.rank >= 3 and ones == x.rank - 2 and behind_samples == x.dims[1:2]:
            return self.one("channel_affine", [x, self.reshape(factors, behind_samples)], x.dtype, x.dims)
        return None

    def unary_with(self, op: str, operands: Sequence[Value], **attrs: Any) -> Value:
        """An op whose result is as its first operand."""
        return self.one(op, operands, operands[0].dtype, operands[0].dims, **attrs)

    # Sums and products.

    def reduce_sum(self, x: Value, dims: Sequence[int]) -> Value:
        kept = [d for i, d in enumerate(x.dims) if i not in dims]
        return self.one("reduce_sum", [x], x.dtype, kept, dims=sorted(dims)) if dims else x

    def reduce_max(self, x: Value, dims: Sequence[int]) -> Value:
        kept = [d for i, d in enumerate(x.dims) if i not in dims]
        return self.one("reduce_max", [x], x.dtype, kept, dims=sorted(dims)) if dims else x

    def einsum(self, spec: str, a: Value, b: Value) -> Value:
        left, result = spec.split("->")
        extents = dict(zip(left.replace(",", ""), (*a.dims, *b.dims)))
        return self.one("einsum", [a, b], a.dtype, [extents[c] for c in result], spec=spec)

    def matmul(self, a: Value, b: Value) -> Value:
        """torch.matmul of two tensors with two dims or more."""
        batch = broadcast_dims(a.dims[:-2], b.dims[:-2])
        letters = string.ascii_lowercase[: len(batch)]
        k, m, n = list(string.ascii_lowercase[len(batch) : len(batch) + 3])
        (a, a_letters), (b, b_letters) = (self._without_repeated(x, batch, letters) for x in (a, b))
        for i, letter in enumerate(letters):
            if letter not in a_letters + b_letters:  # a dim of 1, in neither
                a = self.reshape(a, [*a.dims[: len(a_letters)], 1, *a.dims[len(a_letters) :]])
                a_letters += letters[i]
        return self.einsum(f"{a_letters}{m}{k},{b_letters}{k}{n}->{letters}{m}{n}", a, b)

    def _without_repeated(self, x: Value, batch: tuple[Extent, ...], letters: str) -> tuple[Value, str]:
        """x without the batch dims in which it is repeated, and the letters of the others."""
        offset = len(batch) - (x.rank - 2)
        own = [i for i in range(x.rank - 2) if x.dims[i] != 1 or batch[i + offset] == 1]
        return self.reshape(x, [*(x.dims[i] for i in own), *x.dims[-2:]]), "".join(letters[i + offset] for i in own)

    def count(self, x: Value) -> Extent:
        return product(x.dims)


def broadcast_dims(a: Sequence[Extent], b: Sequence[Extent]) -> tuple[Extent, ...]:
    """The dims of what PyTorch makes of two tensors."""
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b)
    return tuple(y if x == 1 else x for x, y in zip(a, b))


def producer(x: Value, op: str) -> Node | None:
    """The node that makes x, if it is of that op."""
    return x.node if x.node.op == op else None


def _keeps(narrow: str, wide: str) -> bool:
    """Whether each value of one type is one of the other."""
    if narrow == wide:
        return True
    if narrow == "bool":
        return True
    return narrow in INTEGERS and wide in INTEGERS and INTEGERS[narrow] <= INTEGERS[wide] or (narrow, wide) == ("f32", "f64") and wide in FLOATING
