"""How far a long piece of work is: a line on a terminal or below a notebook's cell, or what a caller is told."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

INTERVAL_SECONDS = 0.1  # Between two reports, at least.


@dataclass(frozen=True)
class ProgressReport:
    """How far one stage of the work is.

    Attributes:
        stage: What is done now: "reading", "training the tokenizer", "tokenizing" or "writing".
        done: How much of it is done, in `unit`.
        total: How much there is; None: not known before the end.
        unit: "records", "bytes" (of the input) or "tokens".
        seconds: Since the stage began.
    """

    stage: str
    done: int
    total: int | None
    unit: str
    seconds: float


Observer = Callable[[ProgressReport], None]


class Progress:
    """One stage. Reports at its beginning, at its end, and not too often between."""

    def __init__(self, label: str, total: int | None, unit: str = "bytes", observer: Observer | None = None):
        """`observer` is called in place of the line."""
        self._label = label
        self._total = total
        self._unit = unit
        self._observer = observer
        self._done = 0
        self._start = time.monotonic()
        self._reported = 0.0
        self._columns = 0  # Of what the line now shows in a notebook.
        self._in_notebook = type(sys.stderr).__module__.startswith("ipykernel.")
        self._visible = observer is None and (self._in_notebook or sys.stderr.isatty())

    def __enter__(self) -> "Progress":
        if self._observer is not None:
            self._report(self._start)
        return self

    def add(self, amount: int) -> None:
        self._done += amount
        now = time.monotonic()
        if (self._visible or self._observer is not None) and now - self._reported > INTERVAL_SECONDS:
            self._report(now)

    def _report(self, now: float) -> None:
        self._reported = now
        if self._observer is None:
            self._draw(now)
        else:
            self._observer(ProgressReport(self._label, self._done, self._total, self._unit, now - self._start))

    def _draw(self, now: float) -> None:
        seconds = max(now - self._start, 1e-6)
        rate = self._done / seconds
        speed = f"{rate / 1e6:.1f} MB/s" if self._unit == "bytes" else f"{rate:,.0f} {self._unit}/s"
        columns = 80
        if not self._in_notebook:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80  # a line that wraps is never cleared
        if self._total is None:
            self._show(f"{self._label}: {self._done:,} {self._unit}, {speed} "[: columns - 1])
            return
        fraction = min(self._done / max(self._total, 1), 1.0)
        left = seconds * (1 - fraction) / fraction if fraction > 0 else 0
        text = f"] {100 * fraction:3.0f} %  {speed}  {left:.0f} s left "
        room = max(min(30, columns - 1 - len(self._label) - len(text) - 2), 0)
        bar = ("#" * int(room * fraction)).ljust(room, ".")
        self._show(f"{self._label} [{bar}{text}"[: columns - 1])

    def _show(self, line: str) -> None:
        """In place of what was shown. A notebook knows no sequence that clears the rest of a line."""
        rest = " " * (self._columns - len(line)) + ("" if line else "\r") if self._in_notebook else "\x1b[K"
        self._columns = len(line)
        sys.stderr.write(f"\r{line}{rest}")
        sys.stderr.flush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._visible:
            self._show("")
        elif self._observer is not None and kind is None:
            if self._total is not None:
                self._done = self._total
            self._report(time.monotonic())
