"""Pieces of plain HTML for notebooks: no script, no file from elsewhere; light and dark by `currentColor`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

_MAX_POINTS = 400


def card(inside: str) -> str:
    return f'<div style="font: 13px/1.5 system-ui, sans-serif; max-width: 60em">{inside}</div>'


def paragraph(text: str) -> str:
    return f'<p style="margin: .5em 0; text-align: left">{escape(text)}</p>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    style = "text-align: left; padding: .15em .8em .15em 0; border: none; font-variant-numeric: tabular-nums; vertical-align: top"
    head = "".join(f'<th style="{style}">{escape(text)}</th>' for text in heads)
    body = "".join("<tr>" + "".join(f'<td style="{style}">{escape(text)}</td>' for text in row) + "</tr>" for row in rows)
    return f'<table style="border-collapse: collapse; margin: 0"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def bar(share: float, label: str, colour: str) -> str:
    """A bar, `share` (0..1) of it filled."""
    percent = 100 * min(max(share, 0.0), 1.0)
    return (
        f'<div role="progressbar" aria-label="{escape(label)}" aria-valuenow="{percent:.0f}" aria-valuemin="0" aria-valuemax="100" '
        'style="background: rgba(128,128,128,.25); border-radius: 4px; height: 8px; overflow: hidden">'
        f'<div style="width: {percent:.2f}%; height: 100%; background: {colour}"></div></div>'
    )


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Names with values, in a row that wraps."""
    cells = "".join(
        f'<span style="margin-right: 1.4em; white-space: nowrap"><span style="opacity: .65">{escape(name)}</span> '
        f'<b style="font-variant-numeric: tabular-nums">{escape(value)}</b></span>'
        for name, value in pairs
    )
    return f'<div style="margin: .4em 0; line-height: 1.8">{cells}</div>'


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most about _MAX_POINTS: each is the mean of its neighbours, so that a long curve keeps its shape."""
    every = max(1, math.ceil(len(points) / _MAX_POINTS))
    groups = [points[i : i + every] for i in range(0, len(points), every)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def curves(lines: Sequence[tuple[str, str, Sequence[tuple[float, float]]]], label: str, *, width: int = 560, height: int = 150) -> str:
    """Curves over steps as SVG, each (name, colour, points); what is not finite is left out."""
    kept = [(name, colour, _thinned([p for p in points if math.isfinite(p[1])])) for name, colour, points in lines]
    kept = [line for line in kept if line[2]]
    every = [point for _, _, points in kept for point in points]
    if len(every) < 2:
        return ""
    low_x, high_x = min(x for x, _ in every), max(x for x, _ in every)
    low_y, high_y = min(y for _, y in every), max(y for _, y in every)
    if high_y - low_y < 1e-12 * max(1.0, abs(high_y)):
        low_y, high_y = low_y - 0.5, high_y + 0.5
    left, top, right, bottom = 52, 8, 8, 20

    def at(x: float, y: float) -> str:
        across = (x - low_x) / max(high_x - low_x, 1e-12)
        down = (high_y - y) / (high_y - low_y)
        return f"{left + across * (width - left - right):.1f},{top + down * (height - top - bottom):.1f}"

    out = [f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {width} {height}" style="max-width: {width}px; width: 100%; display: block">']
    text = 'fill="currentColor" opacity=".65" font-size="11"'
    for value in (low_y, (low_y + high_y) / 2, high_y):
        y = top + (high_y - value) / (high_y - low_y) * (height - top - bottom)
        out.append(f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" opacity=".15"/>')
        out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" {text}>{value:.4g}</text>')
    out.append(f'<text x="{left}" y="{height - 4}" {text}>{low_x:.0f}</text>')
    out.append(f'<text x="{width - right}" y="{height - 4}" text-anchor="end" {text}>step {high_x:.0f}</text>')
    for index, (name, colour, points) in enumerate(kept):
        if len(points) > 1:
            path = " ".join(at(x, y) for x, y in points)
            out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6" stroke-linejoin="round"/>')
        out += [f'<circle cx="{xy.split(",")[0]}" cy="{xy.split(",")[1]}" r="2.4" fill="{colour}"/>' for xy in (at(x, y) for x, y in points) if len(points) <= 40]
        out.append(f'<text x="{width - right}" y="{top + 12 + 14 * index}" text-anchor="end" font-size="11" fill="{colour}">{escape(name)}</text>')
    return "".join(out) + "</svg>"
