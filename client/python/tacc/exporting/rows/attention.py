"""Attention, which patterns/attention.py has found."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import sympy

from tacc.exporting.extents import BATCH, SEQUENCE, Extent, InexpressibleError, product, simplified, text
from tacc.exporting.graph_text import Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.patterns.attention import ATTENTION
from tacc.exporting.rows.dropout import SEED
from tacc.exporting.table import NoRowError, row


@dataclass(frozen=True)
class _Scores:
    """What becomes of the products of queries and keys before the softmax, and of its results.

    Attributes:
        chosen: [...,S,T], or dims of 1: true where the query sees the key.
        added: The same, numbers that are added, which may be trained.
        hides_added: What is added has no derivative where the key is hidden.
        of_parts: [P,H,S,T], or dims of 1, added as well: the first dim of queries is P parts of each of fewer samples.
        keys: [B,T], not `no_key` where there is a key.
        causal, window: As of masks.Mask.
        nothing_seen: What the result of a query is that sees nothing: 0 ("nothing"), as PyTorch's own op says; the mean of all values, either with
            the derivative of scores that something outweighs ("mean") or of numbers in their place ("constant"); or as if it saw all keys ("all").
    """

    scale: float
    chosen: Value | None = None
    added: Value | None = None
    hides_added: bool = False
    of_parts: Value | None = None
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
    chosen, added = (None, mask) if mask is not None and mask.is_floating else (mask, None)
    return _attention(g, q, k, v, _Scores(_scale(q, scale), chosen, added, causal=is_causal, dropout=dropout, nothing_seen="nothing"))


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
    masks = [x for x in (scores.chosen, scores.added) if x is not None]
    if q.rank == k.rank == v.rank == 5:
        is_of_groups = k.dims[2] == v.dims[2] == 1 or scores.keys is not None or any(x.rank > 3 for x in masks)
        if is_of_groups:
            q, k, v, scores = _one_dim_of_heads(g, q, k, v, scores)
        else:  # the first two dims are rows, as windows are
            rows = [next((x.dims[d] for x in (q, k, v) if x.dims[d] != 1), 1) for d in (0, 1)]
            q, k, v = (g.reshape(g.broadcast(x, [*rows, *x.dims[2:]]), [rows[0] * rows[1], *x.dims[2:]]) for x in (q, k, v))
        masks = [x for x in (scores.chosen, scores.added) if x is not None]
    if scores.keys is None and all(x.rank == 2 for x in masks) and q.rank == k.rank == v.rank not in (3, 4):
        q, k, v = (g.reshape(x, [product(x.dims[:-3]), *((1,) * (3 - x.rank)), *x.dims[-3:]]) for x in (q, k, v))
    if q.rank == 3:
        # The first dim is that of samples and heads, or of either.
        batch = BATCH if scores.keys is None else scores.keys.dims[0]
        is_of_both = scores.keys is not None or (scores.dropout and _is_multiple(q.dims[0], batch))
        q, k, v = (g.reshape(x, [*((batch, _quotient(x.dims[0], batch)) if is_of_both and x.dims[0] != 1 else (x.dims[0], 1)), *x.dims[1:]]) for x in (q, k, v))

        def with_heads(mask: Value | None) -> Value | None:
            if mask is None or mask.rank != 3:
                return mask
            rows = next((x.dims[:2] for x in (q, k, v) if x.dims[:2] != (1, 1)), (1, 1))
            return g.reshape(mask, [*(rows if mask.dims[0] != 1 else (1, 1)), *mask.dims[1:]])

        scores = replace(scores, chosen=with_heads(scores.chosen), added=with_heads(scores.added))
        masks = [x for x in (scores.chosen, scores.added) if x is not None]
    if not q.rank == k.rank == v.rank == 4:
        raise NoRowError(f"of {q.rank}, {k.rank} and {v.rank} dims")
    of_samples = [q, k, v, *(x for x in (scores.keys,) if x is not None), *(x for x in masks if x.rank == 4)]
    batch = next((x.dims[0] for x in of_samples if x.dims[0] != 1), 1)  # each may be the same for all samples
    heads = max((x.dims[1] for x in (q, k, v)), key=lambda d: (not isinstance(d, int), d if isinstance(d, int) else 0))
    q = g.broadcast(q, [batch, heads if q.dims[1] == 1 else q.dims[1], *q.dims[2:]])
    k, v = (g.broadcast(x, [batch, *x.dims[1:]]) for x in (k, v))
    narrow_k, narrow_v = _unrepeated(g, k), _unrepeated(g, v)
    if narrow_k.dims[1] == narrow_v.dims[1]:
        k, v = narrow_k, narrow_v
    elif k.dims[1] != v.dims[1]:
        k, v = (g.broadcast(x, [batch, heads, *x.dims[2:]]) for x in (k, v))
    parts = 1 if scores.of_parts is None else int(scores.of_parts.dims[0])
    if scores.dropout and scores.keys is None and _is_multiple(batch, BATCH):
        parts = _quotient(batch, BATCH)  # what is dropped is a sample's
    if parts > 1 or scores.of_parts is not None:
        return g.reshape(_of_parts(g, q, k, v, scores, parts), dims)
    return g.reshape(_fused(g, q, k, v, scores), dims)


def _one_dim_of_heads(g: Lowering, q: Value, k: Value, v: Value, scores: _Scores) -> tuple[Value, Value, Value, _Scores]:
    """Of operands [B,G,H,...]: heads of G groups, which may share keys and values, or of G windows."""
    groups, heads = (next((x.dims[d] for x in (q, k, v) if x.dims[d] != 1), 1) for d in (1, 2))

    def whole(x: Value, groups: Extent, heads: Extent) -> Value:
        if x.dims[2] not in (1, heads):  # kv heads
            x = g.reshape(_repeated(g, g.reshape(x, [x.dims[0] * x.dims[1], *x.dims[2:]]), heads), [*x.dims[:2], heads, *x.dims[3:]])
        x = g.broadcast(x, [x.dims[0], groups, heads, *x.dims[3:]])
        return g.reshape(x, [x.dims[0], groups * heads, *x.dims[3:]])

    def of_scores(mask: Value | None) -> Value | None:
        if mask is None or mask.rank == 2:
            return mask
        mask = g.reshape(mask, [*(1,) * (5 - mask.rank), *mask.dims])
        return whole(mask, *((1, 1) if mask.dims[1:3] == (1, 1) else (groups, heads)))

    own = 1 if k.dims[2] == v.dims[2] == 1 else heads
    scores = replace(scores, chosen=of_scores(scores.chosen), added=of_scores(scores.added))
    return whole(q, groups, heads), whole(k, groups, own), whole(v, groups, own), scores


def _of_parts(g: Lowering, q: Value, k: Value, v: Value, scores: _Scores, parts: int) -> Value:
    """Parts of a sample, as windows of an image, are heads of it, those of a head one behind the other: they may have masks of their own."""
    batch, heads = q.dims[:2]
    outer = sympy.expand(sympy.sympify(batch) / parts)
    if not all(number.is_Integer for number in sympy.Poly(outer, BATCH, SEQUENCE).coeffs()):
        raise InexpressibleError(f"{text(batch)} samples in {parts} parts")
    outer = simplified(outer)

    def as_heads(x: Value, outer: Extent) -> Value:
        x = _repeated(g, x, heads)
        x = g.swap(g.reshape(x, [outer, parts, *x.dims[1:]]), 1, 2)
        return g.reshape(x, [outer, heads * parts, *x.dims[3:]])

    def of_scores(mask: Value | None) -> Value | None:
        if mask is None or mask.rank < 3 or mask.dims[:-2] in ((1, 1), (1,)):
            return mask
        mask = g.reshape(mask, [*(1,) * (4 - mask.rank), *mask.dims])
        if mask.dims[0] != 1:
            return as_heads(g.broadcast(mask, [batch, heads, *mask.dims[2:]]), outer)
        return as_heads(g.broadcast(mask, [parts, heads, *mask.dims[2:]]), 1)

    chosen, added, own = of_scores(scores.chosen), of_scores(scores.added), scores.of_parts
    if own is not None:
        if parts % own.dims[0]:
            raise NoRowError(f"with dropout, in {parts} parts of a sample, and masks of {own.dims[0]}")
        own = g.broadcast(g.reshape(own, [1, *own.dims]), [parts // own.dims[0], own.dims[0], heads, *own.dims[2:]])
        own = as_heads(g.reshape(own, [parts, *own.dims[2:]]), 1)
        added = own if added is None else g.binary("add", added, own)
    scores = replace(scores, chosen=chosen, added=added)
    out = _fused(g, as_heads(q, outer), as_heads(k, outer), as_heads(v, outer), scores)
    out = g.swap(g.reshape(out, [outer, heads, parts, *out.dims[2:]]), 1, 2)
    return g.reshape(out, [batch, heads, *out.dims[3:]])


def _repeated(g: Lowering, x: Value, heads: int) -> Value:
    """[B,K,T,D], or dims of 1, with each kv head as often as it has query heads."""
    if x.dims[1] == heads:
        return x
    wide = g.broadcast(g.reshape(x, [*x.dims[:2], 1, *x.dims[2:]]), [*x.dims[:2], heads // x.dims[1], *x.dims[2:]])
    return g.reshape(wide, [x.dims[0], heads, *x.dims[2:]])


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
    """q [B,H,S,D], k [B,K,T,D], v [B,K,T,V]. What the op knows of masks are its attributes and the bias of its keys, all else is a bias of scores."""
    batch, heads, queries, _ = q.dims
    keys = k.dims[2]
    # The op's result is 0 where a query sees nothing: the mean of all values would be another one for each query.
    knows_keys = scores.is_safe or not (scores.chosen is not None or (scores.causal and scores.keys is not None))
    knows_order = scores.causal and queries == keys and knows_keys
    attrs: dict[str, Any] = {"causal": knows_order, "scale": scores.scale}
    if scores.window and knows_order:
        attrs["window"] = scores.window
    if scores.softcap:
        attrs["softcap"] = scores.softcap
    more = []
    if scores.dropout:
        if batch != BATCH and any(BATCH in sympy.sympify(d).free_symbols for d in q.dims):
            raise NoRowError("with dropout, of other rows than samples")
        # Of a number of rows that is fixed each draws its own, whichever samples they are of.
        more += [g.rank_input("step"), g.rank_input("sample") if batch == BATCH else g.iota(0, "i64", [batch])]
        attrs |= {"dropout": float(scores.dropout), "dropout_key": g.next_dropout(), "dropout_seed": SEED}

    def over_scores(x: Value) -> Value:
        x = g.reshape(x, [*(1,) * (4 - x.rank), *x.dims])
        return g.broadcast(x, [batch if x.dims[0] != 1 else 1, heads if x.dims[1] != 1 else 1, queries, keys])

    bias, seen = None if scores.added is None else over_scores(scores.added), []
    if scores.chosen is not None:
        seen.append(g.cast(scores.chosen, "f32"))
    if scores.causal and not knows_order:
        seen.append(_behind(g, queries, keys, scores.window))
    sees_any = None  # of each query, to multiply with
    if scores.keys is not None:
        there = g.broadcast(g.cast(_there(g, scores), "f32"), [batch, keys])
        if knows_keys:
            more.append(_hiding(g, there, scores.nothing_seen))
            attrs["key_bias"] = True
            sees_any = g.reshape(_has_any(g, there), [batch, 1, 1, 1])
        else:
            seen.append(g.reshape(there, [batch, 1, 1, keys]))
    hiding = None
    if seen:
        all_seen = over_scores(functools.reduce(lambda a, b: g.binary("mul", a, b), seen))
        hiding = _hiding(g, all_seen, scores.nothing_seen)
        sees_any = g.reshape(_has_any(g, all_seen), [*all_seen.dims[:3], 1])
    if scores.nothing_seen == "constant" and sees_any is not None:
        q = g.binary("mul", q, sees_any)  # the scores are 0 then, with no derivative
    if bias is not None and not scores.is_safe and (scores.hides_added or scores.nothing_seen == "constant"):
        attrs["bias_yields"] = True
    if hiding is not None:
        bias = hiding if bias is None else g.binary("add", bias, hiding)
    if bias is not None:
        more.append(bias)
        attrs["bias"] = True
    operands = [*(g.swap(x, 1, 2) for x in (q, k, v)), *more]
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


def _hiding(g: Lowering, seen: Value, nothing_seen: str) -> Value:
    """What the op adds to scores: 0, or -inf where `seen` [...,T] is 0 and not 1."""
    if nothing_seen != "nothing":
        # Where all are 0: as if all were seen, or +inf, by which all scores are 0, and the results the mean of all values.
        is_empty = g.add_scalar(g.unary("reciprocal", g.reduce_sum(seen, [seen.rank - 1])), -1.0)  # inf; else at most 0
        if nothing_seen == "all":
            is_empty = g.unary("clamp", is_empty, min=0.0, max=1.0)
        seen = g.binary("maximum", seen, g.reshape(is_empty, [*is_empty.dims, 1]))
    return g.unary("log", seen)


def _has_any(g: Lowering, seen: Value) -> Value:
    """Whether one of the last dim is 1, of those that are 1 or 0: 1 or 0."""
    return g.unary("clamp", g.reduce_sum(seen, [seen.rank - 1]), min=0.0, max=1.0)


def _behind(g: Lowering, queries: Extent, keys: Extent, window: int) -> Value:
    """[S,T]: 1 where the key is the query's own or one before it, of the last `window`; else 0. Both begin at position 0."""
    i, j = g.iota(0, "f32", [queries, keys]), g.iota(1, "f32", [queries, keys])
    behind = g.binary("sub", i, j)
    seen = g.unary("clamp", g.add_scalar(behind, 1.0), min=0.0, max=1.0)
    if not window:
        return seen
    return g.binary("mul", seen, g.unary("clamp", g.add_scalar(g.scale(behind, -1.0), float(window)), min=0.0, max=1.0))
