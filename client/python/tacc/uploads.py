"""Folders that are sent to the coordinator by what is in them: what it has is not sent again."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from tacc import calls
from tacc.errors import CoordinatorError, InputError, TaccError
from tacc.progress import Progress, ProgressReport
from tacc.v1 import coordinator_pb2 as pb
from tacc.v1 import worker_pb2

if TYPE_CHECKING:
    from tacc.client import Client

_PIECE_BYTES = 1 << 20
_PATIENCE_SECONDS = 60.0  # Without a byte that gets through.

@dataclass
class Source:
    """A file to send.

    Attributes:
        name: In the folder.
        size: In bytes.
        pieces: Its content from the beginning, in pieces of any length; called once for its hash, and for each try to send it.
    """

    name: str
    size: int
    pieces: Callable[[], Iterable[Any]]


def of_folder(folder: str | os.PathLike[str]) -> list[Source]:
    """The files of a folder. InputError: it is none, or holds nothing but folders."""
    path = Path(folder)
    if not path.is_dir():
        raise InputError(f"{path}: no such folder; give one that tacc.export_model has written, or of a model with config.json")
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    if not files:
        raise InputError(f"{path}: there is no file in it")
    return [Source(file.name, file.stat().st_size, lambda file=file: _read(file)) for file in files]  # type: ignore[misc]


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def send(client: Client, sources: Sequence[Source], *, progress: bool = True) -> str:
    """Sends what the coordinator lacks; a connection that breaks is made anew, and goes on where it was.

    Args:
        client: Of the coordinator.
        sources: The folder's files.
        progress: Whether a terminal or a notebook shows how far it is.

    Returns:
        What a job names it by.
    """
    total = sum(source.size for source in sources)
    with Progress("hashing", total, observer=None if progress else _unseen) as shown:
        files = [worker_pb2.UploadFile(name=source.name, sha256=_sha256(source, shown.add), size_bytes=source.size) for source in sources]
    patience = calls.Patience(client.address, _PATIENCE_SECONDS)
    most = -1
    while True:
        try:
            answer = client._run(calls.put_folder(files))
            there = sum(answer.received_bytes)
            if there > most:  # By this client, or by another that sends the same.
                patience.came()
                most = there
            if answer.whole:
                return calls.UPLOAD_PREFIX + str(answer.id)
            with Progress("uploading", total - there, observer=None if progress else _unseen) as shown:
                for file, source, received in zip(files, sources, answer.received_bytes):
                    if received < source.size:
                        _send_file(client, source, file.sha256, received, shown.add)
        except _BehindError:
            continue
        except CoordinatorError as error:
            time.sleep(patience.after(error))


class _BehindError(Exception):
    """Less of the file is there than was said: it was removed, was damaged, or another client has begun it anew."""


def _send_file(client: Client, source: Source, sha256: str, offset: int, progress: Callable[[int], None]) -> None:
    def requests() -> Iterator[pb.PutFileRequest]:
        yield pb.PutFileRequest(sha256=sha256, size_bytes=source.size, offset=offset)
        for piece in _behind(source.pieces(), offset):
            yield pb.PutFileRequest(data=piece)
            progress(len(piece))

    with client._connected().stream() as service:
        try:
            service.PutFile(requests())
        except grpc.RpcError as error:
            # What is damaged may be the part that was there: the coordinator keeps nothing of it.
            if error.code() == grpc.StatusCode.OUT_OF_RANGE or (error.code() == grpc.StatusCode.DATA_LOSS and offset > 0):
                raise _BehindError from None
            if error.code() in (grpc.StatusCode.DATA_LOSS, grpc.StatusCode.INVALID_ARGUMENT):
                raise TaccError(f"{source.name} was not uploaded whole: {error.details()}; did it change meanwhile?") from None
            raise client._explained(error) from None


def _behind(pieces: Iterable[Any], offset: int) -> Iterator[bytes]:
    """What follows the first `offset` bytes, in pieces that a message may have."""
    for piece in pieces:
        view = memoryview(piece)
        skipped = min(offset, len(view))
        offset -= skipped
        for begin in range(skipped, len(view), _PIECE_BYTES):
            yield bytes(view[begin : begin + _PIECE_BYTES])


def _sha256(source: Source, progress: Callable[[int], None]) -> str:
    hashed = hashlib.sha256()
    for piece in source.pieces():
        hashed.update(piece)
        progress(len(piece))
    return hashed.hexdigest()


def _unseen(_: ProgressReport) -> None:
    pass
