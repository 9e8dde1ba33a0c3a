"""Models that are kept for the workers: each once, within a bound, none that is in use removed."""

import os
import time
from pathlib import Path

import torch
from tacc.accelerating import store

NUMBERS = 2500
MOST = 35_000  # Three of 10 kB, and their graphs.


class Graph:
    config = None

    def __init__(self, value):
        self.text = f"graph {value}"
        self.tensors = {"weight": torch.full((NUMBERS,), float(value))}

    def write(self, folder: Path):
        (folder / "model.graph").write_text(self.text)
        (folder / "model.safetensors").write_bytes(self.tensors["weight"].numpy().tobytes())


def kept(folder, value, in_use=set, *, hours_ago=0.0):
    """Its folder, which nobody uses any more."""
    held = store.keep(Graph(value), folder, most_bytes=MOST, in_use=in_use)
    held.close()
    then = time.time() - 3600 * hours_ago
    os.utime(held.path, (then, then))
    return held.path


class Client:
    def __init__(self, address):
        self.address = address


def mode(path):
    return path.stat().st_mode & 0o777


def test_what_is_kept_for_ones_own_service_nobody_else_reads(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    old = os.umask(0)
    try:
        folder, private = store.default_store(Client("unix:/run/tacc/coordinator.sock"))
        held = store.keep(Graph(1), folder, private=private)
        states = store.write_states(folder, Graph(1).tensors, private=private)
        made = [tmp_path / "cache", tmp_path / "cache/tacc", folder, held.path, states]
        assert [mode(path) for path in made] == [0o700] * 5
        # Workers of a port may be another user's.
        folder, private = store.default_store(Client("127.0.0.1:7070"))
        assert store.keep(Graph(1), folder, private=private).path == held.path
        assert mode(held.path) == 0o755 and mode(folder) == mode(folder.parent) == 0o711
        assert mode(store.write_states(folder, Graph(1).tensors)) == 0o755
    finally:
        os.umask(old)


def test_a_model_is_written_once(tmp_path):
    first = kept(tmp_path, 1)
    (first / "mark").touch()
    assert kept(tmp_path, 1) == first and (first / "mark").exists()
    assert kept(tmp_path, 2) != first
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_was_used_longest_ago_makes_room(tmp_path):
    oldest, newer, newest = (kept(tmp_path, value, hours_ago=5 - value) for value in range(3))
    kept(tmp_path, 0, hours_ago=2.5)  # A use.
    added = kept(tmp_path, 3)
    assert sorted(tmp_path.iterdir()) == sorted([oldest, newest, added])
    assert not newer.exists()


def test_what_is_in_use_stays(tmp_path):
    of_loop, of_job, recent, free = (store.keep(Graph(value), tmp_path) for value in range(4))
    for held in (of_job, recent, free):
        held.close()
    for held in (of_loop, of_job, free):
        os.utime(held.path, (0, 0))
    added = kept(tmp_path, 4, lambda: {of_job.path})
    assert sorted(tmp_path.iterdir()) == sorted([of_loop.path, of_job.path, recent.path, added])
    of_loop.close()
    os.utime(of_loop.path, (0, 0))
    kept(tmp_path, 5, lambda: {of_job.path})
    assert not of_loop.path.exists()


def test_a_folder_that_the_user_names_is_not_cleaned(tmp_path):
    old = [kept(tmp_path, value, hours_ago=100) for value in range(3)]
    for value in range(3, 6):
        store.keep(Graph(value), tmp_path)
    assert all(path.exists() for path in old)


def test_what_a_killed_process_left_goes(tmp_path):
    (tmp_path / ".states-dead").mkdir(parents=True)
    (tmp_path / ".new-alive").mkdir()
    os.utime(tmp_path / ".states-dead", (0, 0))
    kept(tmp_path, 0)
    assert not (tmp_path / ".states-dead").exists() and (tmp_path / ".new-alive").exists()


def test_one_that_is_removed_meanwhile_is_written_again(tmp_path, monkeypatch):
    first = kept(tmp_path, 0)
    opened = os.open
    removed = []

    def open_and_remove(path, *args, **kwargs):
        fd = opened(path, *args, **kwargs)
        if path == first and not removed:
            removed.append(path)
            assert store._remove(first)
        return fd

    monkeypatch.setattr(os, "open", open_and_remove)
    with_lock = store.keep(Graph(0), tmp_path, most_bytes=MOST)
    assert with_lock.path == first and (first / "model.safetensors").stat().st_size == 4 * NUMBERS
    assert not store._remove(first)
