"""A batch of an accelerated model that lies where the ranks read it before the loop gives it to the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tacc.accelerating.batches import Batches, leaves_of
from tacc.errors import TaccError
from tacc.live.session import Session, StagedBatch


@dataclass(frozen=True)
class Arrays:
    """A batch for the ranks.

    Attributes:
        by_input: The arrays, as `Batches.arrays` makes them.
        count: Samples that the batch has.
        has_loss: Whether the loss of the arrays is the batch's.
        length: Tokens of its samples; 0: all batches have as many.
        staged: They, in the memory that the ranks read.
    """

    by_input: dict[str, np.ndarray[Any, Any]]
    count: int
    has_loss: bool
    length: int
    staged: StagedBatch | None = None

    @property
    def for_ranks(self) -> Mapping[str, np.ndarray[Any, Any]] | StagedBatch:
        """What a command of the session takes; for the first one it is there already, if it is staged."""
        return self.by_input if self.staged is None or self.staged.is_used else self.staged


def arrays_of(batches: Batches, batch: Any, *, trains: bool) -> Arrays:
    """The arrays of a batch. InputError: it is not as the one that the model was exported with.

    Args:
        batches: Of the model.
        batch: As `as_batch` made it.
        trains: Whether it is trained on.
    """
    return Arrays(*batches.arrays(batch, trains=trains), batches.length_of(batch))


class Ahead:
    """A batch that is staged. It counts for the same tensors alone, if nobody has changed one since, as autograd would know it.

    Args:
        session: In whose memory it lies.
        batch: As `as_batch` made it.
        versions: Of its tensors, from before they were read.
        arrays: Made of it.
        trains: Whether it may be trained on.
    """

    def __init__(self, session: Session, batch: Any, versions: list[int], arrays: Arrays, *, trains: bool):
        self._session, self._leaves, self._versions, self._trains = session, leaves_of(batch), versions, trains
        self._arrays = arrays

    @property
    def is_used(self) -> bool:
        """Whether a command has had it, or it was discarded."""
        return self._arrays.staged is None or self._arrays.staged.is_used

    def of(self, batch: Any, *, trains: bool) -> Arrays | None:
        """What lies ready of this batch. None: it is another one, or was changed.

        Args:
            batch: As `as_batch` made it.
            trains: Whether it is to be trained on.
        """
        if self.is_used or (trains and not self._trains):
            return None
        leaves = leaves_of(batch)
        if leaves.keys() != self._leaves.keys() or any(leaves[path] is not leaf for path, leaf in self._leaves.items()):
            return None
        if versions_of(batch) != self._versions or any(leaf.requires_grad for leaf in leaves.values() if isinstance(leaf, torch.Tensor)):
            return None
        return self._arrays

    def discard(self) -> None:
        """Gives its memory back, if no command has had it."""
        if self._arrays.staged is not None:
            self._session.discard(self._arrays.staged)


def versions_of(batch: Any) -> list[int] | None:
    """How often each tensor of the batch was changed in place. None: of one it is not known."""
    tensors = [leaf for leaf in leaves_of(batch).values() if isinstance(leaf, torch.Tensor)]
    return None if any(tensor.is_inference() for tensor in tensors) else [tensor._version for tensor in tensors]


def staged_ahead(session: Session, batches: Batches, batch: Any, *, trains: bool) -> Ahead | None:
    """Stages a batch. None: it cannot be, as of one that the model will refuse.

    Args:
        session: Of the job.
        batches: Of the model.
        batch: As `as_batch` made it.
        trains: Whether it is to be trained on.
    """
    if not batches.can_stage_ahead or (versions := versions_of(batch)) is None:
        return None
    try:
        arrays = arrays_of(batches, batch, trains=trains)
        staged = session.stage(arrays.by_input)
    except TaccError:  # The forward says it, if the loop comes so far.
        return None
    return Ahead(session, batch, versions, dataclasses.replace(arrays, staged=staged), trains=trains)
