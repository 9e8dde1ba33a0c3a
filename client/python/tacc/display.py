"""How a job is shown while it runs: plain HTML in a notebook, one line on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from html import escape
from typing import Any, Protocol

from tacc import html
from tacc.calls import ENDED, WatchItem
from tacc.errors import printable
from tacc.messages import EvalMetrics, JobEvent, JobStatus, StepMetrics
from tacc.numbers import count_text, percent_text, seconds_text

_COLOURS = {"failed": "#c0392b", "cancelled": "#b9770e", "finished": "#1e8449"}
_TRAIN, _EVAL = "#2471a3", "#d35400"
_NOTED = ("warning", "restarting", "resumed", "hang", "exported", "ended")
_RATE_STEPS = 20  # Steps over which rates are taken.


class Record:
    """What a stream has brought of a job."""

    def __init__(self, status: JobStatus):
        self.status = status
        self.losses: dict[int, float] = {}
        self.evals: dict[int, float] = {}
        self.steps: list[StepMetrics] = []
        self.notes: list[str] = []
        self.phase = ""

    def take(self, item: WatchItem) -> None:
        if isinstance(item, StepMetrics):
            self.losses[item.step] = item.loss
            self.steps = [*self.steps[1 - _RATE_STEPS :], item]
        elif isinstance(item, EvalMetrics):
            self.evals[item.step] = item.eval_loss
        elif isinstance(item, JobEvent):
            self.phase = item.phase
            if item.type in _NOTED and item.message:
                self.notes = [*self.notes[-2:], f"{item.type}: {item.message}"]

    @property
    def step(self) -> int:
        return self.steps[-1].step if self.steps else self.status.step

    @property
    def max_steps(self) -> int:
        return self.status.max_steps

    def eta_seconds(self) -> float | None:
        if not self.steps or not self.max_steps:
            return None
        return max(0, self.max_steps - self.step) * sum(step.seconds for step in self.steps) / len(self.steps)

    def facts(self) -> list[tuple[str, str]]:
        """Newest values with their names."""
        out = [("step", f"{self.step} / {self.max_steps}" if self.max_steps else str(self.step))]
        if not self.steps:
            return out
        last = self.steps[-1]
        seconds = sum(step.seconds for step in self.steps)
        out.append(("loss", f"{last.loss:.4f}"))
        if self.evals:
            out.append(("held-out loss", f"{self.evals[max(self.evals)]:.4f}"))
        if seconds > 0:
            out.append(("tokens/s", count_text(sum(step.tokens for step in self.steps) / seconds)))
            batch = self.status.plan.global_batch_size if self.status.plan else 0
            if batch:
                out.append(("samples/s", count_text(batch * len(self.steps) / seconds)))
        mfu = [step.mfu for step in self.steps if step.mfu is not None]
        if mfu:
            out.append(("MFU", percent_text(sum(mfu) / len(mfu))))
        if self.status.phase not in ENDED and (left := self.eta_seconds()) is not None:
            out.append(("left", seconds_text(left)))
        return out


def record_html(record: Record) -> str:
    """Bar, newest values, loss curves, and what happened last."""
    status = record.status
    phase = status.phase if status.phase in ENDED else record.phase or status.phase
    share = record.step / record.max_steps if record.max_steps else 0.0
    head = (
        f'<div style="margin-bottom: .3em"><b>{escape(status.id)}</b> '
        f'<span style="color: {_COLOURS.get(phase, "inherit")}">{escape(phase)}</span></div>'
    )
    lines = [("loss", _TRAIN, sorted(record.losses.items())), ("held-out loss", _EVAL, sorted(record.evals.items()))]
    notes = [*record.notes]
    if status.phase in ("failed", "cancelled", "waiting", "compiling") and status.reason:
        notes.append(status.reason)
    if status.phase == "finished" and status.exported_path:
        notes.append(f"model: {status.exported_path}")
    return html.card(
        head
        + html.bar(share, f"{status.id}: {100 * share:.0f} %", _COLOURS.get(phase, _TRAIN))
        + html.facts(record.facts())
        + html.curves(lines, f"Loss of {status.id} over steps")
        + "".join(html.paragraph(note) for note in dict.fromkeys(notes))
    )


def job_html(status: JobStatus, items: Iterable[WatchItem]) -> str:
    record = Record(status)
    for item in items:
        record.take(item)
    return record_html(record)


def record_line(record: Record) -> str:
    """The same in a line: "tiny-1 running  step 12 / 100  loss 3.1420  ..."."""
    phase = record.status.phase if record.status.phase in ENDED else record.phase or record.status.phase
    return printable(f"{record.status.id} {phase}  " + "  ".join(f"{name} {value}" for name, value in record.facts()))


class View(Protocol):
    """A place where a record is shown."""

    seconds: float  # Between two pictures.

    def draw(self, record: Record) -> None: ...

    def end(self, record: Record) -> None: ...


class NotebookView:
    seconds = 0.5

    def __init__(self) -> None:
        from IPython.display import HTML, display  # type: ignore[import-not-found,unused-ignore]

        self._html = HTML
        self._handle = display(HTML(""), display_id=True)

    def draw(self, record: Record) -> None:
        self._handle.update(self._html(record_html(record)))

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
    """Draws from time to time, and asks for the job's state when that has changed."""

    def __init__(self) -> None:
        self.view = choose_view()
        self.record: Record | None = None
        self._next = 0.0

    def take(self, item: WatchItem) -> bool:
        """Whether the job's state has to be asked for."""
        assert self.record is not None
        self.record.take(item)
        return isinstance(item, JobEvent)

    def draw(self, at_once: bool = False) -> None:
        assert self.record is not None
        if at_once or time.monotonic() >= self._next:
            self.view.draw(self.record)
            self._next = time.monotonic() + self.view.seconds


def shown(status: Callable[[], JobStatus], items: Iterable[WatchItem]) -> Iterator[WatchItem]:
    """The items, while the job is shown."""
    shows = _Shown()
    shows.record = Record(status())
    shows.draw()
    for item in items:
        if shows.take(item):
            shows.record.status = status()
        shows.draw()
        yield item
    shows.record.status = status()
    shows.view.end(shows.record)


async def shown_async(status: Callable[[], Awaitable[JobStatus]], items: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The items, while the job is shown."""
    shows = _Shown()
    shows.record = Record(await status())
    shows.draw()
    async for item in items:
        if shows.take(item):
            shows.record.status = await status()
        shows.draw()
        yield item
    shows.record.status = await status()
    shows.view.end(shows.record)
