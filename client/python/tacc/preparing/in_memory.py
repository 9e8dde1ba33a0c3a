"""Records that a program has in memory, as a file that is read like any other.

They go through a file of JSON lines: a tokenizer's training reads them once more, several processes share them, and a
generator can be read only once. So memory holds a few of them at a time, and they give what a file of theirs gives.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacc.errors import InputError
from tacc.preparing.conversation import FIELDS
from tacc.preparing.corpus import TextFile
from tacc.preparing.records import is_conversation
from tacc.progress import Observer, Progress

CHUNK_ROWS = 1000  # Of a DataFrame, made to records at a time.
DEFAULT_TEXT_FIELD = "text"
ITERATED = "data: record {} (from 0)"


@dataclass(frozen=True)
class Records:
    """What a program gave."""

    rows: Callable[[Callable[[Sequence[str]], list[str]]], Iterable[Any]]  # Of a table, the columns that this takes of all.
    place: str  # What messages call a record, with {} for its number from 0.
    total: int | None = None  # How many there are, if that is known.


def paths_or_records(data: Any) -> list[str] | Records:
    """Paths to read, or records. InputError for what is neither."""
    if isinstance(data, str | os.PathLike):
        return [os.fspath(data)]
    if isinstance(data, list | tuple) and data and all(isinstance(item, str | os.PathLike) for item in data):
        if not any(os.path.exists(item) for item in data):
            raise InputError(
                f"data[0]: {_short(data[0])}: no such file or folder; in a list, strings are paths: give texts themselves "
                'as ({"text": text} for text in texts)'
            )
        return [os.fspath(item) for item in data]
    if isinstance(data, bytes | Mapping) or not isinstance(data, Iterable):
        splits = " or ".join(f"data[{name!r}]" for name in data) if type(data).__name__.endswith("DatasetDict") else ""
        raise InputError(
            f"data is a {type(data).__name__}; wanted a path, a list of paths, a Dataset, a DataFrame, or an iterable of "
            f"dicts or texts{f'; give one of its splits: {splits}' if splits else ''}"
        )
    total = len(data) if isinstance(data, Sized) else None
    if _is_of(data, "pandas", "DataFrame"):
        return Records(lambda columns: _rows_of_frame(data, columns), "data.iloc[{}]", total)
    if _is_of(data, "pandas", "Series"):
        return Records(lambda columns: data, "data.iloc[{}]", total)
    place = "data[{}]" if hasattr(data, "__getitem__") else ITERATED
    if _is_of(data, "datasets", "Dataset", "IterableDataset"):
        return Records(lambda columns: _rows_of_dataset(data, columns), place, total)
    return Records(lambda columns: data, place, total)


def _is_of(data: Any, module: str, *names: str) -> bool:
    """Whether data is of such a class, without importing what has it."""
    kinds = [getattr(sys.modules.get(module), name, None) for name in names]
    return isinstance(data, tuple(kind for kind in kinds if isinstance(kind, type)))


def _rows_of_frame(frame: Any, columns: Callable[[Sequence[str]], list[str]]) -> Iterator[dict[str, Any]]:
    frame = frame[columns(list(frame.columns))]
    for begin in range(0, len(frame), CHUNK_ROWS):
        yield from frame.iloc[begin : begin + CHUNK_ROWS].to_dict("records")


def _rows_of_dataset(dataset: Any, columns: Callable[[Sequence[str]], list[str]]) -> Any:
    """Others than the columns that are needed may be images, which take long to read. What the user's own function makes of
    rows (`with_transform`) is taken as it is."""
    if getattr(dataset, "format", {}).get("type") == "custom":
        return dataset
    names = dataset.column_names  # None where a stream does not know.
    return (dataset.select_columns(columns(names)) if names else dataset).with_format(None)


def write_records(
    given: Records, text_field: str, is_chat: bool | None, path: Path, observer: Observer | None
) -> tuple[TextFile, bool]:
    """Writes the records, or what is needed of them, to a file of JSON lines at `path`; and says whether they are
    conversations, which the first one decides where `is_chat` is None."""
    fields = {text_field, *FIELDS} if is_chat is None else set(FIELDS) if is_chat else {text_field}

    def is_enough(names: Iterable[str]) -> bool:
        return text_field in names if is_chat is False else is_conversation(names) or (is_chat is None and text_field in names)

    def needed(columns: Sequence[str]) -> list[str]:
        names = [name for name in columns if name in fields]
        return names if is_enough(names) else list(columns)  # All of them, for the message.

    with (
        open(path, "w", encoding="utf-8") as file,
        Progress("reading", given.total, "records", observer) as progress,
    ):
        for number, item in enumerate(given.rows(needed)):
            value = {text_field: item} if isinstance(item, str) else item
            if not isinstance(value, Mapping):
                raise InputError(f"{given.place.format(number)} is a {type(item).__name__}; wanted a dict or a text")
            value = {name: None if _is_missing(part) else part for name, part in value.items()}
            if is_chat is None:
                is_chat = looks_like_chat(value, text_field)
                fields = set(FIELDS) if is_chat else {text_field}
            kept = {name: part for name, part in value.items() if name in fields}
            if not is_enough(kept):
                kept |= {name: None for name in value if name not in fields}
            file.write(json.dumps(kept, default=_plain) + "\n")
            progress.add(1)
    return TextFile(str(path), path.stat().st_size, "jsonl", given.place), bool(is_chat)


def looks_like_chat(value: Mapping[str, Any], text_field: str) -> bool:
    """Whether a record without a choice of the user's is a conversation and not a text; a field of another name is one."""
    names = {name for name, part in value.items() if part is not None}
    return text_field == DEFAULT_TEXT_FIELD and text_field not in names and is_conversation(names)


def fingerprint(given: Records) -> str:
    """Of what the records say. They are read whole, so they are such as can be read again."""
    digest = hashlib.sha256()
    for item in given.rows(list):
        digest.update(json.dumps(item, default=_plain, skipkeys=True).encode() + b"\n")
    return digest.hexdigest()


def _is_missing(part: Any) -> bool:
    """As in a column of a DataFrame that has no value in a row."""
    return isinstance(part, float) and part != part or type(part).__name__ in ("NAType", "NaTType")


def _plain(part: Any) -> Any:
    """For JSON: arrays and scalars of numpy as lists and numbers. What else there is, is no text, and is not to look like one."""
    return part.tolist() if hasattr(part, "tolist") else {}


def _short(item: Any) -> str:
    text = str(item)
    return repr(text if len(text) <= 60 else text[:57] + "...")
