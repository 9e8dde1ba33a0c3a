"""Pieces of plain HTML for notebooks: no script, no file from elsewhere; light and dark by `currentColor`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


def card(inside: str, *, width: str = "60em") -> str:
    """What a notebook shows of one thing, at most so wide."""
    return f'<div style="font: 13px/1.5 system-ui, sans-serif; max-width: {width}">{inside}</div>'


def heading(name: str, word: str, colour: str) -> str:
    """A name with a word of its state, behind a dot of the state's colour."""
    dot = f'<span aria-hidden="true" style="color: {colour}">&#9679;</span>'
    return f'<div style="margin-bottom: .3em"><b>{escape(name)}</b> {dot} {escape(word)}</div>'


def paragraph(text: str) -> str:
    return f'<p style="margin: .5em 0; text-align: left">{escape(text)}</p>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table. The last column takes the room that is left, and wraps."""
    style = "text-align: left; padding: .15em .8em .15em 0; border: none; font-variant-numeric: tabular-nums; vertical-align: top"

    def cells(tag: str, row: Sequence[str]) -> str:
        narrow = f'<{tag} style="{style}; white-space: nowrap">'
        last = f'<{tag} style="{style}">'
        return "<tr>" + "".join(f"{narrow if i + 1 < len(row) else last}{escape(text)}</{tag}>" for i, text in enumerate(row)) + "</tr>"

    body = "".join(cells("td", row) for row in rows)
    outer = "font: inherit; color: inherit; border-collapse: collapse; margin: 0"
    return f'<table style="{outer}"><thead>{cells("th", heads)}</thead><tbody>{body}</tbody></table>'


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
        f'<span style="white-space: nowrap"><span style="opacity: .65">{escape(name)}</span> '
        f'<b style="font-variant-numeric: tabular-nums">{escape(value)}</b></span>'
        for name, value in pairs
    )
    return f'<div style="display: flex; flex-wrap: wrap; gap: 0 1.4em; margin: .4em 0; line-height: 1.8">{cells}</div>'


@dataclass(frozen=True)
class Line:
    """A curve: (x, y) with x ascending. Where y is not finite, it breaks off. Without a name it is not in the legend."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    dots: bool = False  # For few points, far apart.
    dashed: bool = False

    def pieces(self) -> list[list[tuple[float, float]]]:
        out: list[list[tuple[float, float]]] = [[]]
        for x, y in self.points:
            if math.isfinite(y):
                out[-1].append((x, y))
            elif out[-1]:
                out.append([])
        return [piece for piece in out if piece]


def curves(lines: Sequence[Line], label: str, *, empty: str = "", width: int = 760, height: int = 200) -> str:
    """Curves over steps as SVG. With fewer than two points a frame of the same size with the text `empty`, or nothing where that is empty."""
    kept = [(line, pieces) for line in lines if (pieces := line.pieces())]
    every = [point for _, pieces in kept for piece in pieces for point in piece]
    left, top, right, bottom = 56, 26, 10, 22
    across, down = width - left - right, height - top - bottom
    out = [f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {width} {height}" style="width: 100%; display: block">']
    text = 'fill="currentColor" opacity=".75" font-size="11" font-family="system-ui, sans-serif"'
    if len(every) < 2:
        if not empty:
            return ""
        out.append(f'<rect x="{left}" y="{top}" width="{across}" height="{down}" fill="none" stroke="currentColor" opacity=".15"/>')
        out.append(f'<text x="{left + across / 2}" y="{top + down / 2}" text-anchor="middle" {text}>{escape(empty)}</text>')
        return "".join(out) + "</svg>"
    low_x, high_x = min(x for x, _ in every), max(x for x, _ in every)
    low_y, high_y = min(y for _, y in every), max(y for _, y in every)
    if high_y - low_y < 1e-12 * max(1.0, abs(high_y)):
        room = max(0.5, abs(high_y) / 2)
        low_y, high_y = low_y - room, high_y + room

    def at(x: float, y: float) -> tuple[float, float]:
        return left + (x - low_x) / max(high_x - low_x, 1e-12) * across, top + (high_y - y) / (high_y - low_y) * down

    for value in _ticks(low_y, high_y):
        y = at(low_x, value)[1]
        out.append(f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" opacity=".15"/>')
        out.append(f'<text x="{left - 7}" y="{y + 4:.1f}" text-anchor="end" {text}>{value:.6g}</text>')
    out.append(f'<text x="{left}" y="{height - 5}" {text}>{low_x:,.0f}</text>')
    out.append(f'<text x="{width - right}" y="{height - 5}" text-anchor="end" {text}>step {high_x:,.0f}</text>')
    for line, pieces in kept:
        for piece in pieces:
            if len(piece) > 1:
                dash = ' stroke-dasharray="5 4"' if line.dashed else ""
                path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in piece))
                out.append(f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="1.6" stroke-linejoin="round"{dash}/>')
            if (line.dots and len(line.points) <= 60) or len(piece) == 1:
                out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{line.colour}"/>' for x, y in (at(*point) for point in piece)]
    x = float(left)
    for line in (line for line, _ in kept if line.name):  # In a row above the curves; a letter is about as wide as that.
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        out.append(f'<line x1="{x:.0f}" x2="{x + 16:.0f}" y1="10" y2="10" stroke="{line.colour}" stroke-width="3"{dash}/>')
        out.append(f'<text x="{x + 21:.0f}" y="14" {text}>{escape(line.name)}</text>')
        x += 21 + 6.5 * len(line.name) + 20
    return "".join(out) + "</svg>"


def _ticks(low: float, high: float) -> list[float]:
    """Three to six round values between, and on, `low` and `high`."""
    size = 10.0 ** math.floor(math.log10(high - low))
    step = next(size * part for part in (2, 1, 0.5, 0.25) if (high - low) / (size * part) >= 3)
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
