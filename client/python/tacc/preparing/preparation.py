"""Makes a data folder (docs/data.md): what the command and the function have in common."""

import contextlib
import itertools
import numbers
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tacc import shards
from tacc.errors import InputError
from tacc.output_folder import new_folder
from tacc.preparing import chat, conversation, corpus
from tacc.preparing.corpus import Counts, TextFile
from tacc.preparing.encoding import LEARNED, ON_LONG, Encoding, encode_all, train_in_worker
from tacc.preparing.in_memory import Records, looks_like_chat, write_records
from tacc.preparing.prepare_options import PreparedData, PrepareOptions
from tacc.preparing.shuffle import Shuffler
from tacc.preparing.tokenizer import (
    END_OF_TEXT,
    MIN_VOCAB_SIZE,
    TokenizerFacts,
    copy_tokenizer,
    eos_mismatch,
    load_tokenizer,
)
from tacc.progress import Observer, Progress

TRAINING_TEXT_BYTES = 512 << 20  # A tokenizer is trained on at most about this much, taken evenly from the input.


def prepare_folder(options: PrepareOptions, observer: Observer | None = None) -> PreparedData:
    """Writes the data folder `options.out`, whole or not at all. `observer` is told how far it is, in place of a line on the
    terminal. InputError when the options or the input do not allow it, OSError when the disk does not."""
    _check(options)
    given = options.inputs
    files = [] if isinstance(given, Records) else _find_files(options, given)
    with new_folder(options.out) as folder, contextlib.ExitStack() as stack:
        if isinstance(given, Records):
            file, is_chat = write_records(given, options.text_field, options.chat, folder / "records.jsonl", observer)
            files = [file]
            if file.num_bytes == 0:
                raise InputError("no input text: data has no records")
        else:
            is_chat = _is_chat(options, files)
        if options.on_long is not None and not is_chat:
            raise InputError("--on-long goes with --chat; texts of any length are taken, a sample after the other")
        text_bytes = sum(file.num_bytes for file in files)
        facts = _make_tokenizer(options, is_chat, files, folder / "tokenizer", observer)
        is_default = is_chat and chat.add_default_template(
            folder / "tokenizer", facts.eos_token, options.tokenizer or folder / "tokenizer"
        )
        dtype = np.dtype("<u2" if facts.vocab_size <= 1 << 16 and not is_chat else "<u4")
        encoding = Encoding(
            folder / "tokenizer", facts, dtype, options.text_field, is_chat, options.seq_len, options.on_long or ON_LONG[0]
        )
        shuffler = stack.enter_context(contextlib.closing(Shuffler(folder / "shuffle", dtype, options.seed, text_bytes)))
        counts = Counts()
        # What one task holds is done here before others could start.
        processes = options.processes or (1 if text_bytes <= corpus.TASK_BYTES else len(os.sched_getaffinity(0)))
        with (
            Progress("tokenizing", text_bytes, "bytes", observer) as progress,
            contextlib.closing(encode_all(corpus.plan_tasks(files), encoding, processes)) as results,
        ):
            for encoded in results:
                shuffler.add(encoded.tokens, encoded.lengths)
                counts.add(encoded.counts)
                progress.add(encoded.num_bytes)
        if len(shuffler.lengths) == 0:
            raise InputError(f"no input text: {_skipped(counts, is_chat)}")
        is_apart = is_chat if options.separate_documents is None else options.separate_documents
        train, held_out = _write(shuffler, encoding, folder, options, is_apart, observer)
        (folder / "shuffle").rmdir()
        if isinstance(given, Records):
            os.unlink(files[0].path)
    out = Path(os.path.abspath(options.out))
    return PreparedData(
        path=out,
        eval_path=out / "eval" if held_out else None,
        tokenizer_path=out / "tokenizer",
        num_tokens=train.num_tokens,
        num_target_tokens=train.num_target_tokens,
        num_documents=train.num_documents,
        num_input_documents=counts.documents,
        num_eval_tokens=held_out.num_tokens if held_out else 0,
        num_eval_documents=held_out.num_documents if held_out else 0,
        seq_len=options.seq_len,
        vocab_size=facts.vocab_size,
        eos_token=facts.eos_token,
        fingerprint=train.fingerprint,
        chat=is_chat,
        separate_documents=is_apart,
        num_empty=counts.empty,
        num_dropped=counts.dropped,
        num_truncated=counts.truncated,
        num_input_bytes=text_bytes,
        warnings=tuple(_warnings(options, files, counts, facts, is_default, train, held_out)),
    )


def _check_types(options: PrepareOptions) -> None:
    """Of a command all are right; a function is given anything."""
    problems = []
    for names, kind, what in (
        (("train_tokenizer", "seq_len", "seed", "processes", "shard_tokens"), numbers.Integral, "a whole number"),
        (("eval_fraction",), numbers.Real, "a number"),
        (("chat", "separate_documents"), bool, "True or False"),
        (("text_field", "eos_token"), str, "a text"),
    ):
        for name in names:
            value = getattr(options, name)
            default = PrepareOptions.__dataclass_fields__[name].default
            is_left_out = value is None and (default is None or name == "chat")
            if not is_left_out and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
                problems.append(f"{name} {value!r}: must be {what}")
    for name in ("include", "exclude", "as_text"):
        if not all(isinstance(pattern, str) for pattern in getattr(options, name)):
            problems.append(f"{name}: patterns must be texts")
    if problems:
        raise InputError("\n".join(problems))


def _check(options: PrepareOptions) -> None:
    _check_types(options)
    problems = []
    if (options.tokenizer is None) == (options.train_tokenizer is None):
        problems.append("give either --tokenizer, a folder, or --train-tokenizer, the size of a vocabulary")
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
    if options.on_long is not None and options.on_long not in ON_LONG:
        problems.append(f"--on-long {options.on_long}: must be one of {', '.join(ON_LONG)}")
    if problems:
        raise InputError("\n".join(problems))


def _find_files(options: PrepareOptions, inputs: list[str]) -> list[TextFile]:
    files = corpus.find_files(inputs, list(options.include), list(options.exclude), options.as_text)
    if options.chat and (texts := [file.path for file in files if file.format == "text"]):
        names = ", ".join(texts[:3]) + (", ..." if len(texts) > 3 else "")
        raise InputError(
            f"--chat takes files of records, and these are texts: {names}; of a folder take --include '*.jsonl'"
        )
    if all(file.num_bytes == 0 for file in files):
        found = f"{len(files)} files found, all of them empty" if files else "no files found"
        matching = f" matching {', '.join(options.include)}" if options.include else ""
        raise InputError(f"no input text: {found} in {', '.join(inputs)}{matching}")
    return files


def _is_chat(options: PrepareOptions, files: list[TextFile]) -> bool:
    """What the user says, or else the first record; texts among the files are no conversations."""
    if options.chat is not None:
        return options.chat
    if any(file.format == "text" for file in files):
        return False
    try:
        pieces = itertools.chain.from_iterable(corpus.plan_tasks(files))
        fields = (options.text_field, *conversation.FIELDS)
        first = next(itertools.chain.from_iterable(corpus.read_records(piece, fields) for piece in pieces), None)
    except InputError:  # Raised again where all of it is read.
        return False
    return first is not None and looks_like_chat(first.value, options.text_field)


def _make_tokenizer(
    options: PrepareOptions, is_chat: bool, files: list[TextFile], folder: Path, observer: Observer | None
) -> TokenizerFacts:
    if options.tokenizer is not None:
        facts = load_tokenizer(options.tokenizer, options.eos_token)
        copy_tokenizer(options.tokenizer, folder)
        return facts
    assert options.train_tokenizer is not None
    text_bytes = sum(file.num_bytes for file in files)
    stride = -(-text_bytes // TRAINING_TEXT_BYTES)
    training = train_in_worker(files, stride, options.text_field, is_chat, options.train_tokenizer, folder)
    with (
        Progress("training the tokenizer", text_bytes // stride, "bytes", observer) as progress,
        contextlib.closing(training) as parts,
    ):
        for num_bytes in parts:
            progress.add(num_bytes)
    return load_tokenizer(folder, None)


@dataclass(frozen=True)
class _Written:
    num_tokens: int
    num_target_tokens: int
    num_documents: int
    fingerprint: str


class _Writer:
    """Of the training or the held-out data."""

    def __init__(self, folder: Path, encoding: Encoding, options: PrepareOptions, is_apart: bool):
        self._encoding = encoding
        self._seq_len = options.seq_len
        self._num_target_tokens = 0
        self._shards = shards.DatasetWriter(
            folder,
            encoding.facts.vocab_size,
            options.shard_tokens,
            separate_documents=is_apart,
            loss_mask=encoding.is_chat,
        )

    def append(self, tokens: np.ndarray[Any, Any]) -> None:
        """A document as `Encoded` has it; EOS is added where it is not there."""
        if self._encoding.is_chat:
            is_learned = tokens >= LEARNED
            self._num_target_tokens += int(np.count_nonzero(is_learned))
            self._shards.append(tokens & ~LEARNED, is_learned)
        else:
            self._num_target_tokens += len(tokens) + 1
            self._shards.append(np.append(tokens, np.uint32(self._encoding.facts.eos_token_id)))

    def release(self) -> None:
        self._shards.release()

    def close(self) -> _Written:
        facts = self._encoding.facts
        tokenizer = {"fingerprint": facts.fingerprint, "eos_token": facts.eos_token, "eos_token_id": facts.eos_token_id}
        index = self._shards.close(tokenizer=tokenizer, seq_len=self._seq_len)
        return _Written(index["num_tokens"], self._num_target_tokens, index["num_documents"], index["fingerprint"])


def _write(
    shuffler: Shuffler,
    encoding: Encoding,
    folder: Path,
    options: PrepareOptions,
    is_apart: bool,
    observer: Observer | None,
) -> tuple[_Written, _Written | None]:
    held_out: set[int] = set()
    held_out_tails: dict[int, int] = {}
    evaluation = None
    if options.eval_fraction > 0:
        # Half of a conversation is no conversation.
        held_out, held_out_tails = shuffler.held_out(options.eval_fraction, may_cut=not encoding.is_chat)
        if not held_out and not any(held_out_tails.values()):
            what = "conversation" if encoding.is_chat else "document of one token"
            raise InputError(f"--eval-fraction: the input is one {what}; there is nothing to hold out")
        evaluation = _Writer(folder / "eval", encoding, options, is_apart)
    train = _Writer(folder, encoding, options, is_apart)
    with contextlib.ExitStack() as stack, Progress("writing", int(shuffler.lengths.sum()), "tokens", observer) as progress:
        for writer in (evaluation, train):
            if writer is not None:
                stack.callback(writer.release)
        for number, tokens in shuffler.documents():
            tail = len(tokens) if number in held_out else held_out_tails.get(number, 0)
            if tail < len(tokens):
                train.append(tokens[: len(tokens) - tail])
            if tail > 0 and evaluation is not None:
                evaluation.append(tokens[len(tokens) - tail :])
            progress.add(len(tokens))
        return train.close(), evaluation.close() if evaluation else None


def _skipped(counts: Counts, is_chat: bool) -> str:
    if is_chat:
        return f"{counts.dropped:,} conversations longer than --seq-len were dropped" if counts.dropped else "the files have no records"
    return (
        f"{counts.empty:,} empty documents and {len(counts.undecodable):,} files that are not UTF-8 text were skipped"
    )


def _warnings(
    options: PrepareOptions,
    files: list[TextFile],
    counts: Counts,
    facts: TokenizerFacts,
    is_default_template: bool,
    train: _Written,
    held_out: _Written | None,
) -> Iterator[str]:
    if counts.empty:
        yield f"skipped {counts.empty:,} empty documents"
    if counts.undecodable:
        names = ", ".join(list(counts.undecodable)[:3]) + (", ..." if len(counts.undecodable) > 3 else "")
        yield f"skipped {len(counts.undecodable):,} files that are not UTF-8 text: {names}"
    if counts.surrogates:
        yield f"{counts.surrogates:,} records hold half of a surrogate pair; it was replaced by U+FFFD"
    if counts.dropped:
        yield f"left out {counts.dropped:,} conversations longer than --seq-len {options.seq_len:,}"
    if counts.truncated:
        yield f"of {counts.truncated:,} conversations longer than --seq-len {options.seq_len:,} only the beginning was taken"
    num_cut = sum(
        file.format == "text" and file.num_bytes > corpus.MAX_DOCUMENT_BYTES and file.path not in counts.undecodable
        for file in files
    )
    if num_cut:
        yield (
            f"{num_cut:,} files of more than {corpus.MAX_DOCUMENT_BYTES >> 20} MiB "
            "were cut at line ends into several documents"
        )
    if options.tokenizer is not None and (mismatch := eos_mismatch(options.tokenizer, facts)):
        yield mismatch
    if is_default_template and counts.has_used_template and options.tokenizer is not None:
        written = Path(os.path.abspath(options.out)) / "tokenizer" / chat.TEMPLATE_FILE
        yield (
            f"the tokenizer has no chat template; a plain one was taken: copy {written} to where the model is asked, "
            "unless that is the exported folder, which has it"
        )
    for part, name in ((train, "training"), (held_out, "held-out")):
        if part is not None and part.num_tokens < options.seq_len:
            yield (
                f"the {name} data has {part.num_tokens:,} tokens, less than one sample of {options.seq_len:,}; "
                "set a shorter data.seq_len in the job"
            )
