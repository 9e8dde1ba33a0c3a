"""The progress line, on a terminal of its own."""

import fcntl
import os
import struct
import subprocess
import sys
import termios

import pytest

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
