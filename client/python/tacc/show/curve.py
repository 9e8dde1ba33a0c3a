"""A curve over steps in little memory, however many steps it has."""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_POINTS = 400  # That are drawn; twice as many are kept.


@dataclass(slots=True)
class _Bucket:
    """Neighbours: a point is drawn at the last step, with the mean of what is finite."""

    first: int
    last: int
    sum: float
    count: int

    def take(self, other: _Bucket) -> None:
        self.last = other.last
        self.sum += other.sum
        self.count += other.count


class Curve:
    """Values at ascending steps. A step that comes again, of a restart, takes the place of what was there from it on.

    Adding a value costs the same on average, and drawing at most 2 * MAX_POINTS, at any number of steps: neighbours are put together by twos
    when there are more, so that a long curve keeps its shape.
    """

    def __init__(self) -> None:
        self._buckets: list[_Bucket] = []
        self._width = 1  # Values of a bucket.
        self._newest = 0  # Values of the last one.

    def add(self, step: int, value: float) -> None:
        while self._buckets and self._buckets[-1].last >= step:
            # A bucket that is cut keeps the mean that it had.
            if self._buckets[-1].first >= step:
                self._buckets.pop()
            else:
                self._buckets[-1].last = step - 1
            self._newest = self._width
        finite = math.isfinite(value)
        new = _Bucket(step, step, value if finite else 0.0, 1 if finite else 0)
        if self._buckets and self._newest < self._width:
            self._buckets[-1].take(new)
            self._newest += 1
            return
        self._buckets.append(new)
        self._newest = 1
        if len(self._buckets) > 2 * MAX_POINTS:
            for left, right in zip(self._buckets[::2], self._buckets[1::2], strict=False):
                left.take(right)
            odd = len(self._buckets) % 2
            self._buckets = self._buckets[::2]
            self._newest = self._newest if odd else self._width + self._newest
            self._width *= 2

    def points(self) -> list[tuple[float, float]]:
        """(step, value), at most 2 * MAX_POINTS; where nothing was finite the value is NaN."""
        return [(bucket.last, bucket.sum / bucket.count if bucket.count else math.nan) for bucket in self._buckets]

    def __bool__(self) -> bool:
        return bool(self._buckets)
