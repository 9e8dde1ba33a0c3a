"""Reads records (JSON objects, rows of a table) from files, with the place of each for messages."""

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from tacc.errors import InputError, this_python

SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
# The forms of a record that is a conversation (tacc/conversation.py), by the fields that make it one.
CONVERSATIONS = (("messages",), ("conversations",), ("prompt", "completion"), ("instruction", "output"))
CONVERSATION_FIELDS = '"messages", "conversations", "prompt" and "completion", or "instruction" and "output"'


@dataclass(frozen=True)
class Record:
    value: dict[str, Any]
    place: Callable[[], str]  # "FILE:LINE", found when it is asked for.

    def fail(self, what: str) -> InputError:
        return InputError(f"{self.place()}: {what}")


def _parse(text: str) -> Any:
    """A JSON value. ValueError: it is none, or a field is there twice, of which json would take the last without a word."""
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError(f'the field "{_repeated(name for name, _ in pairs)}" is there twice')
    return value


def _repeated(names: Iterable[str]) -> str:
    """The first name that is there more than once."""
    return next(name for name, times in Counter(names).items() if times > 1)


def read_jsonl(path: str, begin: int, end: int, place: str = "") -> Iterator[Record]:
    """The records whose lines begin in bytes [begin, end). `place`: see corpus.TextFile."""
    with open(path, "rb") as file:
        offset = begin
        if offset > 0:
            # The line that holds the byte before belongs to the piece before.
            file.seek(offset - 1)
            offset += len(file.readline()) - 1
        while offset < end:
            line = file.readline()
            if not line:
                return
            if line.strip(b" \t\r\n\xef\xbb\xbf"):
                yield _record_of_line(line, path, offset, place)
            offset += len(line)


def _record_of_line(line: bytes, path: str, offset: int, pattern: str) -> Record:
    def place() -> str:
        with open(path, "rb") as file:
            before = sum(file.read(min(1 << 20, offset - at)).count(b"\n") for at in range(0, offset, 1 << 20))
        return pattern.format(before) if pattern else f"{path}:{before + 1}"

    try:
        value = _parse(line.decode("utf-8-sig" if offset == 0 else "utf-8"))
    except (ValueError, RecursionError) as error:
        what = f"not a JSON record: {error}; a .jsonl file has one JSON object a line"
        raise InputError(f"{place()}: {what}") from None
    if not isinstance(value, dict):
        raise InputError(f"{place()}: a JSON {type(value).__name__}; a .jsonl file has one JSON object a line")
    return Record(value, place)


def read_json(path: str, fields: tuple[str, ...]) -> Iterator[Record]:
    """The records of an array, of the only array in an object, or the object itself where it has the first of `fields` or,
    if there are more, is a conversation."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        value = _parse(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}; {otherwise(path)}") from None
    if isinstance(value, dict):
        arrays = [array for array in value.values() if _is_array_of_records(array)]
        is_record = fields[0] in value or (len(fields) > 1 and is_conversation(value))
        value = [value] if is_record or len(arrays) != 1 else arrays[0]
    if not isinstance(value, list):
        raise InputError(f"{path}: a JSON {type(value).__name__}; wanted an array of objects; {otherwise(path)}")
    for number, item in enumerate(value, 1):
        if not isinstance(item, dict):
            kind = type(item).__name__
            what = f"element {number} is a JSON {kind}; wanted an array of objects"
            raise InputError(f"{path}: {what}; {otherwise(path)}")
        yield Record(item, partial("{}: record {}".format, path, number))


def _is_array_of_records(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and isinstance(value[0], dict)


def read_table(path: str, delimiter: str) -> Iterator[Record]:
    """The rows of a file of comma- or tab-separated values, by the names in its first line."""
    csv.field_size_limit(1 << 40)
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter=delimiter, strict=True)
        try:
            names = reader.fieldnames or ()
            if len(set(names)) < len(names):
                raise InputError(f'{path}:1: the field "{_repeated(names)}" is there twice in the first line; rename one')
            for row in reader:
                line = reader.line_num
                record = Record(row, partial("{}:{}".format, path, line))
                if None in row or None in row.values():
                    raise record.fail(f"a row with more or fewer fields than the {len(names)} of the first line")
                yield record
        except (csv.Error, UnicodeDecodeError) as error:
            what = f"not a table: {error}; {otherwise(path)}"
            raise InputError(f"{path}:{reader.line_num + 1}: {what}") from None


def _open_parquet(path: str) -> Any:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise InputError(f"{path}: reading parquet needs pyarrow: {this_python()} -m pip install pyarrow ({error})") from error
    try:
        return parquet.ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise InputError(f"{path}: not a parquet file: {error}") from None


def parquet_bytes(path: str) -> list[int]:
    """Of each group of rows, not compressed."""
    with _open_parquet(path) as file:
        return [file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)]


def read_parquet(path: str, group: int, fields: tuple[str, ...]) -> Iterator[Record]:
    """The rows of a group, of which there is at least one of `fields`, and no other."""
    from pyarrow import ArrowException

    with _open_parquet(path) as file:
        columns = [name for name in fields if name in file.schema_arrow.names]
        if not columns:
            names = ", ".join(f'"{name}"' for name in file.schema_arrow.names[:10]) or "none"
            remedy = f"; {which_text(file.schema_arrow.names)}" if len(fields) == 1 else ""
            wanted = CONVERSATION_FIELDS if len(fields) > 1 else f'"{fields[0]}"'
            raise InputError(f"{path}: no column {wanted}; its columns: {names}{remedy}")
        number = sum(file.metadata.row_group(i).num_rows for i in range(group))
        try:
            for batch in file.iter_batches(batch_size=256, row_groups=[group], columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield Record(row, partial("{}: row {}".format, path, number))
        except (ArrowException, OSError) as error:
            raise InputError(f"{path}: cannot be read after row {number}: {error}") from None


def is_conversation(names: Iterable[str]) -> bool:
    """Whether a record of these fields is in one of the forms."""
    return any(set(names).issuperset(form) for form in CONVERSATIONS)


def which_text(names: Iterable[str]) -> str:
    """What to do with records of these fields, of which none is the text."""
    names = set(names)
    say = "say which is the text with --text-field"
    return f"these look like conversations: give --chat, or {say}" if is_conversation(names) else say


def otherwise(path: str) -> str:
    """What else to do with a file of records."""
    suffix = path[path.rfind(".") :]
    return f"leave such files out with --exclude '*{suffix}', or take them as plain text with --as-text '*{suffix}'"
