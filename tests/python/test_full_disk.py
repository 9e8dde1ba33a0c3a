"""What is written for the workers on a disk that gets full: said with what to do, nothing left over, and trained weights are not lost."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tacc
import torch
from tacc.accelerating import store
from tacc.accelerating.fit_module import Feed
from tacc.exporting import export
from tacc.exporting.export import export_graph
from tacc.fitting import _write
from torch import nn


@pytest.fixture
def full(monkeypatch) -> None:
    """Half of the weights still fit."""

    def written(path: Path, tensors: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(store, "write_safetensors", written)
    monkeypatch.setattr(export, "write_safetensors", written)


def test_a_model_that_has_no_room(full, tmp_path):
    graph = export_graph(nn.Linear(2, 2), torch.randn(2, 2), loss=lambda out, batch: out.square().mean())
    with pytest.raises(tacc.TaccError, match=r"the model, of \d+ bytes, could not be .*: No space left on device; make room there.*There is no job yet"):
        store.keep(graph, tmp_path / "models")
    assert not list((tmp_path / "models").iterdir())


def test_states_that_have_no_room(full, tmp_path):
    with pytest.raises(tacc.TaccError, match=r"could not be written in .*: No space left on device; make room there and load them again"):
        store.write_states(tmp_path / "models", {"weights/w": torch.ones(3)})
    assert not list((tmp_path / "models").iterdir())


def test_what_fit_writes_is_there_or_not(tmp_path, monkeypatch):
    def written(path: Path, text: str) -> None:
        with path.open("w") as file:
            file.write(text[:1])
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", written)
    with pytest.raises(OSError, match="No space left on device"):
        _write(tmp_path / "config.json", "{}")
    assert not list(tmp_path.iterdir())


class FailedAtTheEnd:
    """A training whose last checkpoint finds no room."""

    def wait(self) -> Any:
        reason = "the last checkpoint, of step 4, could not be written: No space left on device"
        raise tacc.JobFailedError(SimpleNamespace(id="fit-1", reason=reason, last_log_lines=[]))


def test_a_module_has_its_trained_weights_although_the_last_checkpoint_failed(monkeypatch):
    module = nn.Linear(2, 2)
    trained = {name: torch.full_like(tensor, 3.0) for name, tensor in module.state_dict().items()}
    feed = Feed(module, None, [], lambda batch: batch)
    monkeypatch.setattr(feed, "_run", lambda job: setattr(feed, "_weights", trained))
    job = FailedAtTheEnd()

    def wait() -> Any:
        while feed._weights is None:
            pass
        job.wait()

    with pytest.raises(tacc.JobFailedError, match="No space left on device"):
        feed.follow(job, wait)
    assert torch.equal(module.weight, trained["weight"])
