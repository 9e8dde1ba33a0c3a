"""Rotary position embeddings, which patterns/rotary.py has found."""

from __future__ import annotations

from typing import Any

from tacc.exporting.graph_text import Value, Word
from tacc.exporting.lowering import Lowering
from tacc.exporting.patterns.rotary import ROTARY
from tacc.exporting.table import row


@row(ROTARY)
def rotary(g: Lowering, x: Value, dim: int, frequencies: list[float], scale: float) -> Value:
    """x [...], the sequence in `dim`; the op has it in dim 1, and heads in dim 2."""
    heads_last = g.swap(x, dim, 1)
    length = heads_last.dims[1]
    attrs: dict[str, Any] = {} if scale == 1.0 else {"attention_scale": scale}
    key = f"rope_table {length} {frequencies} {scale}"
    if key not in g.shared:
        table = ("f32", [length, len(frequencies)])
        g.shared[key] = g.add("rope_table", [], [table, table], module="", inv_freq=frequencies, length=length, **attrs)
    cos, sin = g.shared[key]
    return g.swap(g.unary_with("rotary", [heads_last, cos, sin], style=Word("half")), dim, 1)
