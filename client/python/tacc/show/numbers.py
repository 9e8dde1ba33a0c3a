"""Numbers for people."""

from __future__ import annotations

import math


def seconds_text(seconds: float | None) -> str:
    """ "340 ms", "1.25 s", "3 min 20 s", "5 h 10 min", "2 d 3 h"."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 59.995:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"


def count_text(value: float | None) -> str:
    """ "950", "12.3 k", "4.57 M"."""
    if value is None or not math.isfinite(value):
        return "–"
    for limit, unit in ((999.5e9, "T"), (999.5e6, "G"), (999.5e3, "M"), (999.5, "k")):
        if abs(value) >= limit:
            return f"{value / (limit / 0.9995):.3g} {unit}"
    return f"{value:.3g}"


def bytes_text(value: float | None) -> str:
    """ "512 B", "1.50 GiB"."""
    if value is None or not math.isfinite(value):
        return "–"
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(value) >= 1024**power:
            return f"{value / 1024**power:.2f} {unit}"
    return f"{value:.0f} B"


def percent_text(share: float | None) -> str:
    """ "43.2 %", of 0..1."""
    return "–" if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"
