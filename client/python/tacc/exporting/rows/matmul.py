"""Matrix products."""

from __future__ import annotations

from typing import Any

import sympy

from tacc.exporting.extents import BATCH, SEQUENCE, Extent, product
from tacc.exporting.graph_text import Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.table import NoRowError, row

_LETTERS = "abcdefghij"


@row("aten.linear.default")
def linear(g: Lowering, x: Value, weight: Value, bias: Value | None = None) -> Value:
    x = _unmerged(g, x)
    rows = _LETTERS[: x.rank - 1]
    y = g.einsum(f"{rows}k,nk->{rows}n", x, weight)
    return g.reshape(y if bias is None else g.binary("add", y, bias), g.dims)


def _unmerged(g: Lowering, x: Value) -> Value:
    """x [N,K] before its leading dims were merged: then samples and tokens stay apart, and each layout can split them."""
    if x.rank != 2 or x.node.op != "reshape":
        return x
    inner = x.node.operands[0]
    for i in range(2, inner.rank):
        if product(inner.dims[:i]) == x.dims[0]:
            return g.reshape(inner, [*inner.dims[:i], x.dims[1]])
    return x


def _product(g: Lowering, x: Value, y: Value) -> Value:
    """x y, of which x has any number of leading dims and y two."""
    rows = _LETTERS[: x.rank - 1]
    if y.node.op == "transpose":  # of a weight [n,k]
        return g.einsum(f"{rows}k,nk->{rows}n", x, y.node.operands[0])
    return g.einsum(f"{rows}k,kn->{rows}n", x, y)


@row("aten.addmm.default")
def addmm(g: Lowering, bias: Value, x: Value, weight: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    y = g.scale(_product(g, _unmerged(g, x), weight), alpha)
    if bias.rank > 1:
        y = g.reshape(y, g.dims)
    return g.reshape(g.binary("add", y, g.scale(bias, beta)), g.dims)


@row("aten.mm.default")
def mm(g: Lowering, x: Value, y: Value) -> Value:
    return g.reshape(_product(g, _unmerged(g, x), y), g.dims)


@row("aten.bmm.default")
def bmm(g: Lowering, x: Value, y: Value) -> Value:
    for chosen, rows, is_transposed in ((x, y, False), (y, x, True)):
        if (found := _chosen_matrices(chosen)) is not None and rows.dims[1 if is_transposed else 2] == 1:
            return _expert_product(g, rows, *found, is_transposed=is_transposed)
    return g.matmul(x, y)


def _chosen_matrices(x: Value) -> tuple[Value, Value] | None:
    """Matrices [E,M,N] and ids [S] of which x [S,M,N] is the one for each row: rows/indexing.py makes it so."""
    looked_up = x.node.operands[0] if x.node.op == "reshape" else None
    if looked_up is None or looked_up.node.op != "embedding" or looked_up.rank != 2 or x.rank != 3:
        return None
    table, ids = looked_up.node.operands
    matrices = table.node.operands[0] if table.node.op == "reshape" else None
    return (matrices, ids) if matrices is not None and matrices.dims[1:] == x.dims[1:] and matrices.rank == 3 else None


def _expert_product(g: Lowering, rows: Value, matrices: Value, ids: Value, *, is_transposed: bool) -> Value:
    """Of each row the product with its matrix; with `is_transposed`, those are [E,in,out]."""
    into, out = matrices.dims[1:] if is_transposed else matrices.dims[:0:-1]
    slots = _slots(ids.dims[0])
    x = g.reshape(rows, [rows.dims[0], into])
    repeated = x.node.operands[0] if x.node.op == "reshape" else x
    if repeated.node.op == "broadcast" and repeated.dims[1:] == (slots[-1], into) and repeated.node.attrs["dims"] == [0, 2]:
        x = g.reshape(repeated.node.operands[0], [*slots[:-1], into])  # a row a token
    else:
        x = g.reshape(x, [*slots, into])
    attrs: dict[str, Any] = {"transposed": True} if is_transposed else {}
    operands = [x, g.reshape(ids, slots), matrices]
    return g.reshape(g.one("expert_matmul", operands, "f32", [*slots, out], num_experts=matrices.dims[0], **attrs), g.dims)


def _slots(count: Extent) -> list[Extent]:
    """Dims of the slots of all tokens: samples, tokens and a token's slots, which layouts can split, where they are so many."""
    each = sympy.expand(count / (BATCH * SEQUENCE))
    return [BATCH, SEQUENCE, int(each)] if each.is_Integer else [count, 1]


@row("aten.baddbmm.default")
def baddbmm(g: Lowering, bias: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    made = g.scale(g.matmul(x, y), alpha)
    return made if beta == 0 else g.binary("add", made, g.scale(bias, beta))


@row("aten.matmul.default")
def matmul(g: Lowering, x: Value, y: Value) -> Value:
    if x.rank == 0 or y.rank == 0:
        raise NoRowError("of a scalar")
    a = g.reshape(x, [1, *x.dims]) if x.rank == 1 else x
    b = g.reshape(y, [*y.dims, 1]) if y.rank == 1 else y
    if b.rank == 2:
        return g.reshape(_product(g, a, b), g.dims)
    return g.reshape(g.matmul(a, b), g.dims)


@row("aten.einsum.default")
def einsum(g: Lowering, spec: str, operands: list[Value], **_: Any) -> Value:
    spec = spec.replace(" ", "")
    if len(operands) != 2 or "." in spec or "->" not in spec:
        raise NoRowError(f'einsum "{spec}"')
    left, result = spec.split("->")
    a, b = left.split(",")
    if any(len(set(part)) != len(part) for part in (a, b, result)) or (set(a) ^ set(b)) - set(result):
        raise NoRowError(f'einsum "{spec}"')
    extents: dict[str, Extent] = {}
    for letter, extent in [*zip(a, operands[0].dims), *zip(b, operands[1].dims)]:
        if extents.setdefault(letter, extent) == 1:
            extents[letter] = extent  # a dim of 1 is repeated
    return g.einsum(spec, *(g.broadcast(x, [extents[letter] for letter in part]) for part, x in zip((a, b), operands)))


@row("aten.mv.default", "aten.dot.default")
def mv(g: Lowering, x: Value, y: Value) -> Value:
    return matmul(g, x, y)
