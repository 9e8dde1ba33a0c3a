"""Exported models where workers read them, each once: in a folder of this machine, named by what is in it, or with the coordinator."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import ipaddress
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from tacc import calls, uploads
from tacc.client import Client
from tacc.errors import TaccError
from tacc.exporting.export import GRAPH, WEIGHTS, ExportedGraph
from tacc.exporting.weights import safetensors_pieces, safetensors_size, write_safetensors

_DIGITS = 32
_PRIVATE, _SHARED = 0o700, 0o755  # Modes of folders that workers read: of this user, of others too.
_SHARE = 4  # Of a file system models may take one part in so many.
_KEEP_SECONDS = 3600.0  # What was used since is not removed.
_LEFT_SECONDS = 86400.0  # What a process began so long ago, it has left: it was killed.
_MAX_JOBS = 1000  # That are asked for what they use: all that a coordinator remembers.


def default_folder() -> Path:
    """Where models are kept: `tacc/models` in XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacc" / "models"


def default_store(client: Client) -> tuple[Path, bool]:
    """The default folder, made where it is missing, and whether what is kept there for the client's workers is private: at a Unix socket they are of
    this user. Workers of others may enter it."""
    store, private = default_folder(), client.address.startswith("unix:")
    _make(store, private)
    if not private:
        for folder in (store.parent, store):
            _let_in(folder, 0o711)
    return store, private


def _make(path: Path, private: bool) -> None:
    """Makes a folder and those above it, where they are missing: of this user alone, or as the umask says."""
    for folder in [*reversed(path.parents), path]:
        if not folder.is_dir():
            folder.mkdir(0o700 if private else 0o777, exist_ok=True)


def _let_in(folder: Path, mode: int) -> None:
    """Gives a folder at least that mode, if it is this user's."""
    found = folder.stat()
    if found.st_uid == os.geteuid() and found.st_mode & mode != mode:
        folder.chmod(stat.S_IMODE(found.st_mode) | mode)


class Kept:
    """A model's folder in use: it is not removed to make room while this lives, by no process.

    Args:
        path: Of the folder.
        fd: Of it, with a shared lock.
    """

    def __init__(self, path: Path, fd: int):
        self.path = path
        self._fd = fd

    def close(self) -> None:
        """It is not used any more."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def keep(graph: ExportedGraph, store: Path, *, private: bool = False, most_bytes: int | None = None, in_use: Callable[[], set[Path]] = set) -> Kept:
    """The folder of the store with this graph and these weights, written if it is not there.

    Args:
        graph: The model.
        store: Where it is kept.
        private: Whether nobody else may read it. Otherwise workers of other users may.
        most_bytes: That all models of the store are to take: for another one those go that were used longest ago, but none that is in use, nor was in
            the last hour. None: nothing is removed.
        in_use: Folders that jobs use.
    """
    _make(store, private)
    folder = store / _digest(graph)
    kept = _hold(folder)
    if kept is None and most_bytes is not None:
        _make_room(store, safetensors_size(graph.tensors) + len(graph.text), most_bytes, in_use)
    while kept is None:
        _write(graph, folder, private)
        kept = _hold(folder)
    if not private:
        _let_in(folder, _SHARED)  # It may have been kept for this user alone before.
    return kept


def share_of_disk(store: Path) -> int:
    """Bytes that the models of a store, which is there, may take of its file system."""
    return shutil.disk_usage(store).total // _SHARE


def folders_in_use(client: Client) -> set[Path]:
    """Those of the graphs of the coordinator's jobs that have not ended."""
    specs = [status.spec or {} for status in client._run(calls.list_jobs(_MAX_JOBS)) if status.phase not in calls.ENDED]
    return {Path(graph).parent for spec in specs if (graph := spec.get("model", {}).get("graph"))}


def _write(graph: ExportedGraph, folder: Path, private: bool) -> None:
    made = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        graph.write(made)
        made.chmod(_PRIVATE if private else _SHARED)
        os.rename(made, folder)
    except OSError as error:
        if folder.is_dir():  # Another process was quicker.
            return
        wanted = safetensors_size(graph.tensors) + len(graph.text)
        raise TaccError(
            f"the model, of {wanted} bytes, could not be written for the workers in {folder.parent}: {error.strerror}; make room there, or let XDG_CACHE_HOME, "
            "or cache_dir= of tacc.accelerate, be a folder with more. There is no job yet"
        ) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _hold(folder: Path) -> Kept | None:
    """None: it is not there, or is being removed."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    kept = Kept(folder, fd)
    try:
        with contextlib.suppress(PermissionError):  # Another user's: it is not this one's to remove.
            os.utime(folder)
        _lock(fd, fcntl.LOCK_SH)
        return kept if os.path.samestat(os.fstat(fd), os.stat(folder)) else None
    except (BlockingIOError, FileNotFoundError):
        return None


def _lock(fd: int, how: int) -> None:
    """BlockingIOError: another one has it. A file system that knows no locks has none."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass


def _make_room(store: Path, needed: int, most: int, in_use: Callable[[], set[Path]]) -> None:
    """Removes models until there is room for so many bytes, or none is left that may go."""
    now = time.time()
    models: list[tuple[float, int, Path]] = []
    for path in store.iterdir():
        with contextlib.suppress(FileNotFoundError):  # Another process removes, too.
            used = path.stat().st_mtime
            if path.name.startswith((".new-", ".states-", ".old-")) and now - used > _LEFT_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
            elif re.fullmatch(f"[0-9a-f]{{{_DIGITS}}}", path.name):
                models.append((used, sum(file.stat().st_size for file in path.iterdir()), path))
    room = min(most - sum(size for _, size, _ in models), shutil.disk_usage(store).free)
    if room >= needed:
        return
    of_jobs = in_use()
    for used, size, path in sorted(models):
        if room >= needed:
            return
        if now - used > _KEEP_SECONDS and path not in of_jobs and _remove(path):
            room += size


def _remove(folder: Path) -> bool:
    """False: somebody uses it."""
    fd = -1
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        _lock(fd, fcntl.LOCK_EX)
        doomed = tempfile.mkdtemp(prefix=".old-", dir=folder.parent)
        os.rename(folder, doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        return True
    except OSError:
        return False
    finally:
        if fd >= 0:
            os.close(fd)


def write_states(store: Path, states: Mapping[str, torch.Tensor], *, private: bool = False) -> Path:
    """A new folder with these tensors, for `Session.load`. The caller removes it. `private`: as of `keep`."""
    _make(store, private)
    folder = Path(tempfile.mkdtemp(prefix=".states-", dir=store))
    folder.chmod(_PRIVATE if private else _SHARED)
    try:
        write_safetensors(folder / WEIGHTS, states)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise TaccError(
            f"{safetensors_size(states)} bytes of weights or states for the workers could not be written in {store}: {error.strerror}; make room there and load "
            "them again. The training goes on with those that it has"
        ) from error
    return folder


def upload_model(client: Client, graph: ExportedGraph) -> str:
    """Sends graph and weights to the coordinator, but for what it has; returns what a job names them by."""
    text = graph.text.encode()
    return uploads.send(client, [uploads.Source(GRAPH, len(text), lambda: [text]), _weights(graph.tensors)])


def upload_states(client: Client, states: Mapping[str, torch.Tensor]) -> str:
    """The same of tensors, for `Session.load`."""
    return uploads.send(client, [_weights(states)])


def _weights(tensors: Mapping[str, torch.Tensor]) -> uploads.Source:
    return uploads.Source(WEIGHTS, safetensors_size(tensors), lambda: safetensors_pieces(tensors))


def sees_this_machine(client: Client) -> bool:
    """Whether the coordinator and all workers that it has now are of this machine, and so read its folders."""
    return calls.is_of_this_machine(client.version()) and all(_is_loopback(worker.advertise) for worker in client.workers())


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _digest(graph: ExportedGraph) -> str:
    hashed = hashlib.sha256(f"{graph.config}\n{graph.text}".encode())
    for name, tensor in graph.tensors.items():
        hashed.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        data = tensor.detach().cpu().contiguous()
        hashed.update(memoryview(data.flatten().view(torch.uint8).numpy()))
    return hashed.hexdigest()[:_DIGITS]


def inputs_of_outputs(text: str) -> set[str]:
    """Inputs of a graph text on which an output depends that the model returns."""
    needs: dict[str, set[str]] = {}
    found: set[str] = set()
    for line in text.splitlines():
        left, _, right = line.partition(" = ")
        if line.startswith("output "):
            if not re.match(r'output "(loss|target_tokens|buffer:[^"]*)" ', line):
                found |= set().union(*(needs.get(v, set()) for v in re.findall(r"%[\w.]+", line)))
            continue
        if not right:
            continue
        if given := re.match(r'input "([^"]*)"', right):
            needs[left] = {given[1]}
            continue
        operands = set().union(*(needs.get(v, set()) for v in re.findall(r"%[\w.]+", right)), set())
        for value in re.findall(r"%[\w.]+", left):
            needs[value] = operands
    return found
