"""Attention, which patterns/attention.py has found."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import sympy

from tacc.exporting.extents import BATCH, Extent, product, text
from tacc.exporting.graph_text import Node, Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.patterns.attention import ATTENTION
from tacc.exporting.rows.dropout import SEED, dropped
from tacc.exporting.table import NoRowError, row

_HIDDEN = 1e30  # what is subtracted from a score that its query may not see: its exponential is 0


@dataclass(frozen=True)
class _Scores:
    """What becomes of the products of queries and keys before the softmax, and of its results.

    Attributes:
        mask: [...,S,T], true where the query sees the key, or a number that is added.
        keys: [B,T], not `no_key` where there is a key.
        causal, window: As of masks.Mask.
        nothing_seen: What the result of a query is that sees nothing: 0 ("nothing"), as PyTorch's own op says; the mean of all values, either with
            the derivative of scores that something outweighs ("mean") or of numbers in their place ("constant"); or as if it saw all keys ("all").
    """

    scale: float
    mask: Value | None = None
    keys: Value | None = None
    no_key: int = 0
    causal: bool = False
    window: int = 0
    softcap: float = 0.0
    dropout: float = 0.0
    nothing_seen: str = "mean"

    @property
    def is_safe(self) -> bool:
        return self.nothing_seen == "nothing"


@row("aten.scaled_dot_product_attention.default")
def sdpa(
    g: Lowering,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """With a mask that the patterns do not know."""
    if is_causal and mask is not None:
        raise NoRowError("with attn_mask and is_causal")
    return _attention(g, q, k, v, _Scores(_scale(q, scale), mask, causal=is_causal, dropout=dropout, nothing_seen="nothing"))


@row(ATTENTION)
def attention(g: Lowering, q: Value, k: Value, v: Value, *, scale: float | None, transposed_keys: bool = False, **scores: Any) -> Value:
    if transposed_keys:
        k = g.swap(k, k.rank - 2, k.rank - 1)
    return _attention(g, q, k, v, _Scores(_scale(q, scale), **scores))


def _scale(q: Value, scale: float | None) -> float:
    return float(q.dims[-1]) ** -0.5 if scale is None else float(scale)


def _attention(g: Lowering, q: Value, k: Value, v: Value, scores: _Scores) -> Value:
    """q [...,H,S,D], k [...,K,T,D], v [...,K,T,V]."""
    dims = g.dims
    if scores.keys is None and (scores.mask is None or scores.mask.rank == 2) and q.rank == k.rank == v.rank not in (3, 4):
        q, k, v = (g.reshape(x, [product(x.dims[:-3]), *((1,) * (3 - x.rank)), *x.dims[-3:]]) for x in (q, k, v))
    if q.rank == 3:
        # The first dim is that of samples and heads, or of either.
        batch = BATCH if scores.keys is None else scores.keys.dims[0]
        is_of_both = scores.keys is not None or (scores.dropout and _is_multiple(q.dims[0], batch))
        q, k, v = (g.reshape(x, [*((batch, _quotient(x.dims[0], batch)) if is_of_both and x.dims[0] != 1 else (x.dims[0], 1)), *x.dims[1:]]) for x in (q, k, v))
        if (mask := scores.mask) is not None and mask.rank == 3:
            first = q.dims[:2] if mask.dims[0] != 1 else (1, 1)
            scores = replace(scores, mask=g.reshape(mask, [*first, *mask.dims[1:]]))
    if not q.rank == k.rank == v.rank == 4:
        raise NoRowError(f"of {q.rank}, {k.rank} and {v.rank} dims")
    of_samples = [q, k, v, *(x for x in (scores.keys,) if x is not None), *(x for x in (scores.mask,) if x is not None and x.rank == 4)]
    batch = next((x.dims[0] for x in of_samples if x.dims[0] != 1), 1)  # each may be the same for all samples
    heads = max((x.dims[1] for x in (q, k, v)), key=lambda d: (not isinstance(d, int), d if isinstance(d, int) else 0))
    q = g.broadcast(q, [batch, heads if q.dims[1] == 1 else q.dims[1], *q.dims[2:]])
    k, v = (g.broadcast(x, [batch, *x.dims[1:]]) for x in (k, v))
    narrow_k, narrow_v = _unrepeated(g, k), _unrepeated(g, v)
    if narrow_k.dims[1] == narrow_v.dims[1]:
        k, v = narrow_k, narrow_v
    elif k.dims[1] != v.dims[1]:
        k, v = (g.broadcast(x, [batch, heads, *x.dims[2:]]) for x in (k, v))
    is_square = q.dims[2] == k.dims[2]
    # The op's result is 0 where a query sees nothing: the mean of all values would be another one for each query.
    has_op = scores.keys is None or scores.is_safe or not scores.causal
    if scores.mask is None and has_op and (is_square or not scores.causal):
        return g.reshape(_fused(g, q, k, v, scores), dims)
    return g.reshape(_spelled_out(g, q, k, v, scores), dims)


def _is_multiple(a: Extent, b: Extent) -> bool:
    return bool(sympy.sympify(a / b).is_Integer) if not isinstance(a, int) else False


def _quotient(a: Extent, b: Extent) -> int:
    quotient = sympy.sympify(a) / b
    if not quotient.is_Integer:
        raise NoRowError(f"of {text(a)} samples and heads, with keys of {text(b)} samples")
    return int(quotient)


def _unrepeated(g: Lowering, x: Value) -> Value:
    """The kv heads before each was repeated for its query heads: reshape(broadcast of [B,K,T,D] over [B,K,n,T,D])."""
    spread = x.node.operands[0] if x.node.op == "reshape" else None
    if spread is None or spread.node.op != "broadcast" or spread.rank != 5 or spread.node.attrs["dims"] != [0, 1, 3, 4]:
        return x
    narrow = spread.node.operands[0]
    is_repeated = x.dims == (spread.dims[0], spread.dims[1] * spread.dims[2], *spread.dims[3:])
    return g.reshape(narrow, [spread.dims[d] for d in (0, 1, 3, 4)]) if is_repeated else x


def _fused(g: Lowering, q: Value, k: Value, v: Value, scores: _Scores) -> Value:
    q, k, v = (g.swap(x, 1, 2) for x in (q, k, v))
    attrs: dict[str, Any] = {"causal": scores.causal, "scale": scores.scale}
    operands = [q, k, v]
    if scores.window:
        attrs["window"] = scores.window
    if scores.softcap:
        attrs["softcap"] = scores.softcap
    if scores.dropout:
        if q.dims[0] != BATCH:
            raise NoRowError("with dropout, of other rows than samples")
        operands += [g.rank_input("step"), g.rank_input("sample")]
        attrs |= {"dropout": float(scores.dropout), "dropout_key": g.next_dropout(), "dropout_seed": SEED}
    if scores.keys is not None:
        there = g.broadcast(g.cast(_there(g, scores), "f32"), k.dims[:2])
        operands.append(_key_bias(g, scores, there))
        attrs["key_bias"] = True
        if scores.nothing_seen == "constant":
            operands[0] = g.binary("mul", q, g.reshape(_has_any(g, there), [q.dims[0], 1, 1, 1]))  # the scores are 0 then, with no derivative
    batch, queries, heads, _ = q.dims
    out, _ = g.add("attention", operands, [("f32", [batch, queries, heads, v.dims[3]]), ("f32", [batch, heads, queries])], **attrs)
    return g.swap(out, 1, 2)


def _there(g: Lowering, scores: _Scores) -> Value:
    """[B,T], true where there is a key: any number but one says so."""
    assert scores.keys is not None
    if scores.no_key == 0:
        return g.cast(scores.keys, "bool")
    if scores.keys.dtype == "bool":
        return g.negated(scores.keys)
    return g.compare("ne", scores.keys, g.constant(scores.no_key, scores.keys.dtype, []))


def _key_bias(g: Lowering, scores: _Scores, there: Value) -> Value:
    """[B,T], what the op adds to the scores of a key: 0, or -inf where there is none."""
    if not scores.is_safe:
        # Of a sample without keys 0, or +inf, by which all its scores are 0, and its results the mean of all values.
        is_empty = g.add_scalar(g.unary("reciprocal", g.reduce_sum(there, [1])), -1.0)  # inf; else at most 0
        if scores.nothing_seen != "mean":
            is_empty = g.unary("clamp", is_empty, min=0.0, max=1.0)
        there = g.binary("maximum", there, g.reshape(is_empty, [is_empty.dims[0], 1]))
    return g.unary("log", there)


def _has_any(g: Lowering, seen: Value) -> Value:
    """Whether one of the last dim is 1, of those that are 1 or 0: 1 or 0."""
    return g.unary("clamp", g.reduce_sum(seen, [seen.rank - 1]), min=0.0, max=1.0)


def _spelled_out(g: Lowering, q: Value, k: Value, v: Value, scores: _Scores) -> Value:
    """softmax(q k^T scale + mask) v. h: a kv head, g: its query heads."""
    batch, heads, queries, width = q.dims
    kv_heads, keys = k.dims[1], k.dims[2]
    if kv_heads == heads:
        s = g.einsum("bhsd,bhtd->bhst", q, k)
    else:
        groups = g.reshape(q, [batch, kv_heads, heads // kv_heads, queries, width])
        s = g.reshape(g.einsum("bhgsd,bhtd->bhgst", groups, k), [batch, heads, queries, keys])
    s = g.scale(s, scores.scale)
    if scores.softcap:
        s = g.scale(g.unary("tanh", g.scale(s, 1 / scores.softcap)), scores.softcap)
    hidden = _hidden(g, scores, queries, keys)
    sees_any = None
    if hidden is not None:
        sees_any = _has_any(g, g.add_scalar(g.scale(hidden, -1.0), 1.0))
        sees_any = g.reshape(sees_any, [*sees_any.dims, 1])
        if scores.nothing_seen == "constant":
            s = g.binary("mul", s, sees_any)
        s = g.binary("add", s, g.scale(g.binary("mul", hidden, sees_any) if scores.nothing_seen == "all" else hidden, -_HIDDEN))
    if scores.mask is not None and scores.mask.is_floating:
        mask = scores.mask
        if scores.is_safe and _may_be_infinite(g, mask):  # -inf is of `hidden` already
            mask = g.binary("maximum", mask, g.constant(-_HIDDEN, "f32", []))
        s = g.binary("add", s, mask)
    p = g.unary("softmax", s)
    if scores.dropout:
        p = dropped(g, p, scores.dropout)
    if sees_any is not None and scores.is_safe:
        p = g.binary("mul", p, sees_any)  # A query that sees nothing has no result, and not the mean of what it does not see.
    if kv_heads == heads:
        return g.einsum("bhst,bhtd->bhsd", p, v)
    p = g.reshape(p, [batch, kv_heads, heads // kv_heads, queries, keys])
    return g.reshape(g.einsum("bhgst,bhtd->bhgsd", p, v), [batch, heads, queries, v.dims[3]])


def _hidden(g: Lowering, scores: _Scores, queries: Extent, keys: Extent) -> Value | None:
    """1 where a query may not see a key, else 0; None: each sees all. Its dims are the last of [B,H,S,T], or 1."""
    parts = []
    if scores.mask is not None and not scores.mask.is_floating:
        parts.append(_negated(g, scores.mask))
    elif scores.mask is not None and scores.is_safe and _may_be_infinite(g, scores.mask):
        parts.append(g.cast(g.compare("eq", scores.mask, g.constant(-math.inf, "f32", [])), "f32"))
    if scores.keys is not None:
        there = _there(g, scores)
        parts.append(_negated(g, g.reshape(there, [there.dims[0], 1, 1, keys])))
    if scores.causal:
        parts.append(_ahead(g, queries, keys, scores.window))
    return functools.reduce(lambda a, b: g.binary("maximum", a, b), parts) if parts else None


def _may_be_infinite(g: Lowering, mask: Value) -> bool:
    """Whether a mask that is added can have -inf: it is among what the mask is computed from, or comes with a batch."""

    def brings_it(node: Node) -> bool:
        if node.op == "constant":
            value = node.attrs["value"]  # Or an extent.
            return isinstance(value, float) and abs(value) == math.inf
        if node.op == "input":
            return node.results[0].is_floating
        return node.op == "log" or (node.op == "param" and "role" in node.attrs)

    return any(brings_it(node) for node in g.nodes_of(mask))


def _negated(g: Lowering, seen: Value) -> Value:
    return g.add_scalar(g.scale(g.cast(seen, "f32"), -1.0), 1.0)


def _ahead(g: Lowering, queries: Extent, keys: Extent, window: int) -> Value:
    """[S,T]: 1 where the key is not the query's own or one before it, of the last `window`. Both begin at position 0."""
    i, j = g.iota(0, "f32", [queries, keys]), g.iota(1, "f32", [queries, keys])
    ahead = g.binary("sub", j, i)
    hidden = g.unary("clamp", ahead, min=0.0, max=1.0)
    if not window:
        return hidden
    too_far = g.unary("clamp", g.add_scalar(g.unary("neg", ahead), 1.0 - window), min=0.0, max=1.0)
    return g.binary("add", hidden, too_far)
