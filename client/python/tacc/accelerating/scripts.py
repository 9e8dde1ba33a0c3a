"""Names that scripts of TorchAcc call beside `accelerate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def lazy_device() -> torch.device:
    """Where such scripts move batches to, and where `accelerate` takes them from: the host's memory."""
    import torch

    return torch.device("cpu")


def sync() -> None:
    """Nothing: a forward and a step have been when they return."""


def mark_step() -> None:
    """Nothing, as `sync`."""
