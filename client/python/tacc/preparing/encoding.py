"""Tokenizes the input, in this process or in several."""

import contextlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tacc.errors import InputError
from tacc.preparing import chat, conversation, corpus
from tacc.preparing.corpus import Counts, Piece, TextFile
from tacc.preparing.records import Record
from tacc.preparing.tokenizer import TokenizerFacts, open_tokenizer, train_tokenizer
from tacc.preparing.workers import Worker, WorkerEndedError, WorkerPool

BATCH_CHARACTERS = 1 << 18  # Given to the tokenizer at a time.
LEARNED = np.uint32(1 << 31)  # Set in tokens of a conversation that a model learns to write, until shards are written.
ON_LONG = ("error", "drop", "truncate")


@dataclass(frozen=True)
class Encoding:
    """How texts become tokens."""

    folder: Path  # Of the tokenizer.
    facts: TokenizerFacts
    dtype: np.dtype[Any]
    text_field: str
    is_chat: bool  # Records are conversations.
    max_tokens: int  # Of a conversation, with EOS,
    on_long: str  # and what happens to a longer one: one of ON_LONG.


@dataclass(frozen=True)
class Encoded:
    """The documents of one task, one after the other; conversations with EOS and with LEARNED, others without."""

    tokens: np.ndarray[Any, Any]
    lengths: np.ndarray[Any, Any]
    counts: Counts
    num_bytes: int


class Encoder:
    """Encodes tasks. One in each process."""

    def __init__(self, encoding: Encoding):
        self._encoding = encoding
        self._tokenizer = open_tokenizer(encoding.folder / "tokenizer.json")
        self._chat = None
        if encoding.is_chat:
            facts = encoding.facts
            self._chat = chat.ChatEncoder(self._tokenizer, encoding.folder, facts.eos_token, facts.eos_token_id)

    def encode(self, task: list[Piece]) -> Encoded:
        counts = Counts()
        parts = self._conversations(task, self._chat, counts) if self._chat else self._texts(task, counts)
        # A tokenizer may make nothing of a text, as one that drops unknown characters.
        kept = [part for part in parts if len(part) > 0]
        counts.documents -= len(parts) - len(kept)
        counts.empty += len(parts) - len(kept)
        lengths = np.array([len(part) for part in kept], dtype=np.int64)
        tokens = np.concatenate(kept) if kept else np.empty(0, self._encoding.dtype)
        return Encoded(tokens, lengths, counts, sum(piece.num_bytes for piece in task))

    def _texts(self, task: list[Piece], counts: Counts) -> list[np.ndarray[Any, Any]]:
        parts: list[np.ndarray[Any, Any]] = []
        batch: list[str] = []
        num_characters = 0

        def flush() -> None:
            for encoding in self._tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                parts.append(np.array(encoding.ids, dtype=self._encoding.dtype))
            batch.clear()

        for text in corpus.read_documents(task, self._encoding.text_field, counts):
            batch.append(text)
            num_characters += len(text)
            if num_characters >= BATCH_CHARACTERS:
                flush()
                num_characters = 0
        flush()
        return parts

    def _conversations(
        self, task: list[Piece], encoder: chat.ChatEncoder, counts: Counts
    ) -> list[np.ndarray[Any, Any]]:
        parts = []
        for piece in task:
            for record in corpus.read_records(piece, conversation.FIELDS):
                record = replace(record, value=_whole_value(record, counts))
                ids, learned = self._fitting(record, *encoder.encode(record), counts)
                if ids:
                    parts.append(np.array(ids, self._encoding.dtype) | np.where(learned, LEARNED, np.uint32(0)))
                    counts.documents += 1
        counts.has_used_template = encoder.has_used_template
        return parts

    def _fitting(
        self, record: Record, ids: list[int], learned: list[bool], counts: Counts
    ) -> tuple[list[int], list[bool]]:
        """What of a conversation is taken; nothing where it is dropped."""
        longest = self._encoding.max_tokens
        if len(ids) <= longest:
            return ids, learned
        if self._encoding.on_long == "error":
            raise record.fail(
                f"{len(ids):,} tokens, more than --seq-len {longest:,}: a sample would hold only a part; give a larger "
                "--seq-len, leave the record out, or say with --on-long to drop or to truncate such records"
            )
        # What is cut off had the end: the last EOS only parts this document from the next one.
        cut = [*learned[: longest - 1], False]
        if self._encoding.on_long == "drop" or not any(cut):
            counts.dropped += 1
            return [], []
        counts.truncated += 1
        return [*ids[: longest - 1], ids[-1]], cut


def _whole_value(record: Record, counts: Counts) -> dict[str, Any]:
    try:
        return dict(corpus.whole_value(record.value, counts))
    except RecursionError:
        raise record.fail("lists or objects in it are nested too deep") from None


def encode_all(tasks: Iterable[list[Piece]], encoding: Encoding, processes: int) -> Generator[Encoded, None, None]:
    """Encodes by so many processes, 1 being this one, and gives the results in the order of the tasks, with few of them in
    memory."""
    if processes == 1:
        yield from map(Encoder(encoding).encode, tasks)
        return
    with contextlib.closing(WorkerPool(processes)) as pool:
        try:
            pending: deque[Future[Encoded]] = deque()
            for task in tasks:
                pending.append(pool.submit(_encode_in_worker, encoding, task))
                if len(pending) >= 4 * processes:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except WorkerEndedError as error:
            what = f"a tokenizing process ended with {error.exit_code} (-9: out of memory?); use fewer with --processes"
            raise InputError(what) from error


_encoder: Encoder | None = None  # In a worker.


def _encode_in_worker(send: Callable[[Encoded], None], encoding: Encoding, task: list[Piece]) -> None:
    global _encoder
    if _encoder is None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # One process per core already.
        _encoder = Encoder(encoding)
    send(_encoder.encode(task))


def train_in_worker(
    files: list[TextFile], stride: int, text_field: str, is_chat: bool, vocab_size: int, folder: Path
) -> Generator[int, None, None]:
    """Trains a tokenizer on every `stride`-th task of the files; gives how many bytes it has read. In a process of its own,
    which ends when this generator is left: the library does not look at signals while it works, which can be for minutes."""
    worker = Worker()
    try:
        yield from worker.run(_train, files, stride, text_field, is_chat, vocab_size, folder)
    except WorkerEndedError as error:
        what = f"the process that trains the tokenizer ended with {error.exit_code} (-9: out of memory?)"
        raise InputError(what) from error
    finally:
        worker.kill()


def _train(
    send: Callable[[int], None],
    files: list[TextFile],
    stride: int,
    text_field: str,
    is_chat: bool,
    vocab_size: int,
    folder: Path,
) -> None:
    def documents() -> Iterator[str]:
        for i, task in enumerate(corpus.plan_tasks(files)):
            if i % stride == 0:
                yield from _training_texts(task, text_field, is_chat)
                send(sum(piece.num_bytes for piece in task))

    train_tokenizer(documents(), vocab_size, folder)


def _training_texts(task: list[Piece], text_field: str, is_chat: bool) -> Iterator[str]:
    if not is_chat:
        yield from corpus.read_documents(task, text_field, Counts())
        return
    for piece in task:
        for record in corpus.read_records(piece, conversation.FIELDS):
            yield from (corpus.whole_characters(text, Counts()) for text in conversation.texts_of_record(record))
