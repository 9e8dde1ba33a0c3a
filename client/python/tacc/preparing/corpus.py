"""Finds input files and reads them as documents.

A text file is one document; a record (a line of a JSON-lines file, a row of a table) is one. Files are handled in byte
ranges of bounded size (pieces), so that one huge file is read by several processes, and memory does not grow with it.
"""

import fnmatch
import glob
import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tacc.errors import InputError, refuse_lfs_pointer
from tacc.preparing import records
from tacc.preparing.records import Record

SKIPPED_FOLDERS = ("__pycache__", "node_modules", "site-packages", "dist-packages")
MAX_DOCUMENT_BYTES = 4 << 20  # A longer text file is cut at line ends into several documents.
JSONL_PIECE_BYTES = 4 << 20
TASK_BYTES = 1 << 20  # Small files are handled in groups of about this size.
# Not read: by the end of their names, what makes of them something that is.
REMEDIES = {
    ".gz": "it is compressed; unpack it first: gunzip {}",
    ".zst": "it is compressed; unpack it first: unzstd {}",
    ".bz2": "it is compressed; unpack it first: bunzip2 {}",
    ".xz": "it is compressed; unpack it first: unxz {}",
    ".lz4": "it is compressed; unpack it first: unlz4 {}",
    ".zip": "it is an archive; unpack it first: unzip {}",
    ".tar": "it is an archive; unpack it first: tar xf {}",
    ".tgz": "it is an archive; unpack it first: tar xf {}",
    ".arrow": "Arrow files are not read; write the data set as parquet: Dataset.to_parquet('data.parquet')",
}


@dataclass(frozen=True)
class TextFile:
    path: str
    num_bytes: int  # Of parquet, not compressed.
    format: str  # "text", or one of records.SUFFIXES.
    place: str = ""  # Of .jsonl: what messages call a line, with {} for its number from 0; "": path and number from 1.


@dataclass(frozen=True)
class Piece:
    """The documents that begin in bytes [begin, end) of a JSON-lines file, the document of these bytes of a text, a
    group of rows of a parquet file, or all of any other file."""

    file: TextFile
    begin: int
    end: int
    row_group: int = 0

    @property
    def num_bytes(self) -> int:
        return self.end - self.begin


@dataclass
class Counts:
    """What happened while reading. `undecodable` has the paths of files that are not text, whole or in part."""

    documents: int = 0
    empty: int = 0
    surrogates: int = 0
    has_used_template: bool = False  # For conversations.
    dropped: int = 0  # Conversations longer than a sample,
    truncated: int = 0  # and those of which the beginning was taken.
    undecodable: dict[str, None] = field(default_factory=dict)

    def add(self, other: "Counts") -> None:
        self.documents += other.documents
        self.empty += other.empty
        self.surrogates += other.surrogates
        self.has_used_template |= other.has_used_template
        self.dropped += other.dropped
        self.truncated += other.truncated
        self.undecodable |= other.undecodable


def find_files(
    inputs: list[str], include: list[str], exclude: list[str], as_text: list[str] | tuple[str, ...] = ()
) -> list[TextFile]:
    """All input files in a fixed order, each once. Patterns match the name or the path below the given folder; files
    that match `as_text` are texts whatever their names. InputError for what cannot be read; in folders, binary files
    are left to be skipped, unless they look like packed data."""
    files: dict[str, TextFile] = {}
    problems = []

    def add(path: str, relative: str, is_named: bool) -> None:
        is_text = _matches(relative, as_text)
        try:
            problem = None if is_text else _problem(path, is_named)
            if problem:
                problems.append(problem)
                return
            suffix = os.path.splitext(path)[1].lower()
            format = "text" if is_text else records.SUFFIXES.get(suffix, "text")
            num_bytes = sum(records.parquet_bytes(path)) if format == "parquet" else os.stat(path).st_size
            files.setdefault(os.path.realpath(path), TextFile(path, num_bytes, format))
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error

    for given in inputs:
        if os.path.isfile(given):
            add(given, os.path.basename(given), True)
        elif os.path.isdir(given):
            unread: list[OSError] = []
            for path in _walk(given, unread):
                relative = os.path.relpath(path, given)
                if include and not _matches(relative, include):
                    continue
                if not _matches(relative, exclude):
                    add(path, relative, False)
            for error in unread:
                relative = os.path.relpath(error.filename, given)
                inside = "/*" if os.path.isdir(error.filename) else ""
                if _matches(relative + inside, exclude):
                    continue
                problem = f"{error.filename}: {error.strerror}; make it readable"
                if relative != os.curdir:
                    problem += f", or --exclude {shlex.quote(glob.escape(relative) + inside)}"
                problems.append(problem)
        else:
            problems.append(f"--input {given}: no such file or folder")
    if problems:
        more = [f"and {len(problems) - 10:,} more files like these"] if len(problems) > 10 else []
        raise InputError("\n".join(problems[:10] + more))
    return list(files.values())


def _problem(path: str, is_named: bool) -> str | None:
    """Why a file cannot be read, and what to do."""
    stem, suffix = os.path.splitext(path.lower())
    packs_data = os.path.splitext(stem)[1] in (*records.SUFFIXES, ".txt")
    if suffix in REMEDIES and (is_named or packs_data or suffix == ".arrow"):
        return f"{path}: {REMEDIES[suffix].format(path)}" + ("" if is_named else f", or --exclude '*{suffix}'")
    with open(path, "rb") as file:
        head = file.read(1 << 13)
    try:
        refuse_lfs_pointer(path, head)
    except InputError as error:
        return str(error)
    if is_named and b"\0" in head and suffix != ".parquet":
        return f"{path}: a binary file; --input takes texts and .jsonl, .json, .csv, .tsv and .parquet files"
    return None


def _walk(folder: str, unread: list[OSError]) -> Iterator[str]:
    """Files below a folder. Adds to `unread` what cannot be listed, and files whose kind cannot be found out; not what
    has gone meanwhile."""

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError) or error.filename == folder:
            unread.append(error)

    for here, folders, names in os.walk(folder, onerror=note):
        if "index.json" in names and "00000.tacc" in names:  # Data prepared before.
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(here, name)
            try:
                if not name.startswith(".") and stat.S_ISREG(os.lstat(path).st_mode):
                    yield path
            except OSError as error:
                note(error)


def _matches(relative: str, patterns: Iterable[str]) -> bool:
    name = os.path.basename(relative)
    return any(fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(relative, pattern) for pattern in patterns)


def plan_tasks(files: list[TextFile]) -> Iterator[list[Piece]]:
    """Groups of pieces, in order: the unit of work of one process."""
    task: list[Piece] = []
    task_bytes = 0
    for file in files:
        for piece in _pieces(file):
            task.append(piece)
            task_bytes += piece.num_bytes
            if task_bytes >= TASK_BYTES:
                yield task
                task, task_bytes = [], 0
    if task:
        yield task


def _pieces(file: TextFile) -> Iterator[Piece]:
    if file.format == "jsonl":
        for begin in range(0, file.num_bytes, JSONL_PIECE_BYTES):
            yield Piece(file, begin, min(begin + JSONL_PIECE_BYTES, file.num_bytes))
        return
    if file.format == "parquet":
        begin = 0
        for group, num_bytes in enumerate(records.parquet_bytes(file.path)):
            yield Piece(file, begin, begin + num_bytes, group)
            begin += num_bytes
        return
    if file.format != "text":
        yield Piece(file, 0, file.num_bytes)
        return
    begin = 0
    while file.num_bytes - begin > MAX_DOCUMENT_BYTES:
        end = _cut(file.path, begin)
        yield Piece(file, begin, end)
        begin = end
    yield Piece(file, begin, file.num_bytes)


def _cut(path: str, begin: int) -> int:
    """Where to cut a long text: after the last line end within MAX_DOCUMENT_BYTES, else between two characters."""
    look_bytes = min(MAX_DOCUMENT_BYTES // 2, 1 << 18)
    with open(path, "rb") as file:
        file.seek(begin + MAX_DOCUMENT_BYTES - look_bytes)
        tail = file.read(look_bytes)
    line_end = tail.rfind(b"\n")
    if line_end >= 0:
        return begin + MAX_DOCUMENT_BYTES - look_bytes + line_end + 1
    for back in range(1, 5):
        if len(tail) >= back and tail[-back] & 0xC0 != 0x80:  # The first byte of a character.
            return begin + MAX_DOCUMENT_BYTES - back
    return begin + MAX_DOCUMENT_BYTES


def read_documents(task: list[Piece], text_field: str, counts: Counts) -> Iterator[str]:
    """The documents of a task that are not empty. Counts what it gives and what it skips."""
    for piece in task:
        is_text = piece.file.format == "text"
        for text in _read_text(piece, counts) if is_text else _read_texts_of_records(piece, text_field, counts):
            if not text.strip():
                counts.empty += 1
                continue
            counts.documents += 1
            yield text


def read_records(piece: Piece, fields: tuple[str, ...]) -> Iterator[Record]:
    """The records of a piece; of a table perhaps only these fields."""
    path = piece.file.path
    match piece.file.format:
        case "jsonl":
            yield from records.read_jsonl(path, piece.begin, piece.end, piece.file.place)
        case "json":
            yield from records.read_json(path, fields)
        case "csv":
            yield from records.read_table(path, ",")
        case "tsv":
            yield from records.read_table(path, "\t")
        case "parquet":
            yield from records.read_parquet(path, piece.row_group, fields)


def whole_characters(text: str, counts: Counts) -> str:
    """The text, with U+FFFD for half of a surrogate pair, as "\\ud800", which is counted."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        counts.surrogates += 1
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def whole_value(value: Any, counts: Counts) -> Any:
    """A JSON value with `whole_characters` in all of its texts."""
    if isinstance(value, str):
        return whole_characters(value, counts)
    if isinstance(value, list):
        return [whole_value(item, counts) for item in value]
    if isinstance(value, dict):
        return {name: whole_value(item, counts) for name, item in value.items()}
    return value


def _read_text(piece: Piece, counts: Counts) -> Iterator[str]:
    try:
        with open(piece.file.path, "rb") as file:
            file.seek(piece.begin)
            data = file.read(piece.num_bytes)
    except OSError as error:
        raise InputError(f"{piece.file.path}: {error.strerror}") from error
    try:
        if b"\0" in data:
            raise ValueError("binary")
        text = data.decode("utf-8")
    except ValueError:
        counts.undecodable[piece.file.path] = None
        return
    yield text.removeprefix("\ufeff") if piece.begin == 0 else text


def _read_texts_of_records(piece: Piece, text_field: str, counts: Counts) -> Iterator[str]:
    for record in read_records(piece, (text_field,)):
        remedy = records.which_text(record.value)
        if piece.file.format != "jsonl":
            remedy += f", {records.otherwise(piece.file.path)}"
        if text_field not in record.value:
            known = ", ".join(f'"{name}"' for name in list(record.value)[:10]) or "none"
            raise record.fail(f'no field "{text_field}"; its fields: {known}; {remedy}')
        if not isinstance(record.value[text_field], str):
            is_null = record.value[text_field] is None
            what = "is not a text but null; leave the record out" if is_null else f"is not a text; {remedy}"
            raise record.fail(f'field "{text_field}" {what}')
        yield whole_characters(record.value[text_field], counts)
