"""Shuffles documents of tokens through files, in bounded memory.

The order is that of a hash of (seed, number of the document). A bucket holds a range of the hash and is small enough to
be put in order in memory, so the result is a function of the seed and the documents alone, not of the number of buckets.
"""

import contextlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

MAX_BUCKETS = 512
BUCKET_TEXT_BYTES = 128 << 20  # Of text, about a third as many tokens.

_ORDER, _HELD_OUT = 2, 3  # What a hash is for.


def document_hash(seed: int, purpose: int, first: int, count: int) -> np.ndarray[Any, Any]:
    """One 64-bit hash for each document number in [first, first + count)."""

    def mix(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:  # SplitMix64's.
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: np.ndarray[Any, Any] = x ^ (x >> np.uint64(31))
        return mixed

    golden = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        key = mix(np.array([seed % (1 << 64)], np.uint64) * np.uint64(4) + np.uint64(purpose) + golden)
        return mix(key + golden * (np.arange(first, first + count, dtype=np.uint64) + np.uint64(1)))


class Shuffler:
    def __init__(self, folder: Path, dtype: np.dtype[Any], seed: int, text_bytes: int):
        folder.mkdir()
        num_buckets = min(MAX_BUCKETS, text_bytes // BUCKET_TEXT_BYTES + 1)
        self._paths = [folder / f"{i:03d}" for i in range(num_buckets)]
        self._files = [open(path, "wb", buffering=1 << 18) for path in self._paths]
        self._members = [array("Q") for _ in self._paths]  # Document numbers in each bucket, in the order of its file.
        self._lengths = array("I")  # Of each document, in tokens.
        self._dtype = dtype
        self._seed = seed

    @property
    def lengths(self) -> np.ndarray[Any, Any]:
        return np.frombuffer(self._lengths, dtype=np.uint32)

    def add(self, tokens: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> None:
        """Adds documents one after the other: `tokens` of all, and the length of each."""
        first = len(self._lengths)
        # By the upper half of the hash, since all of it times the number of buckets would not fit into 64 bits.
        upper = document_hash(self._seed, _ORDER, first, len(lengths)) >> np.uint64(32)
        buckets = upper * np.uint64(len(self._paths)) >> np.uint64(32)
        self._lengths.frombytes(lengths.astype(np.uint32).tobytes())
        begin = 0
        for i, (bucket, length) in enumerate(zip(buckets.tolist(), lengths.tolist())):
            self._files[bucket].write(tokens[begin : begin + length].tobytes())
            self._members[bucket].append(first + i)
            begin += length

    def close(self) -> None:
        """Closes the files, which would keep their room on the disk for as long as somebody keeps an error's traceback."""
        with contextlib.ExitStack() as stack:
            for file in self._files:
                stack.callback(file.close)

    def documents(self) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
        """All documents, (number, tokens), in their new order. Removes the files."""
        self.close()
        order = document_hash(self._seed, _ORDER, 0, len(self._lengths))
        for path, members in zip(self._paths, self._members):
            numbers = np.frombuffer(members, dtype=np.uint64).astype(np.int64)
            ends = np.cumsum(self.lengths[numbers], dtype=np.int64)
            tokens = np.fromfile(path, dtype=self._dtype)
            for i in np.argsort(order[numbers], kind="stable").tolist():
                end = int(ends[i])
                yield int(numbers[i]), tokens[end - int(self.lengths[numbers[i]]) : end]
            path.unlink()

    def held_out(self, fraction: float, may_cut: bool) -> tuple[set[int], dict[int, int]]:
        """The documents to hold out, whole, and those of which only so many last tokens are held out.

        Whole documents in the order of a hash until they reach the fraction of all tokens; never all. With `may_cut`, a
        document longer than a tenth of the corpus (and than the fraction) is not taken whole; when the others do not
        reach half of the fraction, the end of one such document makes up for it.
        """
        lengths = self.lengths.astype(np.int64)
        total = int(lengths.sum())
        goal = max(1, round(fraction * total))
        order = np.argsort(document_hash(self._seed, _HELD_OUT, 0, len(lengths)), kind="stable")
        is_long = (lengths[order] > max(goal, total // 10)) & may_cut
        short = order[~is_long]
        reached = np.cumsum(lengths[short])
        count = min(int(np.searchsorted(reached, goal)) + 1, len(short), len(lengths) - 1)
        whole = set(short[:count].tolist())
        num_tokens = int(reached[count - 1]) if count > 0 else 0
        if 2 * num_tokens >= goal or not is_long.any():
            return whole, {}
        longest = int(order[is_long][0])
        return whole, {longest: min(goal - num_tokens, int(lengths[longest]) - 1)}
