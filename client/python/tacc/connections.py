"""The connections of a client: as many as its streams need, of which a coordinator lets each connection have a number."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from tacc.errors import InputError, TaccError
from tacc.v1.coordinator_pb2_grpc import CoordinatorServiceStub

Channel = TypeVar("Channel")

# The coordinator lets a connection have 256; beyond them calls would wait for a stream to end.
MAX_STREAMS = 200

_process = 0  # That has made a connection.


class Connections(Generic[Channel]):
    """A connection for calls and the first streams, and more for more streams.

    Where the certificate has been replaced since, the next call has a new connection. Streams that are open stay where they are.

    Args:
        open_channel: Makes a channel with a connection of its own, by the certificate that there is now.
        certificate: Says what changes with it. InputError or OSError: it cannot be read now; then the one before is used on.

    Raises:
        TaccError: In a process that was forked from one with connections: gRPC's threads are not there, and a call may never return.
    """

    def __init__(self, open_channel: Callable[[], Channel], certificate: Callable[[], object] = lambda: None):
        check_process()
        self._open_channel = open_channel
        self._certificate = certificate
        self._shown = certificate()  # By the channels from _first on.
        self._first = 0
        self._lock = threading.Lock()
        self.channels: list[Channel] = []
        self._services: list[Any] = []
        self._streams: list[int] = []
        self._add()

    @property
    def service(self) -> Any:
        """The coordinator's service, for calls."""
        check_process()
        with self._lock:
            return self._services[self._newest()]

    @contextlib.contextmanager
    def stream(self) -> Iterator[Any]:
        """The coordinator's service, for one stream."""
        check_process()
        with self._lock:
            newest = range(self._newest(), len(self._streams))
            free = next((i for i in newest if self._streams[i] < MAX_STREAMS), None)
            at = self._add() if free is None else free
            self._streams[at] += 1
        try:
            yield self._services[at]
        finally:
            with self._lock:
                self._streams[at] -= 1

    def _newest(self) -> int:
        """The first channel with the certificate that there is now."""
        with contextlib.suppress(InputError, OSError):
            now = self._certificate()
            if now != self._shown:
                self._first = self._add()
                self._shown = now
        return self._first

    def _add(self) -> int:
        channel = self._open_channel()
        self.channels.append(channel)
        self._services.append(CoordinatorServiceStub(channel))  # type: ignore[no-untyped-call]
        self._streams.append(0)
        return len(self.channels) - 1


def check_process() -> None:
    """TaccError: this process was forked from one with connections."""
    global _process
    _process = _process or os.getpid()
    if _process != os.getpid():
        raise TaccError(
            f"process {os.getpid()} was forked from one that has a tacc client (process {_process}), whose connections do not work here; "
            'start processes by multiprocessing.get_context("spawn"), or make the first client after the fork'
        )
