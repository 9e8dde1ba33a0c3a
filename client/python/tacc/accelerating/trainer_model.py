"""The model of a `transformers.Trainer` that a job trains."""

from __future__ import annotations

import logging
import random
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from transformers.utils import ModelOutput

from tacc.accelerating import optimizer_states
from tacc.accelerating.batches import IGNORED
from tacc.accelerating.handle import AcceleratedModel
from tacc.accelerating.job import Options
from tacc.accelerating.outputs import ModelOutputs
from tacc.accelerating.padding import Padding, longest, pads_to_longest
from tacc.errors import InputError, TaccError
from tacc.live.session import ForwardResult, SessionRestartedError

_log = logging.getLogger("transformers.trainer")


class TrainerModel(AcceleratedModel):
    """An accelerated model whose batches may be shorter, and in evaluation have more samples, and that says what its module says of itself.

    Args:
        trainer: Whose model it is.
        optimizer: The trainer's, of torch.optim.
        options: Of the job.
        max_length: Tokens of a sample, at most; None: it finds out.
        on_start: Called when the job runs.
    """

    def __init__(self, trainer: Any, optimizer: torch.optim.Optimizer, options: Options, max_length: int | None, on_start: Callable[[TrainerModel], None]):
        super().__init__(trainer.model, options, optimizer, None)
        self._of_trainer = weakref.ref(trainer)
        self.wants_outputs = True
        """Whether evaluation is to have more than the loss at once."""
        self._max_length = max_length
        self._on_start = on_start
        self._synced: tuple[int, Any] | None = None
        self._unfollow = optimizer_states.follow(optimizer, self, lambda: self.is_open)

    # What a Trainer asks of a model.

    def train(self, mode: bool = True) -> TrainerModel:
        """Sets the mode of the module too, whose `generate` runs here."""
        self.module.train(mode)
        return super().train(mode)  # type: ignore[no-any-return]

    def _get_name(self) -> str:
        return str(self.module._get_name())

    @property
    def trainer(self) -> Any:
        """Whose model it is. None: it is no more."""
        return self._of_trainer()

    @property
    def is_open(self) -> bool:
        """Whether the job runs."""
        return self._session is not None

    # --- The job --------------------------------------------------------------------------------------------------------

    def _start(self, batch: Any) -> None:
        trainer = self.trainer
        assert self._optimizer is not None
        with _same_randomness():
            batch = _whole(batch, trainer._train_batch_size, trainer.train_dataset)
            self._row = _sample(batch)
            self._padding = self._padding_of(trainer, batch)
            self._class = type(self._returned(self._row))
            loss = self._tensors(self._row).get("loss")
            self._sums_over_items = loss is not None and self._reads_num_items(trainer)
            if loss is not None and not self._sums_over_items and trainer.args.gradient_accumulation_steps > 1:
                self._options.mean_over = "micro_batch"
            states = optimizer_states.taken(self._optimizer, self.module, trainer.state.global_step)
            super()._start(self._padding.pad(batch)[0])
            if states is not None:
                optimizer_states.load(self, states)
        self._synced = (self.step_number, self._marks())
        self._on_start(self)

    def _padding_of(self, trainer: Any, batch: Mapping[str, Any]) -> Padding:
        config = getattr(self.module, "config", None)
        lengths: dict[str, int] = {}
        if self._max_length is not None:
            lengths = {"input_ids": self._max_length, "labels": self._max_length}
        elif pads_to_longest(trainer.data_collator) and not self._options.buckets:
            evaluated = trainer.eval_dataset.values() if isinstance(trainer.eval_dataset, dict) else [trainer.eval_dataset]
            lengths = longest([trainer.train_dataset, *evaluated], trainer.data_collator.pad_to_multiple_of)
        has_decoder = bool(getattr(config, "is_encoder_decoder", False))
        if not has_decoder:
            lengths = {"input_ids": max(lengths.values())} if lengths else {}
        token = getattr(config, "pad_token_id", None)
        buckets = self._options.buckets
        if buckets and has_decoder:
            raise InputError("buckets= is of models whose samples have one length; this one has an encoder and a decoder: give max_length instead")
        return Padding(batch, lengths, token if isinstance(token, int) and token >= 0 else 0, has_decoder=has_decoder, buckets=buckets)

    def _reads_num_items(self, trainer: Any) -> bool:
        """Whether the model's loss is a sum over `num_items_in_batch`. Many take the argument, and do without."""
        if not trainer.model_accepts_loss_kwargs or "labels" not in self._row:
            return False
        losses = [self._tensors({**self._row, "num_items_in_batch": torch.tensor(n)})["loss"] for n in (1.0, 2.0)]
        return not torch.equal(losses[0], losses[1])

    def _returned(self, batch: Mapping[str, Any]) -> Any:
        """What the module itself returns, as it is here."""
        was_training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad():
                return self.module(**batch)
        finally:
            self.module.train(was_training)

    def _tensors(self, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Of it the tensors, by name."""
        returned = self._returned(batch)
        named = {".".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path): leaf for path, leaf in pytree.tree_flatten_with_path(returned)[0]}
        return {name: leaf for name, leaf in named.items() if isinstance(leaf, torch.Tensor)}

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return super()._guarded(call)
        except SessionRestartedError as error:
            raise TaccError(
                f"{error}. A Trainer cannot go back by itself: call trainer.train(resume_from_checkpoint=True), which goes on from its last checkpoint"
            ) from error

    def _update(self) -> None:
        super()._update()
        trainer = self.trainer
        if trainer is not None and self.last_step is not None and hasattr(trainer.optimizer, "_is_overflow"):
            # In float16; the schedule stays then, as with a GradScaler.
            trainer.optimizer._is_overflow = self.last_step.skipped and self.last_step.loss_scale is not None

    def end(self) -> None:
        """Ends the job. The optimizer has its states then, and the module its weights, unless it has got others meanwhile."""
        if not self.is_open:
            return
        optimizer = self._optimizer
        assert optimizer is not None and self._synced is not None
        try:
            if self._synced[1] == self._marks():
                self.refresh()
            states = optimizer_states.read(self)
            self.close()
        except TaccError as error:
            self.detach()
            states = {}
            _log.warning("tacc: the job %s could not be ended, and its weights since the last save are gone: %s", self.job.id, error)
        self._unfollow()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        optimizer.state.update({parameters[i]: of for i, of in states.items()})

    # --- Weights --------------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """The module has the weights of the job; if it has got others since it had these, the job has those of the module."""
        if not self.is_open:
            return
        if self._synced is None or self._synced[0] != self.step_number:
            self.sync()
        elif self._synced[1] != self._marks():
            self.load_state_dict(self.module.state_dict())
        self._synced = (self.step_number, self._marks())

    def _marks(self) -> dict[str, tuple[int, int]]:
        """What changes when a tensor of the module does."""
        return {name: (t.data_ptr(), t._version) for name, t in self.module.state_dict(keep_vars=True).items() if isinstance(t, torch.Tensor)}

    # --- Forward --------------------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As of `AcceleratedModel`; in evaluation the outputs are of the class that the model returns."""
        num_items = kwargs.pop("num_items_in_batch", None)
        batch = self._batch(args, kwargs)
        if self._session is None:
            self._start(batch)
        padded, lengths = self._padding.pad(batch)
        if self.training and torch.is_grad_enabled():
            return self._trained(padded, lengths, num_items)
        if self._model.cotangents:
            return self._whole(self._outputs_here(padded), lengths)
        return self._evaluated_in_parts(padded, lengths, None if num_items is None or not self._sums_over_items else float(num_items))

    def _trained(self, padded: dict[str, Any], lengths: dict[str, int], num_items: Any) -> Any:
        if self._model.cotangents:
            return self._whole(self._forward_here(padded), lengths)
        return super().forward(**padded, **({"num_items_in_batch": num_items} if self._sums_over_items else {}))

    def _as_returned(self, values: dict[str, torch.Tensor]) -> Any:
        return values  # `_whole` makes it of these.

    def _outputs_here(self, padded: dict[str, Any]) -> dict[str, torch.Tensor]:
        parts = [self._forward_here(part) for part in self._parts(padded)]
        return {name: torch.cat([part[name] for part in parts]) if parts[0][name].dim() else parts[0][name] for name in parts[0]}

    def _whole(self, values: Mapping[str, torch.Tensor], lengths: dict[str, int]) -> Any:
        """What the model returns, of its tensors."""
        cut = self._padding.cut(values, lengths, lambda batch: {name: t.shape for name, t in self._tensors(batch).items()}, self._row)
        leaves = [None if name is None else cut.get(name) for name in self._model.graph.leaves]
        returned = pytree.tree_unflatten(leaves, self._model.graph.structure)
        return self._class(**returned) if isinstance(returned, dict) and issubclass(self._class, ModelOutput) else returned

    def _parts(self, batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The batch in parts that have at most as many samples as the job's."""
        size, rows = self._batches.size, _rows(batch)
        for first in range(0, rows, size):
            yield {k: v[first : first + size] if isinstance(v, torch.Tensor) and v.dim() > 0 and len(v) == rows else v for k, v in batch.items()}

    def _evaluated_in_parts(self, padded: dict[str, Any], lengths: dict[str, int], num_items: float | None) -> Any:
        loss, values = self._mean(padded, num_items, outputs=self.wants_outputs)
        if not self.wants_outputs:
            return _LossFirst(loss, self._names(), lambda: self._whole(self._mean(padded, num_items, outputs=True)[1], lengths))
        return self._whole(values if loss is None else {**values, "loss": loss}, lengths)

    def _mean(self, padded: dict[str, Any], num_items: float | None, *, outputs: bool) -> tuple[torch.Tensor | None, dict[str, torch.Tensor]]:
        """The loss, over `num_items` or over all targets; and the outputs."""
        loss_sum, targets, has_all = 0.0, 0.0, True
        found = []
        for part in self._parts(padded):
            arrays, count, has_loss = self._batches.arrays(part, trains=False)
            result = self._forward(arrays, outputs)
            weight = _targets(part, count) if self._options.mean_over == "micro_batch" else result.target_tokens
            loss_sum, targets, has_all = loss_sum + (result.loss * weight if weight else 0.0), targets + weight, has_all and has_loss
            found.append({name: self._cut(value, count) for name, value in result.outputs.items()})
        values = {name: torch.cat([of[name] for of in found]) if found[0][name].dim() else found[0][name] for name in found[0]}
        divisor = targets if num_items is None else num_items
        return torch.tensor(loss_sum / divisor if divisor else float("nan")) if has_all else None, values

    def _forward(self, arrays: dict[str, np.ndarray[Any, Any]], outputs: bool) -> ForwardResult:
        session = self.session
        result: ForwardResult = self._guarded(lambda: session.forward(arrays, outputs=session.outputs if outputs else ()))
        return result


class _LossFirst(ModelOutputs):
    """The loss, and outputs that are computed when they are looked at."""

    def __getitem__(self, key: Any) -> Any:
        return _Later(lambda: super(_LossFirst, self).__getitem__(key)) if isinstance(key, slice) else super().__getitem__(key)


class _Later(Sequence[Any]):
    def __init__(self, make: Callable[[], tuple[Any, ...]]):
        self._make = make

    def __getitem__(self, key: Any) -> Any:
        return self._make()[key]

    def __len__(self) -> int:
        return len(self._make())


def _targets(batch: Mapping[str, Any], count: int) -> int:
    labels = batch.get("labels")
    return int((labels != IGNORED).sum()) if isinstance(labels, torch.Tensor) and not labels.is_floating_point() else count


def _whole(batch: Mapping[str, Any], size: int, dataset: Any) -> dict[str, Any]:
    """The batch with so many samples as those that may follow: a training that goes on may begin with the last one of an epoch."""
    rows = _rows(batch)
    if rows >= size or (hasattr(dataset, "__len__") and len(dataset) <= rows):
        return dict(batch)
    index = torch.arange(size) % rows
    return {k: v[index] if isinstance(v, torch.Tensor) and v.dim() > 0 and len(v) == rows else v for k, v in batch.items()}


def _rows(batch: Mapping[str, Any]) -> int:
    return next((len(v) for v in batch.values() if isinstance(v, torch.Tensor) and v.dim() > 0), 1)


def _sample(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The sample of a batch with the most labels, as a batch."""
    labels, rows = batch.get("labels"), _rows(batch)
    row = int((labels != IGNORED).reshape(rows, -1).sum(1).argmax()) if isinstance(labels, torch.Tensor) and len(labels) == rows else 0
    return {k: v[row : row + 1] if isinstance(v, torch.Tensor) and v.dim() > 0 and len(v) == rows else v for k, v in batch.items()}


@contextmanager
def _same_randomness() -> Iterator[None]:
    """What is drawn inside is not missing outside: the order of the data is as without."""
    python, numpy, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torch_state)
