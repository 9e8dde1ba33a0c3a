"""Exported models where workers read them, each once: in a folder of this machine, named by what is in it, or with the coordinator."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from tacc import uploads
from tacc.calls import is_of_this_machine
from tacc.client import Client
from tacc.exporting.export import GRAPH, WEIGHTS, ExportedGraph
from tacc.exporting.weights import safetensors_pieces, safetensors_size, write_safetensors

_DIGITS = 32


def default_folder() -> Path:
    """Where models are kept: `tacc/models` in XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacc" / "models"


def keep(graph: ExportedGraph, store: Path) -> Path:
    """The folder of the store with this graph and these weights, written if it is not there."""
    folder = store / _digest(graph)
    if folder.is_dir():
        return folder
    store.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".new-", dir=store))
    try:
        graph.write(made)
        made.chmod(0o755)  # workers of other users read it
        os.rename(made, folder)
    except OSError:
        if not folder.is_dir():  # Another process was quicker.
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def write_states(store: Path, states: Mapping[str, torch.Tensor]) -> Path:
    """A new folder with these tensors, for `Session.load`. The caller removes it."""
    store.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".states-", dir=store))
    folder.chmod(0o755)
    write_safetensors(folder / WEIGHTS, states)
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
    return is_of_this_machine(client.version()) and all(_is_loopback(worker.advertise) for worker in client.workers())


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
