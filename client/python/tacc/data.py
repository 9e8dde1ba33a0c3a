"""`python -m tacc data prepare`: turns text into a data folder (docs/data.md)."""

import argparse
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from tacc import chat, corpus, shards
from tacc.corpus import Counts, Piece, TextFile
from tacc.errors import InputError
from tacc.output_folder import new_folder
from tacc.progress import Progress
from tacc.shuffle import Shuffler
from tacc.tokenizer import (
    END_OF_TEXT,
    MIN_VOCAB_SIZE,
    TokenizerFacts,
    copy_tokenizer,
    eos_mismatch,
    load_tokenizer,
    open_tokenizer,
    train_tokenizer,
)

DEFAULT_SEQ_LEN = 2048
DEFAULT_SEED = 42
TRAINING_TEXT_BYTES = 512 << 20  # A tokenizer is trained on at most about this much, taken evenly from the input.
BATCH_CHARACTERS = 1 << 18  # Given to the tokenizer at a time.
LEARNED = np.uint32(1 << 31)  # Set in tokens of a conversation that a model learns to write, until shards are written.


@dataclass(frozen=True)
class PrepareOptions:
    inputs: list[str]
    out: Path
    tokenizer: Path | None = None  # Its folder; else `train_tokenizer` is the size of the vocabulary to train.
    train_tokenizer: int | None = None
    eos_token: str | None = None
    text_field: str = "text"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    as_text: tuple[str, ...] = ()
    chat: bool = False  # Records are conversations; write the column `loss_mask`.
    eval_fraction: float = 0.0
    seq_len: int = DEFAULT_SEQ_LEN
    separate_documents: bool = False  # Write the column `segment`.
    seed: int = DEFAULT_SEED
    processes: int = 0  # 0: one for each core this process may use.
    shard_tokens: int = shards.DEFAULT_SHARD_TOKENS


@dataclass(frozen=True)
class Prepared:
    """What was written: the indexes of the training and the held-out data, and what was skipped."""

    train: dict
    eval: dict | None
    counts: Counts
    num_cut_files: int
    text_bytes: int
    eos_mismatch: str | None  # What to warn of.


def prepare(options: PrepareOptions) -> Prepared:
    """Writes the data folder `options.out`. InputError when the options or the input do not allow it."""
    _check(options)
    files = corpus.find_files(options.inputs, list(options.include), list(options.exclude), options.as_text)
    text_bytes = sum(file.num_bytes for file in files)
    if options.chat and (texts := [file.path for file in files if file.format == "text"]):
        names = ", ".join(texts[:3]) + (", ..." if len(texts) > 3 else "")
        raise InputError(
            f"--chat takes files of records, and these are texts: {names}; of a folder take --include '*.jsonl'"
        )
    if text_bytes == 0:
        found = f"{len(files)} files found, all of them empty" if files else "no files found"
        matching = f" matching {', '.join(options.include)}" if options.include else ""
        raise InputError(f"no input text: {found} in {', '.join(options.inputs)}{matching}")
    with new_folder(options.out) as folder:
        facts = _make_tokenizer(options, files, folder / "tokenizer")
        if options.chat:
            chat.add_default_template(folder / "tokenizer", facts.eos_token)
        dtype = np.dtype("<u2" if facts.vocab_size <= 1 << 16 and not options.chat else "<u4")
        shuffler = Shuffler(folder / "shuffle", dtype, options.seed, text_bytes)
        counts = Counts()
        tasks = corpus.plan_tasks(files)
        with (
            Progress("tokenizing", text_bytes) as progress,
            contextlib.closing(_encode_all(tasks, folder / "tokenizer", dtype, facts, options)) as results,
        ):
            for encoded in results:
                shuffler.add(encoded.tokens, encoded.lengths)
                counts.add(encoded.counts)
                progress.add(encoded.num_bytes)
        if len(shuffler.lengths) == 0:
            raise InputError(f"no input text: {_skipped(counts)}")
        train, held_out = _write(shuffler, facts, folder, options)
        (folder / "shuffle").rmdir()
    num_cut = sum(
        file.format == "text" and file.num_bytes > corpus.MAX_DOCUMENT_BYTES and file.path not in counts.undecodable
        for file in files
    )
    mismatch = eos_mismatch(options.tokenizer, facts) if options.tokenizer is not None else None
    return Prepared(train, held_out, counts, num_cut, text_bytes, mismatch)


def _check(options: PrepareOptions) -> None:
    problems = []
    if not 0 <= options.eval_fraction < 1:
        problems.append(f"--eval-fraction {options.eval_fraction}: must be at least 0 and below 1")
    if options.train_tokenizer is not None and options.train_tokenizer < MIN_VOCAB_SIZE:
        problems.append(
            f"--train-tokenizer {options.train_tokenizer}: must be at least {MIN_VOCAB_SIZE} (256 bytes and EOS)"
        )
    if options.train_tokenizer is not None and options.eos_token is not None:
        problems.append("--eos-token goes with --tokenizer; a trained tokenizer has the EOS token " + END_OF_TEXT)
    for name, value, least in (("seq-len", options.seq_len, 2), ("shard-tokens", options.shard_tokens, 1)):
        if value < least:
            problems.append(f"--{name} {value}: must be at least {least}")
    if options.processes < 0:
        problems.append(f"--processes {options.processes}: must be at least 1")
    if problems:
        raise InputError("\n".join(problems))


def _make_tokenizer(options: PrepareOptions, files: list[TextFile], folder: Path) -> TokenizerFacts:
    if options.tokenizer is not None:
        facts = load_tokenizer(options.tokenizer, options.eos_token)
        copy_tokenizer(options.tokenizer, folder)
        return facts
    text_bytes = sum(file.num_bytes for file in files)
    stride = -(-text_bytes // TRAINING_TEXT_BYTES)
    with (
        Progress("training the tokenizer", text_bytes // stride) as progress,
        contextlib.closing(_in_child(_train_in_child, options, files, stride, folder)) as parts,
    ):
        for num_bytes in parts:
            progress.add(num_bytes)
    return load_tokenizer(folder, None)


def _in_child(work: Callable, *args) -> Iterator[int]:
    """Gives what `work(*args, sent)` sends, from a process of its own, which ends when this generator is left: the
    library does not look at signals while it works, which can be for minutes. Raises its InputError."""
    context = multiprocessing.get_context("spawn")
    seen, sent = context.Pipe(duplex=False)
    child = context.Process(target=_run_in_child, args=(sent, work, *args), daemon=True)
    try:
        child.start()
        sent.close()
        while True:
            try:
                message = seen.recv()
            except EOFError:
                break
            if isinstance(message, InputError):
                raise message
            yield message
        child.join()
        if child.exitcode != 0:
            raise InputError(f"the process that trains the tokenizer ended with {child.exitcode} (-9: out of memory?)")
    finally:
        if child.pid is not None:
            child.kill()
            child.join()


def _run_in_child(sent: Connection, work: Callable, *args) -> None:
    _leave_interrupts_to_parent()
    try:
        work(*args, sent)
    except InputError as error:
        sent.send(error)


def _train_in_child(
    options: PrepareOptions, files: list[TextFile], stride: int, folder: Path, sent: Connection
) -> None:
    """Sends how many bytes it has read."""

    def documents() -> Iterator[str]:
        for i, task in enumerate(corpus.plan_tasks(files)):
            if i % stride == 0:
                yield from _training_texts(task, options)
                sent.send(sum(piece.num_bytes for piece in task))

    train_tokenizer(documents(), options.train_tokenizer, folder)


def _training_texts(task: list[Piece], options: PrepareOptions) -> Iterator[str]:
    if not options.chat:
        yield from corpus.read_documents(task, options.text_field, Counts())
        return
    for piece in task:
        for record in corpus.read_records(piece, chat.FIELDS):
            yield from (corpus.whole_characters(text, Counts()) for text in chat.texts_of_record(record))


@dataclass(frozen=True)
class Encoded:
    """The documents of one task, one after the other."""

    tokens: np.ndarray
    lengths: np.ndarray
    counts: Counts
    num_bytes: int


class Encoder:
    """Encodes tasks. One in each process."""

    def __init__(self, folder: Path, dtype: np.dtype, facts: TokenizerFacts, options: PrepareOptions):
        self._tokenizer = open_tokenizer(folder / "tokenizer.json")
        self._dtype = dtype
        self._text_field = options.text_field
        self._chat = None
        if options.chat:
            self._chat = chat.ChatEncoder(
                self._tokenizer, folder, facts.eos_token, facts.eos_token_id, max_tokens=options.seq_len
            )

    def encode(self, task: list[Piece]) -> Encoded:
        counts = Counts()
        parts = self._encode_conversations(task, counts) if self._chat else self._encode_texts(task, counts)
        # A tokenizer may make nothing of a text, as one that drops unknown characters.
        kept = [part for part in parts if len(part) > 0]
        counts.documents -= len(parts) - len(kept)
        counts.empty += len(parts) - len(kept)
        lengths = np.array([len(part) for part in kept], dtype=np.int64)
        tokens = np.concatenate(kept) if kept else np.empty(0, self._dtype)
        return Encoded(tokens, lengths, counts, sum(piece.num_bytes for piece in task))

    def _encode_texts(self, task: list[Piece], counts: Counts) -> list[np.ndarray]:
        parts: list[np.ndarray] = []
        batch: list[str] = []
        num_characters = 0

        def flush() -> None:
            for encoding in self._tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                parts.append(np.array(encoding.ids, dtype=self._dtype))
            batch.clear()

        for text in corpus.read_documents(task, self._text_field, counts):
            batch.append(text)
            num_characters += len(text)
            if num_characters >= BATCH_CHARACTERS:
                flush()
                num_characters = 0
        flush()
        return parts

    def _encode_conversations(self, task: list[Piece], counts: Counts) -> list[np.ndarray]:
        parts = []
        for piece in task:
            for record in corpus.read_records(piece, chat.FIELDS):
                ids, learned = self._chat.encode(replace(record, value=corpus.whole_value(record.value, counts)))
                parts.append(np.array(ids, self._dtype) | np.where(learned, LEARNED, np.uint32(0)))
                counts.documents += 1
        return parts


_encoder: Encoder | None = None  # In a child process.


def _start_child(*args) -> None:
    global _encoder
    _leave_interrupts_to_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # One process per core already.
    _encoder = Encoder(*args)


def _leave_interrupts_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _encode_in_child(task: list[Piece]) -> Encoded:
    return _encoder.encode(task)


def _encode_all(
    tasks: Iterable[list[Piece]], folder: Path, dtype: np.dtype, facts: TokenizerFacts, options: PrepareOptions
) -> Iterator[Encoded]:
    """Encodes in parallel and gives the results in the order of the tasks, with few of them in memory."""
    processes = options.processes or len(os.sched_getaffinity(0))
    if processes == 1:
        yield from map(Encoder(folder, dtype, facts, options).encode, tasks)
        return
    pool = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_child,
        initargs=(folder, dtype, facts, options),
    )
    try:
        pending = deque()
        for task in tasks:
            pending.append(pool.submit(_encode_in_child, task))
            if len(pending) >= 4 * processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise InputError("a tokenizing process was killed (out of memory?); use fewer with --processes") from error
    except BaseException:
        for child in multiprocessing.active_children():  # Else they finish what they have begun.
            child.kill()
        # One may have died in the midst of a result, the rest of which the pool's thread would wait for: with this end
        # closed, which nobody writes to, it comes to the end of the pipe.
        pool._result_queue._writer.close()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _write(
    shuffler: Shuffler, facts: TokenizerFacts, folder: Path, options: PrepareOptions
) -> tuple[dict, dict | None]:
    held_out, held_out_tails = shuffler.held_out(options.eval_fraction) if options.eval_fraction > 0 else (set(), {})
    if options.eval_fraction > 0 and not held_out and not any(held_out_tails.values()):
        raise InputError("--eval-fraction: the input is one document of one token; there is nothing to hold out")
    def writer(path: Path) -> shards.DatasetWriter:
        return shards.DatasetWriter(
            path,
            facts.vocab_size,
            options.shard_tokens,
            separate_documents=options.separate_documents,
            loss_mask=options.chat,
        )

    def append(to: shards.DatasetWriter, tokens: np.ndarray) -> None:
        """With EOS, which is learned where the token before it is."""
        if options.chat:
            tokens = np.append(tokens, eos | tokens[-1] & LEARNED)
            to.append(tokens & ~LEARNED, tokens >= LEARNED)
        else:
            to.append(np.append(tokens, eos))

    train = writer(folder)
    evaluation = writer(folder / "eval") if options.eval_fraction > 0 else None
    eos = np.uint32(facts.eos_token_id)
    with Progress("writing", int(shuffler.lengths.sum())) as progress:
        for number, tokens in shuffler.documents():
            if number in held_out:
                append(evaluation, tokens)
            else:
                tail = held_out_tails.get(number, 0)
                append(train, tokens[: len(tokens) - tail])
                if tail > 0:
                    append(evaluation, tokens[len(tokens) - tail :])
            progress.add(len(tokens))
    tokenizer = {"fingerprint": facts.fingerprint, "eos_token": facts.eos_token, "eos_token_id": facts.eos_token_id}
    held_out_index = evaluation.close(tokenizer=tokenizer, seq_len=options.seq_len) if evaluation else None
    return train.close(tokenizer=tokenizer, seq_len=options.seq_len), held_out_index


def _skipped(counts: Counts) -> str:
    return (
        f"{counts.empty:,} empty documents and {len(counts.undecodable):,} files that are not UTF-8 text were skipped"
    )


def _report(prepared: Prepared, options: PrepareOptions, seconds: float) -> None:
    def warn(text: str) -> None:
        print(f"warning: {text}", file=sys.stderr)

    counts = prepared.counts
    if counts.empty:
        warn(f"skipped {counts.empty:,} empty documents")
    if counts.undecodable:
        names = ", ".join(list(counts.undecodable)[:3]) + (", ..." if len(counts.undecodable) > 3 else "")
        warn(f"skipped {len(counts.undecodable):,} files that are not UTF-8 text: {names}")
    if counts.surrogates:
        warn(f"{counts.surrogates:,} records hold half of a surrogate pair; it was replaced by U+FFFD")
    if prepared.num_cut_files:
        warn(
            f"{prepared.num_cut_files:,} files of more than {corpus.MAX_DOCUMENT_BYTES >> 20} MiB "
            "were cut at line ends into several documents"
        )
    if prepared.eos_mismatch:
        warn(prepared.eos_mismatch)
    train = prepared.train
    for index, name in ((train, "training"), (prepared.eval, "held-out")):
        if index is not None and index["num_tokens"] < index["seq_len"]:
            warn(
                f"the {name} data has {index['num_tokens']:,} tokens, less than one sample of {index['seq_len']:,}; "
                "set a shorter data.seq_len in the job"
            )
    held_out = f" and {prepared.eval['num_tokens']:,} held-out tokens" if prepared.eval else " tokens"
    print(
        f"{options.out}: {train['num_tokens']:,} training{held_out} of {counts.documents:,} documents, "
        f"vocabulary {train['tokenizer']['vocab_size']:,}, "
        f"from {prepared.text_bytes / 1e6:.1f} MB of input in {seconds:.1f} s"
    )


def _run_prepare(args: argparse.Namespace) -> None:
    options = PrepareOptions(
        inputs=args.input,
        out=args.out,
        tokenizer=args.tokenizer,
        train_tokenizer=args.train_tokenizer,
        eos_token=args.eos_token,
        text_field=args.text_field,
        include=tuple(args.include),
        exclude=tuple(args.exclude),
        as_text=tuple(args.as_text),
        chat=args.chat,
        eval_fraction=args.eval_fraction,
        seq_len=args.seq_len,
        separate_documents=args.separate_documents,
        seed=args.seed,
        processes=args.processes,
        shard_tokens=args.shard_tokens,
    )
    start = time.monotonic()
    _report(prepare(options), options, time.monotonic() - start)


def add_commands(commands: argparse._SubParsersAction) -> None:
    data = commands.add_parser("data", help="prepare training data")
    actions = data.add_subparsers(required=True, metavar="ACTION")
    parser = actions.add_parser(
        "prepare",
        help="turn text into a data folder",
        description="Turns text into a data folder: documents are tokenized, shuffled once and joined with the "
        "EOS token. A text file is one document; so is a record of a .jsonl, .json, .csv, .tsv or .parquet file. "
        "docs/data.md describes the folder.",
    )
    tokenizer = parser.add_mutually_exclusive_group(required=True)
    tokenizer.add_argument("--tokenizer", type=Path, metavar="DIR", help="folder with the model's tokenizer.json")
    tokenizer.add_argument(
        "--train-tokenizer", type=int, metavar="N", help="train a byte-level BPE of N tokens on the input"
    )
    parser.add_argument(
        "--input",
        nargs="+",
        required=True,
        action="extend",
        metavar="PATH",
        help="text files, .jsonl, .json, .csv, .tsv and .parquet files, or folders of them (hidden and binary files and "
        "folders such as __pycache__ are skipped)",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the data folder; it must not exist or be empty"
    )
    parser.add_argument(
        "--text-field", default="text", metavar="NAME", help="field of a record that is the text (default: text)"
    )
    parser.add_argument(
        "--chat",
        action="store_true",
        help="records are conversations, 'messages' or 'prompt' and 'completion'; what the assistant says is learned",
    )
    parser.add_argument(
        "--include",
        action="append",
        default=[],
        metavar="GLOB",
        help="of folders, take only files whose name or path below the folder matches, as '*.py'; can be repeated",
    )
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="GLOB",
        help="of folders, leave out such files; can be repeated",
    )
    parser.add_argument(
        "--as-text",
        action="append",
        default=[],
        metavar="GLOB",
        help="take such files as plain text whatever their names, as '*.json' of a source tree; can be repeated",
    )
    parser.add_argument(
        "--eval-fraction",
        type=float,
        default=0.0,
        metavar="F",
        help="hold out documents with this fraction of the tokens, in DIR/eval (default: 0, none)",
    )
    parser.add_argument(
        "--seq-len",
        type=int,
        default=DEFAULT_SEQ_LEN,
        metavar="N",
        help=f"length of a sample for jobs that set no data.seq_len (default: {DEFAULT_SEQ_LEN})",
    )
    parser.add_argument(
        "--eos-token", metavar="TOKEN", help="token that ends a document (default: the tokenizer's own)"
    )
    parser.add_argument(
        "--separate-documents",
        action="store_true",
        help="keep the documents of a row apart: no attention across them, positions from the start of each",
    )
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help=f"of the shuffle (default: {DEFAULT_SEED})")
    parser.add_argument(
        "--processes", type=int, default=0, metavar="N", help="default: one per core; the result does not depend on it"
    )
    parser.add_argument(
        "--shard-tokens",
        type=int,
        default=shards.DEFAULT_SHARD_TOKENS,
        metavar="N",
        help=f"most tokens in one file (default: {shards.DEFAULT_SHARD_TOKENS})",
    )
    parser.set_defaults(run=_run_prepare)
