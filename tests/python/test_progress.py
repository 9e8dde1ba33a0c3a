"""The progress line, on a terminal of its own."""

import fcntl
import io
import os
import struct
import subprocess
import sys
import termios

import pytest
from tacc import progress

DRAW = """
import time
from tacc.progress import Progress
with Progress("training the tokenizer", 10**12) as progress:
    time.sleep(0.11)
    progress.add(10**9)
"""


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_the_line_fits_the_terminal(columns):
    primary, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    subprocess.run([sys.executable, "-c", DRAW], stderr=terminal, check=True, timeout=60)
    os.close(terminal)
    drawn = [text.split("\x1b[K")[0] for text in os.read(primary, 65536).decode().split("\r")]
    os.close(primary)
    (line,) = [text for text in drawn if text]
    assert line.startswith("training the tokenizer [") and len(line) < columns, line
    assert columns < 80 or line.endswith("s left "), line


def test_the_line_in_a_notebook(monkeypatch):
    """It is no terminal, and knows no sequences that clear a line: what was longer is written over."""

    class Output(io.StringIO):
        __module__ = "ipykernel.iostream"

    output = Output()
    monkeypatch.setattr(progress.sys, "stderr", output)
    monkeypatch.setattr(progress, "INTERVAL_SECONDS", 0)
    with progress.Progress("reading", None, "records") as line:
        line.add(1_000_000)
        line.add(-999_999)
    parts = output.getvalue().split("\r")
    assert parts[0] == "" and parts[1].startswith("reading: 1,000,000 records, ") and parts[2].startswith("reading: 1 records, ")
    assert len(parts[1]) == len(parts[2]) < 80 and parts[2].endswith("      ")
    assert parts[3].strip() == "" and len(parts[3]) >= len(parts[2].rstrip()) and parts[4] == ""
    assert "\x1b" not in output.getvalue()
