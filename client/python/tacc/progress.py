"""A progress line on stderr, where stderr is a terminal."""

import os
import sys
import time


class Progress:
    def __init__(self, label: str, total_bytes: int):
        self._label = label
        self._total = max(total_bytes, 1)
        self._done = 0
        self._start = time.monotonic()
        self._drawn = 0.0
        self._visible = sys.stderr.isatty()

    def __enter__(self):
        return self

    def add(self, num_bytes: int) -> None:
        self._done += num_bytes
        now = time.monotonic()
        if self._visible and now - self._drawn > 0.1:
            self._drawn = now
            self._draw(now)

    def _draw(self, now: float) -> None:
        fraction = min(self._done / self._total, 1.0)
        seconds = max(now - self._start, 1e-6)
        left = seconds * (1 - fraction) / fraction if fraction > 0 else 0
        rate = self._done / seconds / 1e6
        text = f"] {100 * fraction:3.0f} %  {rate:.1f} MB/s  {left:.0f} s left "
        columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80  # a line that wraps is never cleared
        room = max(min(30, columns - 1 - len(self._label) - len(text) - 2), 0)
        bar = ("#" * int(room * fraction)).ljust(room, ".")
        sys.stderr.write(f"\r{f'{self._label} [{bar}{text}'[: columns - 1]}\x1b[K")
        sys.stderr.flush()

    def __exit__(self, *_):
        if self._visible:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
