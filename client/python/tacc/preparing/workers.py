"""Processes of their own for work that takes long, and that Ctrl-C ends at once.

Not those of `multiprocessing`, which run the caller's script again: that needs a script with a guard, and a notebook has
none. These import what they are asked to run, and nothing else. They end with the process that started them.
"""

import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from typing import Any

from tacc.errors import InputError

# What a worker starts as, with the number of its end of the connection.
_START = (
    "import sys; from multiprocessing.connection import Connection; connection = Connection({}); "
    "sys.path[:] = connection.recv(); from tacc.preparing.workers import serve; serve(connection)"
)


class WorkerEndedError(Exception):
    """A worker has ended in the midst of its work, with this exit code (-9: killed)."""

    def __init__(self, exit_code: int):
        super().__init__(f"a worker ended with {exit_code}")
        self.exit_code = exit_code


class Worker:
    """One process, used by one thread at a time; `kill` may come from any."""

    def __init__(self) -> None:
        self._knows_path = False
        self._connection, theirs = Pipe()
        # Ctrl-C in a terminal goes to all processes of it. The child inherits that it is held back, and the parent ends it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            command = [sys.executable, "-c", _START.format(theirs.fileno())]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()

    def run(self, work: Callable[..., None], *args: Any) -> Iterator[Any]:
        """Gives what `work(send, *args)` sends from there, and raises what it raises. `work` is a module's function.
        WorkerEndedError when the process ends before its work does."""
        try:
            if not self._knows_path:
                self._connection.send(sys.path)
                self._knows_path = True
            self._connection.send((work, args))
            while (message := self._connection.recv()) is not None:
                if isinstance(message, _Raised):
                    raise message.error
                yield message
        except (EOFError, ConnectionError):
            raise WorkerEndedError(self._process.wait()) from None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class WorkerPool:
    """Up to `size` workers, which are started when there is work for them. To be closed."""

    def __init__(self, size: int) -> None:
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="tacc-worker")  # One waits for each worker.
        self._lock = threading.Lock()
        self._workers: list[Worker] = []
        self._idle: list[Worker] = []
        self._is_closed = False

    def submit(self, work: Callable[..., None], *args: Any) -> "Future[Any]":
        """The one message that `work(send, *args)` sends, once a worker is free for it; see `Worker.run`."""
        return self._threads.submit(self._run, work, args)

    def _run(self, work: Callable[..., None], args: tuple[Any, ...]) -> Any:
        with self._lock:
            if self._is_closed:
                raise WorkerEndedError(-signal.SIGKILL)
            if not self._idle:
                self._idle.append(Worker())
                self._workers.append(self._idle[-1])
            worker = self._idle.pop()
        (result,) = worker.run(work, *args)
        with self._lock:
            self._idle.append(worker)
        return result

    def close(self) -> None:
        """Kills the workers, whatever they do."""
        with self._lock:
            self._is_closed = True
            for worker in self._workers:
                worker.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)


class _Raised:
    def __init__(self, error: Exception):
        self.error = error


def serve(connection: Connection) -> None:
    """In a worker: does what comes, one after the other, until the parent is gone."""
    threading.Thread(target=_end_with_parent, args=(connection.fileno(),), daemon=True).start()
    try:
        _serve(connection)
    except (EOFError, OSError):  # The parent is gone; what `work` raises is sent to it.
        os._exit(1)


def _serve(connection: Connection) -> None:
    while True:
        work, args = connection.recv()
        try:
            work(connection.send, *args)
            connection.send(None)
        except Exception as error:
            if not isinstance(error, InputError):
                error.add_note(traceback.format_exc())
            connection.send(_Raised(_sendable(error)))


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _end_with_parent(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    poll.poll()
    os._exit(1)
