"""What tacc.Client.upload does when the connection breaks, and what it sends, against a coordinator that is played."""

import hashlib
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
import tacc
import tacc.uploads
from tacc.v1 import coordinator_pb2 as pb
from tacc.v1 import coordinator_pb2_grpc as services

MIB = 1 << 20


class Coordinator(services.CoordinatorServiceServicer):
    """Keeps what comes. The connection breaks when a file has `breaks[0]` bytes more, and so on."""

    def __init__(self, breaks: list[int]):
        self.breaks = breaks
        self.files: dict[str, bytes] = {}
        self.offsets: list[int] = []
        self.received = 0
        self.full = False

    def GetVersion(self, request: Any, context: Any) -> pb.GetVersionResponse:
        return pb.GetVersionResponse(version=tacc.__version__)

    def PutFolder(self, request: pb.PutFolderRequest, context: Any) -> pb.PutFolderResponse:
        if self.full:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room")
        there = [len(self.files.get(file.sha256, b"")) for file in request.files]
        return pb.PutFolderResponse(id="5f", received_bytes=there, whole=there == [file.size_bytes for file in request.files])

    def PutFile(self, requests: Iterator[pb.PutFileRequest], context: Any) -> pb.PutFileResponse:
        first = next(requests)
        content = self.files.get(first.sha256, b"")[: first.offset]
        self.offsets.append(first.offset)
        for request in requests:
            content += request.data
            self.received += len(request.data)
            self.files[first.sha256] = content
            if len(content) > first.size_bytes:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "more bytes than it has")
            if self.breaks and len(content) - first.offset >= self.breaks[0]:
                self.breaks.pop(0)
                context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        if hashlib.sha256(content).hexdigest() != first.sha256:
            del self.files[first.sha256]
            context.abort(grpc.StatusCode.DATA_LOSS, "another hash")
        return pb.PutFileResponse()


@pytest.fixture
def played(request):
    coordinator = Coordinator(list(getattr(request, "param", [])))
    server = grpc.server(futures.ThreadPoolExecutor(4))
    services.add_CoordinatorServiceServicer_to_server(coordinator, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with tacc.Client(f"127.0.0.1:{port}", start=False) as client:
        yield coordinator, client
    server.stop(0)


def made(folder: Path) -> bytes:
    content = b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(100_000))  # 3.2 MB
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(content)
    (folder / "model.graph").write_bytes(b"graph")
    (folder / ".hidden").write_bytes(b"not sent")
    (folder / "runs").mkdir()
    return content


@pytest.mark.parametrize("played", [[MIB, MIB]], indirect=True)
def test_an_upload_that_breaks_goes_on_where_it_was_and_nothing_is_sent_twice(played, tmp_path):
    coordinator, client = played
    content = made(tmp_path / "model")
    assert client.upload(tmp_path / "model") == "upload:5f"
    assert sorted(coordinator.files.values()) == sorted([content, b"graph"])
    assert coordinator.received == len(content) + 5
    assert coordinator.offsets == [0, 0, MIB, 2 * MIB]  # The graph, and the weights three times.
    client.upload(tmp_path / "model")
    assert coordinator.received == len(content) + 5


def test_no_room_is_an_error_before_anything_is_sent(played, tmp_path):
    coordinator, client = played
    made(tmp_path / "model")
    coordinator.full = True
    with pytest.raises(tacc.LimitError, match="no room"):
        client.upload(tmp_path / "model")
    assert coordinator.received == 0


def test_a_file_that_changes_meanwhile_is_named(played, tmp_path, monkeypatch):
    made(tmp_path / "model")
    monkeypatch.setattr("tacc.uploads._sha256", lambda source, progress: "0" * 64 if source.name == "model.graph" else hashlib.sha256(b"").hexdigest())
    with pytest.raises(tacc.TaccError, match=r"model\.graph was not uploaded whole: another hash; did it change meanwhile\?"):
        played[1].upload(tmp_path / "model")


def test_what_has_grown_since_it_was_hashed_is_named(played, tmp_path, monkeypatch):
    made(tmp_path / "model")
    sources = tacc.uploads.of_folder(tmp_path / "model")
    with (tmp_path / "model" / "model.graph").open("ab") as file:
        file.write(b" and more")
    with pytest.raises(tacc.TaccError, match=r"model\.graph was not uploaded whole: more bytes than it has; did it change meanwhile\?"):
        tacc.uploads.send(played[1], sources)


def test_a_damaged_beginning_is_sent_again(played, tmp_path):
    """As after a power cut with the coordinator."""
    coordinator, client = played
    content = made(tmp_path / "model")
    coordinator.files[hashlib.sha256(content).hexdigest()] = b"\0" * MIB
    assert client.upload(tmp_path / "model") == "upload:5f"
    assert sorted(coordinator.files.values()) == sorted([content, b"graph"])
    assert coordinator.offsets == [0, MIB, 0]
