"""What the client writes for people: no text of a job becomes a command to a terminal, or HTML of its own."""

import dataclasses
import html.parser
import io
import math
import re
import sys
import warnings

import pytest
import tacc
from tacc import display
from tacc.plans import Plan
from tacc.show import numbers
from tacc.tls import TlsSettings, find_tls

EVIL = '<script>alert(1)</script><img src=x onerror=alert(1)>"\'&\x1b]0;owned\x07\x1b[31m\x9b31m\r'


def status(**changes) -> tacc.JobStatus:
    values: dict = {field.name: None for field in dataclasses.fields(tacc.JobStatus)}
    values |= {"id": f"tiny-1{EVIL}", "name": "tiny", "phase": "failed", "reason": f"no {EVIL}", "step": 3, "max_steps": 10}
    values |= {"last_log_lines": [EVIL, "second"], "exported_path": f"/tmp/{EVIL}", "checkpoints": [], "restarts": [], "ranks": []}
    return tacc.JobStatus(**(values | changes))


def event(type_: str) -> tacc.JobEvent:
    return tacc.JobEvent(time=1.0, type=type_, message=EVIL, attempt=1, step=1, phase="running")


def step(number: int, loss: float) -> tacc.StepMetrics:
    values: dict = {field.name: 0 for field in dataclasses.fields(tacc.StepMetrics)}
    return tacc.StepMetrics(**(values | {"step": number, "loss": loss, "seconds": 0.1, "tokens": 100, "mfu": None}))


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attributes}


def tags_of(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    return tags


@pytest.mark.parametrize("phase", ["failed", "finished", "running", "waiting"])
def test_a_job_s_texts_are_text_in_its_html(phase):
    items = [event("warning"), step(1, 3.0), step(2, 2.5), step(3, math.nan), event("restarting")]
    text = display.job_html(status(phase=phase), items)
    tags = tags_of(text)
    assert not tags.seen & {"script", "img"} and not any(name.startswith("on") for name in tags.attributes)
    assert "&lt;script&gt;" in text and "nan" not in text.split("<svg")[1].split("</svg>")[0]


def test_a_plan_s_texts_are_text_in_its_html():
    layout = {"mesh": {EVIL: 2}, "axes": [EVIL], "precision": EVIL, "why_not": EVIL, "words": [EVIL], "memory": {"total_bytes": 1}}
    tags = tags_of(Plan({"candidates": [layout]})._repr_html_())
    assert not tags.seen & {"script", "img"} and not any(name.startswith("on") for name in tags.attributes)


def test_a_failure_s_message_holds_no_command_to_a_terminal():
    said = str(tacc.JobFailedError(status()))
    assert not any(ord(c) < 32 and c not in "\n\t" or 0x7F <= ord(c) < 0xA0 for c in said)
    assert "<script>" in said and said.endswith("\n  | second")


@pytest.mark.parametrize("view", [display.LinesView, display.TerminalView])
def test_a_view_writes_only_its_own_commands_to_a_terminal(view, monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    record = display.Record(status())
    record.take(event("warning"))
    view().draw(record)
    view().end(record)
    written = out.getvalue().replace("\x1b[K", "").replace("\r", "")
    assert written.strip() and not any(not c.isprintable() and c != "\n" for c in written)


@pytest.mark.parametrize(
    "write, value, wanted",
    [
        (numbers.seconds_text, 0.9997, "1 s"),
        (numbers.seconds_text, 0.34, "340 ms"),
        (numbers.seconds_text, 59.997, "1 min 0 s"),
        (numbers.seconds_text, 3599.6, "1 h 0 min"),
        (numbers.seconds_text, math.nan, "–"),
        (numbers.count_text, 999.4, "999"),
        (numbers.count_text, 999.6, "1 k"),
        (numbers.count_text, 1e12, "1 T"),
        (numbers.bytes_text, 1536.0, "1.50 KiB"),
        (numbers.percent_text, 0.4321, "43.2 %"),
    ],
)
def test_numbers_for_people(write, value, wanted):
    assert write(value) == wanted


@pytest.mark.parametrize("address", ["10.0.0.1:7070", "host-a:7070", "[fd00::1]:7070"])
def test_an_address_of_the_network_without_tls_is_warned_of(address, monkeypatch):
    monkeypatch.delenv("TACC_TLS_DIR", raising=False)
    with pytest.warns(UserWarning, match=rf"^{re.escape(address)} is reached without TLS: the network can read .* give tls_dir"):
        find_tls(address, TlsSettings())


@pytest.mark.parametrize("address", ["127.0.0.1:7070", "localhost:7070", "[::1]:7070", "unix:/run/tacc"])
def test_a_machines_own_address_is_not(address, monkeypatch):
    monkeypatch.delenv("TACC_TLS_DIR", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        find_tls(address, TlsSettings())
