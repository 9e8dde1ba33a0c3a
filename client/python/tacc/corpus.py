"""Finds input files and reads them as documents.

A text file is one document; a line of a JSON-lines file is one. Files are handled in byte ranges of bounded size
(pieces), so that one huge file is read by several processes, and memory does not grow with it.
"""

import fnmatch
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tacc.errors import InputError

JSONL_SUFFIXES = (".jsonl", ".ndjson")
SKIPPED_FOLDERS = ("__pycache__", "node_modules", "site-packages", "dist-packages")
MAX_DOCUMENT_BYTES = 4 << 20  # A longer text file is cut at line ends into several documents.
JSONL_PIECE_BYTES = 4 << 20
TASK_BYTES = 1 << 20  # Small files are handled in groups of about this size.


@dataclass(frozen=True)
class TextFile:
    path: str
    num_bytes: int

    @property
    def is_jsonl(self) -> bool:
        return self.path.lower().endswith(JSONL_SUFFIXES)


@dataclass(frozen=True)
class Piece:
    """The documents that begin in bytes [begin, end) of a JSON-lines file, or the document of these bytes."""

    file: TextFile
    begin: int
    end: int

    @property
    def num_bytes(self) -> int:
        return self.end - self.begin


@dataclass
class Counts:
    """What happened while reading. `undecodable` has the paths of files that are not text, whole or in part."""

    documents: int = 0
    empty: int = 0
    surrogates: int = 0
    undecodable: dict[str, None] = field(default_factory=dict)

    def add(self, other: "Counts") -> None:
        self.documents += other.documents
        self.empty += other.empty
        self.surrogates += other.surrogates
        self.undecodable |= other.undecodable


def find_files(inputs: list[str], include: list[str], exclude: list[str]) -> list[TextFile]:
    """All input files in a fixed order, each once. Patterns match the name or the path below the given folder."""
    files: dict[str, TextFile] = {}

    def add(path: str) -> None:
        try:
            files.setdefault(os.path.realpath(path), TextFile(path, os.stat(path).st_size))
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error

    problems = []
    for given in inputs:
        if os.path.isfile(given):
            add(given)
        elif os.path.isdir(given):
            for path in _walk(given):
                relative = os.path.relpath(path, given)
                if include and not _matches(relative, include):
                    continue
                if not _matches(relative, exclude):
                    add(path)
        else:
            problems.append(f"--input {given}: no such file or folder")
    if problems:
        raise InputError("\n".join(problems))
    return list(files.values())


def _walk(folder: str) -> Iterator[str]:
    for here, folders, names in os.walk(folder):
        if "index.json" in names and "00000.tacc" in names:  # Data prepared before.
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(here, name)
            if not name.startswith(".") and os.path.isfile(path) and not os.path.islink(path):
                yield path


def _matches(relative: str, patterns: list[str]) -> bool:
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
    if file.is_jsonl:
        for begin in range(0, file.num_bytes, JSONL_PIECE_BYTES):
            yield Piece(file, begin, min(begin + JSONL_PIECE_BYTES, file.num_bytes))
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
        for text in _read_jsonl(piece, text_field, counts) if piece.file.is_jsonl else _read_text(piece, counts):
            if not text.strip():
                counts.empty += 1
                continue
            counts.documents += 1
            yield text


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


def _read_jsonl(piece: Piece, text_field: str, counts: Counts) -> Iterator[str]:
    path = piece.file.path
    with open(path, "rb") as file:
        offset = piece.begin
        if offset > 0:
            # The line that holds the byte before belongs to the piece before.
            file.seek(offset - 1)
            offset += len(file.readline()) - 1
        while offset < piece.end:
            line = file.readline()
            if not line:
                return
            if line.strip(b" \t\r\n\xef\xbb\xbf"):
                text = _text_of_record(line, text_field, path, offset)
                try:
                    text.encode("utf-8")
                except UnicodeEncodeError:  # Half of a surrogate pair, as "\ud800".
                    counts.surrogates += 1
                    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
                yield text
            offset += len(line)


def _text_of_record(line: bytes, text_field: str, path: str, offset: int) -> str:
    def fail(what: str) -> InputError:
        with open(path, "rb") as file:
            number = 1 + sum(file.read(min(1 << 20, offset - at)).count(b"\n") for at in range(0, offset, 1 << 20))
        return InputError(f"{path}:{number}: {what}")

    try:
        record = json.loads(line.decode("utf-8-sig" if offset == 0 else "utf-8"))
    except (ValueError, RecursionError) as error:
        raise fail(f"not a JSON record: {error}; a .jsonl file has one JSON object a line") from None
    if not isinstance(record, dict):
        raise fail(f"a JSON {type(record).__name__}; a .jsonl file has one JSON object a line")
    if text_field not in record:
        known = ", ".join(f'"{name}"' for name in list(record)[:10]) or "none"
        raise fail(f'no field "{text_field}"; its fields: {known}; say which is the text with --text-field')
    if not isinstance(record[text_field], str):
        raise fail(f'field "{text_field}" is not a text; say which is the text with --text-field')
    return record[text_field]
