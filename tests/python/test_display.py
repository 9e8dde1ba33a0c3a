"""How a job is shown: what is counted from a stream, and the pictures of it."""

import io
import math
import re
import sys
import time
import types
import xml.dom.minidom
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client/python"))

from job_items import evaluation, event, job_status, step  # noqa: E402
from tacc import display  # noqa: E402
from tacc.comparison import Comparison  # noqa: E402
from tacc.display import Record, record_html, record_line  # noqa: E402
from tacc.show import html  # noqa: E402
from tacc.show.curve import MAX_POINTS, Curve  # noqa: E402


def record_of(items, **values) -> Record:
    record = Record(job_status(**values))
    for item in items:
        record.take(item)
    return record


def facts(record) -> dict[str, str]:
    return dict(record.facts())


def well_formed(text: str):
    return xml.dom.minidom.parseString(f"<div>{text.replace('&#9679;', '.')}</div>")


def curve_of(points) -> Curve:
    curve = Curve()
    for x, y in points:
        curve.add(x, y)
    return curve


def test_a_short_curve_is_every_point():
    assert curve_of([(1, 3.0), (2, 2.0), (5, 1.0)]).points() == [(1, 3.0), (2, 2.0), (5, 1.0)]


def test_a_long_curve_keeps_its_shape_and_its_mean():
    steps = 100_000
    points = curve_of((n, float(n)) for n in range(1, steps + 1)).points()
    assert MAX_POINTS / 2 < len(points) <= 2 * MAX_POINTS and points[-1][0] == steps
    # The mean of a bucket of a straight line is the middle of it.
    before = 0
    for x, y in points:
        assert y == pytest.approx((before + 1 + x) / 2)
        before = x


def test_a_step_that_comes_again_takes_the_place_of_what_was_there():
    again = [(n, 9.0) for n in range(1, 11)] + [(n, 1.0) for n in range(6, 13)]
    assert curve_of(again).points() == [(n, 9.0 if n < 6 else 1.0) for n in range(1, 13)]
    # Also in the midst of what was put together.
    curve = curve_of([(n, 1.0) for n in range(1, 5001)] + [(n, 3.0) for n in range(2500, 6001)])
    points = curve.points()
    assert all(y == (1.0 if x < 2500 else 3.0) for x, y in points) and [x for x, _ in points] == sorted({x for x, _ in points})
    assert points[-1][0] == 6000


def test_what_is_not_finite_breaks_the_curve():
    line = html.Line("loss", "red", curve_of([(1, 3.0), (2, 2.0), (3, math.nan), (4, math.inf), (5, 1.0)]).points())
    assert line.pieces() == [[(1, 3.0), (2, 2.0)], [(5, 1.0)]]
    picture = html.curves([line], "Loss")
    assert picture.count("<polyline") == 1 and picture.count("<circle") == 1 and "nan" not in picture and "inf" not in picture
    assert html.curves([html.Line("loss", "red", [(1, math.nan), (2, math.nan)])], "Loss") == ""


@pytest.mark.parametrize(("low", "high"), [(2.5, 9.1), (0.0, 1.0), (-3.0, 2.0), (1e-9, 3e-9), (1e6, 9.9e6), (5.0, 5.0001)])
def test_ticks_are_few_and_within(low, high):
    ticks = html._ticks(low, high)
    assert 2 <= len(ticks) <= 8 and all(low - 1e-9 * abs(low) <= t <= high + 1e-9 * abs(high) for t in ticks)


def test_constant_losses_have_a_curve():
    for value in (2.0, 0.0, 1e30):  # A step of one at 1e30 is none.
        assert "<polyline" in html.curves([html.Line("loss", "red", [(1, value), (2, value)])], "Loss")


def test_time_left_counts_what_is_between_steps():
    """Steps of half a second, and an evaluation of a minute in the midst of ten: by the clock."""
    items = [event("running", "")] + [step(n, 2.0, time=1e9 + n / 2 + (60 if n > 5 else 0)) for n in range(1, 11)]
    record = record_of(items, max_steps=19)
    assert record.eta_seconds() == pytest.approx(9 * 64.5 / 9)
    assert facts(record)["left"] == "1 min 4 s"


def test_no_time_left_where_nothing_trains():
    steps = [step(n, 2.0) for n in range(1, 10)]
    assert "left" in facts(record_of(steps))
    assert "left" not in facts(record_of(steps[:1])) and "left" not in facts(record_of([]))
    assert "left" not in facts(record_of([*steps, event("restarting", "rank 1: killed", phase="restarting")]))
    assert "left" not in facts(record_of(steps, phase="finished"))


def test_a_restart_has_rates_of_its_own():
    """The pause of the restart is not in them, nor is the faster attempt before it."""
    before = [step(n, 2.0, seconds=0.1, time=1e9 + n / 10) for n in range(1, 50)]
    after = [step(n, 2.0, attempt=2, seconds=1.0, time=1e9 + 500 + n) for n in range(41, 45)]
    record = record_of(before + after)
    assert record.eta_seconds() == pytest.approx(100 - 44) and facts(record)["tokens/s"] == "100" and record.step == 44


def test_facts():
    record = record_of([step(1, 3.0, mfu=0.5), evaluation(1, 2.5), step(2, 2.0, mfu=0.25)], skipped_steps=2, max_steps=12345)
    assert facts(record) == {"step": "2 / 12,345", "loss": "2.0000", "held-out loss": "2.5000", "tokens/s": "200", "MFU": "37.5 %", "skipped updates": "2", "left": "1 h 42 min"}
    assert record_line(record).startswith("tiny-1 running  step 2 / 12,345  loss 2.0000  held-out loss 2.5000  ")


def test_a_loss_that_is_not_finite_is_said():
    record = record_of([step(1, 3.0), step(2, math.nan), step(3, math.nan)])
    assert record.notes() == ["the loss is not finite since step 2"] and facts(record)["loss"] == "nan"
    record.take(step(4, 2.0))
    assert record.notes() == []


def test_the_picture():
    """Well-formed, of the same pieces from the beginning on, told to who cannot see it, and with nothing from elsewhere."""
    early = well_formed(record_html(record_of([], phase="compiling", reason="planning <fast> & well")))
    late = well_formed(record_html(record_of([step(n, 3 / n) for n in range(1, 60)] + [evaluation(30, 1.0)])))
    for page in (early, late):
        (svg,), bars = page.getElementsByTagName("svg"), [d for d in page.getElementsByTagName("div") if d.getAttribute("role") == "progressbar"]
        assert svg.getAttribute("role") == "img" and svg.getAttribute("viewBox") == "0 0 760 200"
        assert not page.getElementsByTagName("script") and not page.getElementsByTagName("img") and not page.getElementsByTagName("link")
        assert len(bars) == 1
    assert bars[0].getAttribute("aria-valuenow") == "59" and svg.getAttribute("aria-label") == "Loss of tiny-1 over steps, now 0.0508"
    assert len(late.getElementsByTagName("polyline")) == 1 and "http" not in late.toxml()
    assert "planning &lt;fast&gt; &amp; well" in early.toxml()


def test_an_update_costs_the_same_at_any_number_of_steps():
    def picture_size(steps: int) -> tuple[int, float]:
        record = record_of(step(n, 3.0 + 1 / n) for n in range(1, steps + 1))
        start = time.process_time()
        text = record_html(record)
        return len(text), time.process_time() - start

    small, large = picture_size(2000), picture_size(100_000)
    assert large[0] < 1.5 * small[0] < 60_000
    assert large[1] < 10 * small[1] + 0.05


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    return now


def test_lines_come_every_few_seconds(clock, monkeypatch):
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    asked = []

    def status():
        asked.append(clock[0])
        return job_status(phase="finished" if clock[0] >= 25 else "running")

    def items():
        for n in range(1, 101):
            clock[0] += 0.25
            yield step(n, 3.0)
            yield event("checkpoint", "saved")

    assert len(list(display.shown(status, items()))) == 200
    lines = err.getvalue().splitlines()
    assert len(lines) == 1 + 25 / 5 + 1  # The first, one in five seconds, the last.
    assert lines[0].startswith("tiny-1 running  step 0 / 100") and lines[-1].startswith("tiny-1 finished  step 100 / 100")
    assert len(asked) <= len(lines) + 1  # Not for each event.


def test_what_a_job_waits_for_is_said_at_once(clock, monkeypatch):
    """Before the next picture is due: nothing more may come, and the stream would never get to draw it."""
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    reason = "needs 3 workers, 2 free (2 attached)"
    states = iter([job_status(phase="compiling"), job_status(phase="waiting", reason=reason)])
    shown = display.shown(lambda: next(states), [event("waiting", reason, phase="waiting")])
    next(iter(shown))
    assert err.getvalue().splitlines() == ["tiny-1 compiling  step 0 / 100", f"tiny-1 waiting  step 0 / 100  {reason}"]


def test_a_phase_does_not_come_again(clock, monkeypatch):
    """The events of a job begin with that of its submission, which the status may be behind."""
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    events = [event(phase, "", phase=phase) for phase in ("submitted", "compiling", "running")]
    list(display.shown(lambda: job_status(phase="compiling"), events))
    assert [line.split()[1] for line in err.getvalue().splitlines()][:2] == ["compiling", "running"]


def test_a_terminal_has_one_line_which_ends_whatever_happens(clock, monkeypatch):
    err = io.StringIO()
    err.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", err)

    def items():
        for n in range(1, 4):
            clock[0] += 1
            yield step(n, 3.0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(display.shown(lambda: job_status(), items()))
    text = err.getvalue()
    assert text.count("\n") == 1 and text.endswith("\n") and text.count("\r") == 5
    assert all(len(re.sub(r"\x1b\[K", "", part)) < 80 for part in text.split("\r"))


def test_a_notebook_has_one_place_which_is_drawn_anew(clock, monkeypatch):
    calls = []

    class Handle:
        def update(self, bundle, raw):
            calls.append(("update", bundle))

    def shows(bundle, raw, display_id):
        calls.append(("display", bundle))
        return Handle()

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = shows
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)

    def items():
        for n in range(1, 9):
            clock[0] += 0.125
            yield step(n, 3.0 / n)

    list(display.shown(lambda: job_status(), items()))
    assert [kind for kind, _ in calls] == ["display", "update", "update", "update"]  # Two a second, and the end.
    assert "polyline" in calls[-1][1]["text/html"] and calls[-1][1]["text/plain"].startswith("tiny-1 running  step 8 / 100  loss 0.3750")


def test_two_runs_compared():
    first = (job_status(spec={"name": "a", "train": {"learning_rate": 0.1, "max_steps": 3}, "checkpoint": {"dir": "x"}}), [step(1, 3.0), step(2, 2.0)])
    second = (job_status(id="tiny-2", spec={"name": "b", "train": {"learning_rate": 0.2, "max_steps": 3}, "checkpoint": {"dir": "y"}, "data": {"seq_len": 8}}),
              [step(2, 1.0), evaluation(2, 1.5), step(3, math.nan)])
    both = Comparison([first, second])
    assert both.settings == {"train.learning_rate": [0.1, 0.2], "data.seq_len": [None, 8]}
    assert repr(both) == "Comparison(tiny-1, tiny-2; train.learning_rate, data.seq_len)"
    table = both.table()
    assert list(table.index) == [1, 2, 3] and table["tiny-1"][2] == 2.0 and table["tiny-2"][2] == 1.0 and math.isnan(table["tiny-2"][1])
    assert list(both.table("eval")["tiny-2"]) == [1.5]
    page = well_formed(both._repr_html_())
    assert len(page.getElementsByTagName("polyline")) == 1  # A single point is a dot.
    assert [row.getElementsByTagName("td")[0].firstChild.data for row in page.getElementsByTagName("tr")[1:]] == [
        "state", "step", "loss", "tokens/s", "held-out loss", "train.learning_rate", "data.seq_len"]
