"""`tacc.prepare`: turns what a program has, or files, into a data folder (docs/data.md)."""

import contextlib
import os
import re
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tacc.errors import InputError
from tacc.extras import what_to_install
from tacc.preparing.in_memory import DEFAULT_TEXT_FIELD, paths_or_records
from tacc.preparing.prepare_options import DEFAULT_SEED, DEFAULT_SEQ_LEN, DEFAULT_SHARD_TOKENS, PreparedData, PrepareOptions
from tacc.progress import Observer, ProgressReport

__all__ = ["Observer", "PreparedData", "ProgressReport", "prepare"]

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
# Any: a `datasets.Dataset` or a pandas DataFrame, whose packages need not be there.
Data: TypeAlias = "Paths | Iterable[Mapping[str, Any]] | Iterable[str] | Any"


def prepare(
    data: Data,
    out: str | os.PathLike[str],
    *,
    tokenizer: "str | os.PathLike[str] | Any | None" = None,
    train_tokenizer: int | None = None,
    eos_token: str | None = None,
    chat: bool | None = None,
    on_long: Literal["error", "drop", "truncate"] | None = None,
    text_field: str = DEFAULT_TEXT_FIELD,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    as_text: str | Sequence[str] = (),
    eval_fraction: float = 0.0,
    seq_len: int = DEFAULT_SEQ_LEN,
    separate_documents: bool | None = None,
    seed: int = DEFAULT_SEED,
    processes: int | None = None,
    shard_tokens: int = DEFAULT_SHARD_TOKENS,
    progress: Observer | None = None,
) -> PreparedData:
    """Writes the data folder `out`, for `data.path` of a job: `python -m tacc data prepare` as a function. The same records
    and options give the same bytes, whether they come from memory or from a file.

        tacc.prepare(["corpus/", "more.jsonl"], "data", tokenizer="my-model", eval_fraction=0.02)
        tacc.prepare(load_dataset("HuggingFaceH4/ultrachat_200k", split="train_sft"), "chats", tokenizer="my-model")
        tacc.prepare(({"text": text} for text in texts), "data", train_tokenizer=8192, seq_len=512)

    Args:
        data: A path or a list of paths: texts, .jsonl, .json, .csv, .tsv and .parquet files, and folders of them. Or records:
            a `datasets.Dataset` or `IterableDataset`, a pandas DataFrame, or any iterable of dicts, or of texts. In a list,
            strings are paths. A record is one document. Records are read once and in order; few are in memory at a time, and
            the disk of `out` holds them once more until all is done.
        out: The data folder. It appears when all is done, or not at all, also after Ctrl-C.
        tokenizer: The model's folder, with its tokenizer.json; or a fast tokenizer of `transformers`.
        train_tokenizer: Instead of `tokenizer`: train a byte-level BPE of so many tokens on the data.
        eos_token: Ends a document; None: the tokenizer's own.
        chat: Records are conversations, and what the assistant says is learned. None: if the first record looks like one
            ("messages", "conversations", "prompt" and "completion", or "instruction" and "output") and has no field "text",
            and no other `text_field` is given.
        on_long: Of a conversation longer than `seq_len` tokens: "error" (None is the same), "drop" it, or "truncate" it to
            its first `seq_len`.
        text_field: Field of a record that is the text.
        include: For folders: which files, by name or path below the folder, as "*.py" or several of these.
        exclude: For folders: which files not.
        as_text: Which files to take as plain text whatever their names.
        eval_fraction: In [0, 1): hold out documents with this fraction of the tokens, in `out`/eval.
        seq_len: Length of a sample, in tokens, for jobs that set no `data.seq_len`.
        separate_documents: A job then keeps the documents of a row apart: no attention across them, positions from the start
            of each. None: for conversations.
        seed: Of the shuffle.
        processes: That read and tokenize; None: one for each core, or this one for little data. The result does not depend
            on it. They do not run the caller's script again, so it needs no guard.
        shard_tokens: Most tokens in one file.
        progress: Called with a `ProgressReport` in this thread, at the beginning and the end of each stage and about ten
            times a second between; what it raises ends the work. None: a line on the terminal or below the notebook's cell.

    Returns:
        What was written. Its `warnings` are also given as `UserWarning`s.

    Raises:
        InputError: The options or the data do not allow it: which file and line or which record, what, and what to do.
        OSError: The disk does not.
        ImportError: What brings numpy and tokenizers, the extra "data", is not installed.
    """
    try:
        from tacc.preparing.preparation import prepare_folder
    except ModuleNotFoundError as error:
        if (said := what_to_install(error)) is None:
            raise
        raise ImportError(f"tacc.prepare: {said}", name=error.name) from error
    with _in_words_of_python(), _folder_of(tokenizer) as folder:
        options = PrepareOptions(
            inputs=paths_or_records(data),
            out=Path(out),
            tokenizer=folder,
            train_tokenizer=train_tokenizer,
            eos_token=eos_token,
            text_field=text_field,
            include=_patterns(include),
            exclude=_patterns(exclude),
            as_text=_patterns(as_text),
            chat=chat,
            on_long=on_long,
            eval_fraction=eval_fraction,
            seq_len=seq_len,
            separate_documents=separate_documents,
            seed=seed,
            processes=processes or 0,
            shard_tokens=shard_tokens,
        )
        prepared = prepare_folder(options, progress)
    prepared = replace(prepared, warnings=tuple(_python_words(text) for text in prepared.warnings))
    for text in prepared.warnings:
        warnings.warn(text, stacklevel=2)
    return prepared


def _patterns(given: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)


@contextlib.contextmanager
def _folder_of(tokenizer: Any) -> Iterator[Path | None]:
    if tokenizer is None or isinstance(tokenizer, str | os.PathLike):
        yield None if tokenizer is None else Path(tokenizer)
        return
    if not hasattr(tokenizer, "save_pretrained") or not getattr(tokenizer, "is_fast", False):
        what = f"a {type(tokenizer).__name__}; wanted a folder with tokenizer.json, or a fast tokenizer of transformers"
        raise InputError(f"tokenizer is {what}")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        yield Path(folder)


@contextlib.contextmanager
def _in_words_of_python() -> Iterator[None]:
    """Errors speak of the command's options."""
    try:
        yield
    except InputError as error:
        raise InputError(_python_words(str(error))) from error.__cause__


def _python_words(text: str) -> str:
    def word(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_")
        return {"input": "data", "chat": "chat=True"}.get(name, name)

    names = "|".join(name.replace("_", "-") for name in PrepareOptions.__dataclass_fields__)
    return re.sub(rf"(?<!\S)--(input|{names})(?![\w-])", word, text)
