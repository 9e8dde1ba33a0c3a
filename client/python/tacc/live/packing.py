"""Which inputs of a batch are compressed on their way to ranks of other machines."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_LEVEL = 1
_LEAST_BYTES = 512  # Of an input that is worth it.
_PROBE_BYTES = 64 << 10  # Of an input: whether it gains, before all of it is compressed.
_WANTED = 0.75  # Of its bytes an input may keep; one that keeps more is sent as it is.
_SKIPPED = 100  # Times that an input is sent as it is, after it has not gained.


@dataclass
class _Input:
    to_skip: int = 0
    seconds_per_byte: float = 0.0  # That compressing takes, at best.


class Packer:
    """Compresses whole numbers and truth values (token ids, labels, masks, images of bytes), where the link is slower than that."""

    def __init__(self) -> None:
        self._inputs: dict[str, _Input] = {}

    def pack(self, name: str, part: np.ndarray[Any, Any], bytes_per_second: float | None) -> bytes | None:
        """The part as a zlib stream. None: it is sent as it is.

        Args:
            name: Of the input: what it gained before says whether it is tried.
            part: Dense.
            bytes_per_second: Of the link; None: not known yet.
        """
        if part.dtype.kind not in "iub" or part.nbytes < _LEAST_BYTES:
            return None
        known = self._inputs.setdefault(name, _Input())
        if known.to_skip > 0:
            known.to_skip -= 1
            return None
        data = memoryview(part.reshape(-1).view("u1").data)
        if self._gains(known, data[:_PROBE_BYTES], bytes_per_second):
            whole = zlib.compress(data, _LEVEL)
            if len(whole) <= _WANTED * len(data):
                return whole
        known.to_skip = _SKIPPED
        return None

    def _gains(self, known: _Input, probe: memoryview, bytes_per_second: float | None) -> bool:
        begin = time.perf_counter()
        kept = len(zlib.compress(probe, _LEVEL)) / len(probe)
        seconds = (time.perf_counter() - begin) / len(probe)
        known.seconds_per_byte = min(seconds, known.seconds_per_byte or seconds)  # A busy machine says too much.
        if kept > _WANTED:
            return False
        return bytes_per_second is None or known.seconds_per_byte < (1 - kept) / bytes_per_second
