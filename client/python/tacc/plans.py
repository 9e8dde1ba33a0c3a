"""What the planner answers: layouts with what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tacc.show import html
from tacc.show.numbers import bytes_text, count_text, percent_text, seconds_text

_SHOWN = 12  # Layouts of a plan in a notebook.


@dataclass(frozen=True, kw_only=True, repr=False)
class Layout:
    """A way to run the job, with what is predicted of it.

    Attributes:
        mesh: Axis -> size, from between nodes to inside a node.
        precision: "f32", "tf32", "bf16" or "f16".
        per_device_train_batch_size: Samples that a worker computes at a time.
        accumulation: Micro-batches of a step.
        fits: Whether a worker has memory for it.
        estimated: Whether it is an estimate, not a compiled and simulated program.
        step_seconds: Of one update.
        tokens_per_second: Of all workers.
        mfu: Model FLOPs utilisation, 0..1; None: the peak of the device is not known.
        memory_bytes: Of one rank, by kind (weights, gradients, optimizer, temporaries, ...); "total" is their sum.
        settings: Fields of the job file, by section, that choose this layout: `config.update(layout.settings)`.
        why_not: Why another is better; empty: it is the one to take.
        raw: All that the planner says of it (docs/contracts.md, Candidates).
    """

    mesh: dict[str, int]
    precision: str
    per_device_train_batch_size: int
    accumulation: int
    fits: bool
    estimated: bool
    step_seconds: float
    tokens_per_second: float
    mfu: float | None
    memory_bytes: dict[str, int]
    settings: dict[str, Any]
    why_not: str
    raw: dict[str, Any]

    @classmethod
    def _from_json(cls, raw: dict[str, Any]) -> Layout:
        mesh = raw.get("mesh", {})
        return cls(
            mesh={axis: mesh[axis] for axis in raw.get("axes", mesh) if axis in mesh},
            precision=raw.get("precision", ""),
            per_device_train_batch_size=int(raw.get("per_device_train_batch_size", 0)),
            accumulation=int(raw.get("accumulation", 0)),
            fits=raw.get("fits", True),
            estimated=raw.get("estimated", False),
            step_seconds=raw.get("predicted_step_seconds", 0.0),
            tokens_per_second=raw.get("predicted_tokens_per_second", 0.0),
            mfu=raw.get("predicted_mfu"),
            memory_bytes={kind.removesuffix("_bytes"): int(value) for kind, value in raw.get("memory", {}).items() if kind.endswith("_bytes")},
            settings=raw.get("settings", {}),
            why_not=raw.get("why_not", ""),
            raw=raw,
        )

    def __repr__(self) -> str:
        mesh = " ".join(f"{axis}={size}" for axis, size in self.mesh.items())
        return f"Layout({mesh}, {self.precision}, {seconds_text(self.step_seconds)} a step, {bytes_text(self.memory_bytes.get('total', 0))} a worker)"


class Plan:
    """Layouts for a job, best first. In a notebook it shows as a table.

    Attributes:
        layouts: Those that became programs and were simulated; the first is the one to take.
        others: The best of each other mesh, by estimate.
        raw: The planner's answer (docs/contracts.md, Candidates).
    """

    def __init__(self, raw: dict[str, Any]):
        self.raw = raw
        self.layouts = [Layout._from_json(layout) for layout in raw["candidates"]]
        self.others = [Layout._from_json(layout) for layout in raw.get("losers", [])]

    @property
    def best(self) -> Layout:
        """The layout to take."""
        return self.layouts[0]

    @property
    def fits(self) -> bool:
        """Whether any layout fits in memory."""
        return self.best.fits

    @property
    def words(self) -> list[str]:
        """Why it is the best, or what is missing and what would do: paragraphs for people."""
        return list(self.best.raw.get("words", []))

    def table(self) -> Any:
        """A row for each layout: a pandas DataFrame, or a dict of lists where pandas is not installed. Seconds, bytes, tokens a second."""
        layouts = [*self.layouts, *self.others]
        columns: dict[str, list[Any]] = {
            "mesh": [" ".join(f"{axis}={size}" for axis, size in layout.mesh.items()) for layout in layouts],
            "precision": [layout.precision for layout in layouts],
            "batch": [f"{layout.per_device_train_batch_size} x {layout.accumulation}" for layout in layouts],
            "memory_bytes": [layout.memory_bytes.get("total", 0) for layout in layouts],
            "step_seconds": [layout.step_seconds for layout in layouts],
            "tokens_per_second": [layout.tokens_per_second for layout in layouts],
            "mfu": [layout.mfu for layout in layouts],
            "estimated": [layout.estimated for layout in layouts],
            "why_not": [layout.why_not or ("taken" if layout.fits else "does not fit") for layout in layouts],
        }
        try:
            import pandas as pd
        except ImportError:
            return columns
        return pd.DataFrame(columns)

    def __repr__(self) -> str:
        return f"Plan({self.best!r}{'' if self.fits else ', does not fit'}; {len(self.layouts) + len(self.others) - 1} others)"

    def _repr_html_(self) -> str:
        rows = []
        layouts = [*self.layouts, *self.others]
        for layout in layouts[:_SHOWN]:
            about = "~" if layout.estimated else ""
            rows.append(
                [
                    " ".join(f"{axis}={size}" for axis, size in layout.mesh.items()),
                    layout.precision,
                    f"{layout.per_device_train_batch_size} × {layout.accumulation}",
                    about + bytes_text(layout.memory_bytes.get("total", 0)),
                    about + seconds_text(layout.step_seconds),
                    about + count_text(layout.tokens_per_second),
                    about + percent_text(layout.mfu) if layout.mfu is not None else "–",
                    layout.why_not or ("taken" if layout.fits else "does not fit"),
                ]
            )
        heads = ["mesh", "precision", "batch", "memory a worker", "step", "tokens/s", "MFU", ""]
        more = html.paragraph(f"… and {len(layouts) - _SHOWN} more: .table()") if len(layouts) > _SHOWN else ""
        return html.card(html.table(heads, rows) + more + "".join(html.paragraph(words) for words in self.words), width="90em")
