"""Frames between a client and the ranks that it drives (docs/contracts.md), and the memory in which its batches lie for them."""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import mmap
import os
import select
import socket
import struct
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from tacc.errors import TaccError

PROTOCOL = 1
_CONNECT_SECONDS = 10.0
_UNACKNOWLEDGED_MILLISECONDS = 60_000  # As a rank has it.
_MAX_HEADER = 16 << 20  # A rank's welcome has a range for each part of an input.
_TCP_INFO_BYTES, _DELIVERY_RATE = 232, 160  # struct tcp_info of <linux/tcp.h>, and tcpi_delivery_rate in it
_UCRED_BYTES = 12  # struct ucred of <sys/socket.h>
_F_ADD_SEALS, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 2, 4  # of <linux/fcntl.h>


class LinkBrokenError(Exception):
    """A connection to a rank could not be made, or broke. What was asked is asked again."""


@dataclass(frozen=True)
class Endpoint:
    """Where a rank listens, as the coordinator says.

    Attributes:
        rank: Its number.
        local: Of its Unix socket: the path, or without a slash in front an abstract name.
        host: For clients of other machines; empty: the Unix socket is all.
        port: There.
        token: That it wants to see.
    """

    rank: int
    local: str
    host: str
    port: int
    token: str


class Memory:
    """Memory that ranks of this machine map.

    Args:
        size: In bytes.
    """

    def __init__(self, size: int):
        self.fd = os.memfd_create("tacc-session", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        # A rank that reads it could not bear that it becomes smaller.
        fcntl.fcntl(self.fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW)
        self.map = mmap.mmap(self.fd, size)

    def close(self) -> None:
        os.close(self.fd)
        with contextlib.suppress(BufferError):  # Arrays still lie in it; it goes with the last of them.
            self.map.close()


class Link:
    """A connection to one rank.

    Args:
        endpoint: Where it listens.
        client: The same text whenever this client connects, another one in each client.
        is_local: Whether it may read batches in memory of this machine, so that its Unix socket is tried first.
    """

    def __init__(self, endpoint: Endpoint, client: str, *, is_local: bool):
        self._endpoint = endpoint
        self._client = client
        self.sent_bytes = 0
        """Of all frames, as they went over the link."""
        self._socket, self.is_local = self._connect(is_local)
        self._input = select.poll()
        self._input.register(self._socket, select.POLLIN)

    def _connect(self, is_local: bool) -> tuple[socket.socket, bool]:
        local = self._endpoint.local
        name = local if local.startswith("/") else f"\0{local}"
        if not self._endpoint.host:
            return self._connect_locally(name), is_local
        if is_local:
            with contextlib.suppress(LinkBrokenError):  # The rank is on another machine.
                return self._connect_locally(name), True
        try:
            remote = socket.create_connection((self._endpoint.host, self._endpoint.port), timeout=_CONNECT_SECONDS)
        except OSError as error:
            raise LinkBrokenError(f"rank {self._endpoint.rank} at {self._endpoint.host}:{self._endpoint.port}: {error}") from error
        remote.settimeout(None)  # A step takes as long as it takes,
        remote.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        remote.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # but a machine that has gone is noticed.
        remote.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        remote.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        remote.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        # While something that was sent is not acknowledged, nobody asks; the kernel would send it again for a quarter of an hour.
        remote.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MILLISECONDS)
        return remote, False

    def _connect_locally(self, name: str) -> socket.socket:
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            local.connect(name)
            _pid, user, _group = struct.unpack("iII", local.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED_BYTES))
        except OSError as error:
            local.close()
            raise self._broken(error) from error
        # It would be given the token, and all batches.
        if user not in (0, os.geteuid()):
            local.close()
            raise LinkBrokenError(f"rank {self._endpoint.rank}: its socket is user {user}'s")
        return local

    def hello(self, memory: Memory | None) -> None:
        """Shows the token, and on this machine gives the memory. The answer is the rank's welcome."""
        header = {"hello": True, "protocol": PROTOCOL, "token": self._endpoint.token, "client": self._client}
        ancillary = []
        if memory is not None and self.is_local:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory.fd]))]
        text = json.dumps(header).encode()
        try:
            self._socket.sendmsg([struct.pack("<I", len(text)) + text], ancillary)
        except OSError as error:
            raise self._broken(error) from error

    @property
    def bytes_per_second(self) -> float | None:
        """What the link has delivered, as the kernel has measured it last. None: not known."""
        if self.is_local:
            return None
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        except OSError:  # It is broken: who sends finds out.
            return None
        rate = struct.unpack_from("=Q", info, _DELIVERY_RATE)[0] if len(info) >= _DELIVERY_RATE + 8 else 0
        return float(rate) or None

    def send(self, header: str, parts: list[Any]) -> None:
        """A frame: the header as JSON, and what follows it, whose size the header says. Errors: as `receive`, of a word that came meanwhile."""
        try:
            if self._input.poll(0):
                self.receive()  # That another client has come, or that the rank has gone.
            text = header.encode()
            self.sent_bytes += 4 + len(text) + sum(memoryview(part).nbytes for part in parts)
            if not parts:
                self._socket.sendall(struct.pack("<I", len(text)) + text)
                return
            views = [memoryview(struct.pack("<I", len(text)) + text), *(memoryview(part).cast("B") for part in parts)]
            while views:
                sent = self._socket.sendmsg(views[:256])
                while views and sent >= len(views[0]):
                    sent -= len(views.pop(0))
                if views:
                    views[0] = views[0][sent:]
        except OSError as error:
            raise self._broken(error) from error

    def receive(self) -> tuple[dict[str, Any], bytearray]:
        """The next frame. TaccError: the rank refuses what was sent. LinkBrokenError: the connection is over."""
        return receive_all([self])[0]

    def _frame(self) -> Generator[None, None, tuple[dict[str, Any], bytearray]]:
        """The next frame; yields where there is no more of it yet. Errors: as `receive`."""
        try:
            (length,) = struct.unpack("<I", (yield from self._read(4)))
            if not 0 < length <= _MAX_HEADER:
                raise LinkBrokenError(f"rank {self._endpoint.rank} sent a header of {length} bytes")
            header: dict[str, Any] = json.loads((yield from self._read(length)))
            payload = yield from self._read(header.get("bytes", 0))
        except OSError as error:
            raise self._broken(error) from error
        if "error" in header and "serial" not in header:
            raise TaccError(f"rank {self._endpoint.rank}: {header['error']}")
        return header, payload

    def _read(self, size: int) -> Generator[None, None, bytearray]:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                count = self._socket.recv_into(view, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                yield
                continue
            if count == 0:
                raise LinkBrokenError(f"rank {self._endpoint.rank} has closed the connection")
            view = view[count:]
        return data

    def _broken(self, error: OSError) -> LinkBrokenError:
        return LinkBrokenError(f"rank {self._endpoint.rank}: {error}")

    def close(self) -> None:
        with contextlib.suppress(OSError):  # Forked processes may have it, too.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def receive_all(links: Sequence[Link], serial: int = 0) -> list[tuple[dict[str, Any], bytearray]]:
    """The next frame of each link, in their order, but for answers to commands before `serial`: a rank that got one twice, by a connection that broke and by the
    next, may answer it twice. They are read as they come: a rank lets go of a client that does not read for long.

    Raises:
        TaccError: As of `Link.receive`.
        LinkBrokenError: As there.
    """
    frames: dict[int, tuple[dict[str, Any], bytearray]] = {}
    readers = {link._socket.fileno(): (i, link._frame()) for i, link in enumerate(links)}
    input_ = select.poll()
    for fd in readers:
        input_.register(fd, select.POLLIN)
    while len(frames) < len(links):
        for fd, _ in input_.poll():
            i, reader = readers[fd]
            try:
                next(reader)
            except StopIteration as end:
                if end.value[0].get("serial", serial) < serial:
                    readers[fd] = (i, links[i]._frame())
                else:
                    frames[i] = end.value
                    input_.unregister(fd)
    return [frames[i] for i in range(len(links))]
