"""The steps of an accelerated model: which micro-batches the ranks have, and with which weights they are in the gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacc.errors import InputError, TaccError
from tacc.live.session import Session, StagedBatch

_PIPELINE = "stages of a pipeline"  # As the ranks refuse a micro-batch.
_ALIKE = 1e-6  # Relative: weights that are meant to be the same.


@dataclass
class MicroBatch:
    """A forward in training, whose gradients the ranks have.

    Attributes:
        loss_sum: Over its targets.
        targets: What the gradients of the ranks are a mean over, with those of the step's other micro-batches.
        divisor: What its own loss is the sum over.
        weight: What the step's loss is differentiated by it; None: backward was not called yet.
    """

    loss_sum: float
    targets: float
    divisor: float
    weight: float | None = None

    @property
    def loss(self) -> float:
        return self.loss_sum / self.divisor if self.divisor else math.nan


class UnlikeWeightsError(InputError):
    """Micro-batches of a step weigh what the ranks cannot add up."""


class Steps:
    """Carries the micro-batches of a loop to the ranks, and the updates. What a loop means is what PyTorch would do with its gradients.

    Args:
        session: Of the job.
    """

    def __init__(self, session: Session):
        self.session = session
        self._micro_batches: list[MicroBatch] = []
        self.is_stale = False
        """Whether gradients of the step before are still there, to PyTorch."""
        self._is_unknown = False  # A command was interrupted: the ranks may have gradients that are not listed.

    @property
    def has_gradients(self) -> bool:
        """Whether backward was called since the last update."""
        return any(m.weight is not None for m in self._micro_batches)

    def forget(self) -> None:
        """What the ranks had is gone: the job has begun again."""
        self._micro_batches = []
        self.is_stale = self._is_unknown = False

    def run(self, arrays: Mapping[str, np.ndarray[Any, Any]] | StagedBatch, divisor: float | None) -> MicroBatch:
        """Forward and backward of a batch. Its gradients count when `confirm` is called.

        Args:
            arrays: By input, or staged.
            divisor: What its loss is the sum over; None: its targets.
        """
        self._drop_unused()
        self._is_unknown = True
        try:
            result = self.session.micro_batch(arrays, micro_batches=self.session.num_micro_batches)
        except TaccError as error:
            if _PIPELINE not in str(error):
                raise
            self._is_unknown = False
            raise InputError(
                "the job's layers are stages of a pipeline (dist.pp), which train whole steps alone: call model.step(batch) in place of the forward in "
                "training, backward() and optimizer.step(), or leave dist.pp out of config"
            ) from error
        made = MicroBatch(result.loss_sum, result.target_tokens, result.target_tokens if divisor is None else divisor)
        self._micro_batches.append(made)
        self._is_unknown = False
        return made

    def confirm(self, micro_batch: MicroBatch, weight: float) -> None:
        """The gradients of the micro-batch, times weight, are in the step."""
        if micro_batch.weight is not None:
            raise InputError("the gradients of this loss are used up: call the model again for another backward")
        if all(m is not micro_batch for m in self._micro_batches):
            raise InputError("another forward, step or zero_grad came before this backward: call backward behind each forward in training")
        if self.is_stale:
            raise InputError("the gradients of the step before are still there: call optimizer.zero_grad() between two steps")
        micro_batch.weight = weight

    def zero(self) -> None:
        """As the optimizer's zero_grad."""
        self.is_stale = False
        if self.has_gradients or self._is_unknown:  # Else there may be a forward whose backward comes yet.
            self._discard()

    def _discard(self) -> None:
        self._micro_batches = []
        self._is_unknown = True
        self.session.discard_gradients()
        self._is_unknown = False

    def settle(self, what: str) -> None:
        """Before `what`, which is between two steps. InputError: there are gradients."""
        if self.has_gradients:
            raise InputError(f"there are gradients of backward already: call optimizer.step() or optimizer.zero_grad() before {what}")
        self._drop_unused()

    def abandon(self) -> None:
        """Forgets all of the step."""
        if self._micro_batches or self._is_unknown:
            self._discard()

    def begin_update(
        self, state: bytes | None, rates: Mapping[str, Mapping[float, float]], max_grad_norm: float, optimizer_step: int | None
    ) -> bool:
        """The update by the gradients of all confirmed micro-batches. False: there are none, and nothing is done. Arguments as of `Session.begin_update`."""
        self._drop_unused()
        if not self._micro_batches:
            return False
        factor = _factor(self._micro_batches)
        self._micro_batches = []
        self._is_unknown = True
        self.session.begin_update(
            state=state, **rates, gradient_factor=factor, max_grad_norm=max_grad_norm, optimizer_step=optimizer_step
        )
        self._is_unknown = False
        self.is_stale = True
        return True

    def _drop_unused(self) -> None:
        """A forward without a backward leaves no gradients."""
        if all(m.weight is not None for m in self._micro_batches) and not self._is_unknown:
            return
        if self.has_gradients:
            raise TaccError(
                "a forward in training had no backward, or was interrupted, and its gradients are among those of this step: call optimizer.zero_grad() "
                "and begin the step again; a forward that is not trained on needs torch.no_grad() or model.eval()"
            )
        self._discard()


def _factor(micro_batches: list[MicroBatch]) -> float:
    """What the ranks' gradient, of the sum of losses over all targets, is multiplied by to be that of the weighted losses."""
    shares = [m.weight / m.divisor if m.weight is not None and m.divisor else 0.0 for m in micro_batches]
    counted = [s for s, m in zip(shares, micro_batches) if m.targets]
    if not counted:
        return 1.0
    if any(not math.isclose(s, counted[0], rel_tol=_ALIKE) for s in counted):
        raise InputError(
            f"the losses of this step's micro-batches are means over {', '.join(f'{m.divisor:g}' for m in micro_batches)} targets, with weights "
            f"{', '.join(f'{m.weight:g}' for m in micro_batches)}: the ranks add gradients up with one weight for all targets. Give tacc.accelerate "
            'mean_over="micro_batch", with which micro-batches weigh alike, or give the model num_items_in_batch=, the targets of the whole step'
        )
    return counted[0] * math.fsum(m.targets for m in micro_batches)
