"""How a job is shown while it runs: plain HTML in a notebook, one line on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, Protocol

from tacc.calls import ENDED, WatchItem
from tacc.errors import printable
from tacc.messages import EvalMetrics, JobEvent, JobStatus, StepMetrics
from tacc.show import html
from tacc.show.curve import Curve
from tacc.show.numbers import count_text, percent_text, seconds_text

# Between light and dark: each is told from white and from black.
_TRAIN, _EVAL = "#3584c6", "#e06c1f"
_COLOURS = {"failed": "#d64541", "cancelled": "#b9770e", "finished": "#2f9e5b"}
_NOTED = ("warning", "restarting", "resumed", "hang")
_RATE_STEPS = 50  # Steps over which rates are taken.
_NOTES = 3


class Record:
    """What a stream has brought of a job. Taking an item costs the same, and so does showing it, at any number of steps."""

    def __init__(self, status: JobStatus):
        self.status = status
        self.losses, self.evals = Curve(), Curve()
        self.last: StepMetrics | None = None
        self.last_eval: EvalMetrics | None = None
        self.not_finite_since = 0  # Step since which no loss was finite; 0: the last was.
        self._steps: deque[StepMetrics] = deque(maxlen=_RATE_STEPS)  # Of the newest attempt.
        self._notes: deque[str] = deque(maxlen=_NOTES)
        self._phase = ""

    def take(self, item: WatchItem) -> None:
        if isinstance(item, StepMetrics):
            if self.last is not None and (item.attempt != self.last.attempt or item.step <= self.last.step):
                self._steps.clear()
            self._steps.append(item)
            self.last = item
            self.losses.add(item.step, item.loss)
            self.not_finite_since = 0 if math.isfinite(item.loss) else self.not_finite_since or item.step
        elif isinstance(item, EvalMetrics):
            self.last_eval = item
            self.evals.add(item.step, item.eval_loss)
        elif isinstance(item, JobEvent):
            if item.phase != "submitted" or self.status.phase == "submitted":  # The first events may be older than the status.
                self._phase = item.phase
            if item.type in _NOTED and item.message:
                self._notes.append(f"{item.type}: {item.message}")

    @property
    def has_ended(self) -> bool:
        return self.status.phase in ENDED

    @property
    def phase(self) -> str:
        return self.status.phase if self.has_ended else self._phase or self.status.phase

    @property
    def step(self) -> int:
        return self.last.step if self.last else self.status.step

    @property
    def share(self) -> float:
        return self.step / self.status.max_steps if self.status.max_steps else 0.0

    def eta_seconds(self) -> float | None:
        """By the clock, so with evaluations and checkpoints between steps. None: it does not train, or not yet for two steps."""
        if self.phase != "running" or len(self._steps) < 2 or not self.status.max_steps:
            return None
        first, last = self._steps[0], self._steps[-1]
        return max(0, self.status.max_steps - last.step) * max(0.0, last.time - first.time) / (len(self._steps) - 1)

    def facts(self) -> list[tuple[str, str]]:
        """Newest values with their names."""
        of = f" / {self.status.max_steps:,}" if self.status.max_steps else ""
        out = [("step", f"{self.step:,}{of}")]
        if self.last is not None:
            out.append(("loss", f"{self.last.loss:.4f}"))
        if self.last_eval is not None:
            out.append(("held-out loss", f"{self.last_eval.eval_loss:.4f}"))
        seconds = sum(step.seconds for step in self._steps)
        if seconds > 0:
            out.append(("tokens/s", count_text(sum(step.tokens for step in self._steps) / seconds)))
            batch = self.status.plan.global_batch_size if self.status.plan else 0
            if batch:
                out.append(("samples/s", count_text(batch * len(self._steps) / seconds)))
        mfu = [step.mfu for step in self._steps if step.mfu is not None]
        if mfu:
            out.append(("MFU", percent_text(sum(mfu) / len(mfu))))
        if self.status.restarts:
            out.append(("restarts", f"{len(self.status.restarts)}"))
        if self.status.skipped_steps:
            out.append(("skipped updates", f"{self.status.skipped_steps:,}"))
        if (left := self.eta_seconds()) is not None:
            out.append(("left", seconds_text(left)))
        return out

    def notes(self) -> list[str]:
        """What has happened, and what is wrong."""
        out = list(self._notes)
        if self.not_finite_since:
            out.append(f"the loss is not finite since step {self.not_finite_since:,}")
        if self.phase in ("failed", "cancelled", "waiting", "compiling") and self.status.reason:
            out.append(self.status.reason)
        if self.phase == "finished" and self.status.exported_path:
            out.append(f"model: {near(self.status.exported_path)}")
        return list(dict.fromkeys(out))


def near(path: str) -> str:
    """The path as one would write it here."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # The folder where this process is has gone.
        return path
    return path if relative.startswith("..") else relative


def record_html(record: Record) -> str:
    """Bar, newest values, loss curves, and what happened last. Of the same height from the first step to the last, but for what happens."""
    job, phase = record.status.id, record.phase
    colour = _COLOURS.get(phase, _TRAIN)
    lines = [html.Line("loss", _TRAIN, record.losses.points()), html.Line("held-out loss", _EVAL, record.evals.points(), dots=True)]
    newest = f", now {record.last.loss:.4f}" if record.last and math.isfinite(record.last.loss) else ""
    return html.card(
        html.heading(job, phase, colour)
        + html.bar(record.share, f"{job}: {100 * record.share:.0f} %", colour)
        + html.facts(record.facts())
        + html.curves(lines, f"Loss of {job} over steps{newest}", empty="" if record.has_ended else "the loss comes with the first steps")
        + "".join(html.paragraph(note) for note in record.notes())
    )


def job_html(status: JobStatus, items: Iterable[WatchItem]) -> str:
    record = Record(status)
    for item in items:
        record.take(item)
    return record_html(record)


def record_line(record: Record) -> str:
    """The same in a line: "tiny-1 running  step 12 / 100  loss 3.1420  ...", or what the job waits for."""
    facts = [f"{name} {value}" for name, value in record.facts()]
    if record.phase == "waiting" and record.status.reason:
        facts.append(record.status.reason)
    return printable(f"{record.status.id} {record.phase}  " + "  ".join(facts))


class View(Protocol):
    """A place where a record is shown."""

    seconds: float  # Between two pictures.

    def draw(self, record: Record) -> None: ...

    def end(self, record: Record) -> None: ...


class NotebookView:
    """Draws in one place below the cell. What is kept in the notebook also says it in words, for who cannot see it."""

    seconds = 0.5

    def __init__(self) -> None:
        from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

        self._display = display
        self._handle: Any = None

    def draw(self, record: Record) -> None:
        bundle = {"text/html": record_html(record), "text/plain": record_line(record)}
        if self._handle is None:
            self._handle = self._display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    end = draw


class TerminalView:
    seconds = 0.2

    def draw(self, record: Record) -> None:
        room = max(1, shutil.get_terminal_size().columns - 1)
        sys.stderr.write(f"\r{record_line(record)[:room]}\x1b[K")
        sys.stderr.flush()

    def end(self, record: Record) -> None:
        self.draw(record)
        sys.stderr.write("\n")
        sys.stderr.flush()


class LinesView:
    seconds = 5.0

    def draw(self, record: Record) -> None:
        print(record_line(record), file=sys.stderr, flush=True)

    end = draw


def choose_view() -> View:
    """By where this process runs."""
    shell = sys.modules.get("IPython")
    if shell is not None and getattr(shell.get_ipython(), "kernel", None) is not None:
        return NotebookView()
    return TerminalView() if sys.stderr.isatty() else LinesView()


class _Shown:
    """Draws from time to time, and when the job's phase changes: of a job that waits nothing more may come for long. What has happened makes the
    job's state old, which is asked for before the next picture."""

    def __init__(self, status: JobStatus):
        self.view = choose_view()
        self.record = Record(status)
        self.is_old = False
        self.draw()

    def take(self, item: WatchItem) -> None:
        self.record.take(item)
        self.is_old = self.is_old or isinstance(item, JobEvent)

    def is_due(self) -> bool:
        return time.monotonic() >= self._next or self.record.phase != self._phase

    def draw(self) -> None:
        self.view.draw(self.record)
        self._phase = self.record.phase
        self._next = time.monotonic() + self.view.seconds


def shown(status: Callable[[], JobStatus], items: Iterable[WatchItem]) -> Iterator[WatchItem]:
    """The items, while the job is shown."""
    shows = _Shown(status())
    try:
        for item in items:
            shows.take(item)
            if shows.is_due():
                if shows.is_old:
                    shows.record.status, shows.is_old = status(), False
                shows.draw()
            yield item
        shows.record.status = status()
    finally:  # Also when nobody waits any longer: the cursor leaves the line.
        shows.view.end(shows.record)


async def shown_async(status: Callable[[], Awaitable[JobStatus]], items: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The items, while the job is shown."""
    shows = _Shown(await status())
    try:
        async for item in items:
            shows.take(item)
            if shows.is_due():
                if shows.is_old:
                    shows.record.status, shows.is_old = await status(), False
                shows.draw()
            yield item
        shows.record.status = await status()
    finally:
        shows.view.end(shows.record)
