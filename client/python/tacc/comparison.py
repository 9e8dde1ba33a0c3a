"""`tacc.compare`: runs beside each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tacc.calls import WatchItem
from tacc.client import Job
from tacc.display import Record
from tacc.errors import InputError
from tacc.fitting import FitResult
from tacc.messages import EvalMetrics, JobStatus, StepMetrics
from tacc.reporting import flat
from tacc.show import html

_COLOURS = ("#3584c6", "#e06c1f", "#2f9e5b", "#a05cc9", "#c23b6b", "#8a7d12")  # Told from white and from black.
_OF_A_RUN = ("name", "checkpoint.dir")  # Settings that any two runs differ in.


def compare(jobs: Iterable[Job | FitResult]) -> Comparison:
    """Runs beside each other: loss curves in one picture, newest values, and the settings that differ.

        tacc.compare([job, other])       # in a notebook the picture; elsewhere .settings and .table()

    Args:
        jobs: Two or more, running or ended.

    Raises:
        InputError: They are not two or more different jobs.
    """
    if not isinstance(jobs, Iterable):
        raise InputError(f"compare takes a list of jobs, as [job, other], not a {type(jobs).__name__}")
    taken = [run.job if isinstance(run, FitResult) else run for run in jobs]
    for run in taken:
        if not isinstance(run, Job):
            raise InputError(f"compare takes jobs and results of tacc.fit, not {run!r}; client.job(NAME) finds a job")
    if len({job.id for job in taken}) < 2:
        raise InputError("compare takes two or more different jobs")
    return Comparison([(job.status(), list(job.watch(follow=False))) for job in taken])


class Comparison:
    """What `compare` gives.

    Attributes:
        ids: Of the jobs, as they were given.
        settings: Settings that differ -> value of each job; None: the planner decides, or it has its default.
    """

    def __init__(self, runs: list[tuple[JobStatus, list[WatchItem]]]):
        self.ids = [status.id for status, _ in runs]
        self._items = [items for _, items in runs]
        self._records = []
        for status, items in runs:
            record = Record(status)
            for item in items:
                record.take(item)
            self._records.append(record)
        specs = [{name: value for name, value in flat(status.spec or {}).items() if value != []} for status, _ in runs]
        names = dict.fromkeys(name for spec in specs for name in spec if name not in _OF_A_RUN)
        columns = {name: [spec.get(name) for spec in specs] for name in names}
        self.settings: dict[str, list[Any]] = {name: values for name, values in columns.items() if any(v != values[0] for v in values)}

    def table(self, kind: str = "step") -> Any:
        """Losses, a row for each step that any of them did, a column for each job: a pandas DataFrame, or a dict of lists without pandas.

        Args:
            kind: "step", or "eval" for the held-out loss.
        """
        if kind not in ("step", "eval"):
            raise ValueError(f'kind = {kind!r} is not "step" or "eval"')
        losses: list[dict[int, float]] = []
        for items in self._items:
            if kind == "step":
                losses.append({item.step: item.loss for item in items if isinstance(item, StepMetrics)})
            else:
                losses.append({item.step: item.eval_loss for item in items if isinstance(item, EvalMetrics)})
        steps = sorted({step for of in losses for step in of})
        columns: dict[str, list[Any]] = {"step": list(steps)}
        for name, of in zip(self.ids, losses, strict=True):
            columns[name] = [of.get(step) for step in steps]
        try:
            import pandas as pd
        except ImportError:
            return columns
        return pd.DataFrame(columns).set_index("step").astype(float)

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.ids)}; {', '.join(self.settings) or 'the same settings'})"

    def _repr_html_(self) -> str:
        lines = []
        for index, (name, record) in enumerate(zip(self.ids, self._records, strict=True)):
            colour = _COLOURS[index % len(_COLOURS)]
            lines.append(html.Line(name, colour, record.losses.points()))
            if record.evals:
                lines.append(html.Line("", colour, record.evals.points(), dots=True, dashed=True))
        rows = [[name, *values] for name, values in self._values().items()]
        rows += [[name, *("–" if value is None else f"{value}" for value in values)] for name, values in self.settings.items()]
        picture = html.curves(lines, f"Loss of {', '.join(self.ids)} over steps", empty="none of them has done a step")
        dashed = html.paragraph("Dashed: held-out loss.") if any(record.evals for record in self._records) else ""
        return html.card(picture + dashed + html.table(["", *self.ids], rows))

    def _values(self) -> dict[str, list[str]]:
        """Newest values by name, a text for each job."""
        facts = [dict([("state", record.phase), *record.facts()]) for record in self._records]
        names = dict.fromkeys(name for of in facts for name in of if name != "left")
        return {name: [of.get(name, "–") for of in facts] for name in names}
