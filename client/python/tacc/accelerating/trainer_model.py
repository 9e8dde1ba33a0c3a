"""The model of a `transformers.Trainer` that a job trains."""

from __future__ import annotations

import logging
import random
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import numpy as np
import torch
from torch.utils import _pytree as pytree
from transformers.utils import ModelOutput

from tacc.accelerating import optimizer_states
from tacc.accelerating.batches import IGNORED, Batches
from tacc.accelerating.changes import in_evaluation
from tacc.accelerating.handle import AcceleratedModel
from tacc.accelerating.job import Model, Options, differs_in_training
from tacc.accelerating.optimizers import Groups
from tacc.accelerating.outputs import ModelOutputs
from tacc.accelerating.padding import Padding, longest, pads_to_longest
from tacc.accelerating.steps import UnlikeWeightsError
from tacc.accelerating.trainer_loss import TrainerLoss, own_compute_loss
from tacc.errors import InputError, TaccError
from tacc.live.session import ForwardResult, SessionRestartedError

_BEYOND = 2**20  # More than any position or class.
_ROUNDING = 5e-7  # Of a mean in float32, which models compute in float64 too.

_log = logging.getLogger("transformers.trainer")


def _length_of_first(collator: Any, batch: Mapping[str, Any]) -> int:
    """The tokens of a sample, where a collator of somebody's own has padded them; 0: it has not, as far as one sees."""
    name = getattr(collator, "__name__", type(collator).__name__)
    ids, mask = batch.get("input_ids"), batch.get("attention_mask")
    pads = isinstance(mask, torch.Tensor) and bool((mask == 0).any())
    return int(ids.shape[1]) if pads and isinstance(ids, torch.Tensor) and ids.dim() == 2 and "default_data_collator" not in name.lower() else 0


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
        super().__init__(trainer.model, options, [optimizer], None)
        self._of_trainer = weakref.ref(trainer)
        self.wants_outputs = True
        """Whether evaluation is to have more than the loss at once."""
        self._max_length = max_length
        self._on_start = on_start
        self._own_loss: TrainerLoss | None = None
        self._evaluates_in_job = True

    def _apply(self, fn: Any, recurse: bool = True) -> TrainerModel:
        """Of a full evaluation in another precision: the ranks compute in the job's."""
        return self

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
        trainer, optimizer = self.trainer, self._optimizers[0]
        with _same_randomness():
            batch = _whole(batch, trainer._train_batch_size, trainer.train_dataset)
            self._row = _samples(batch)
            self._padding = self._padding_of(trainer, batch)
            self._class = type(self._returned(self._row))
            has_loss = self._own_loss is not None or "loss" in self._tensors(self._row)
            self._sums_over_items = self._own_loss.is_sum if self._own_loss is not None else has_loss and self._reads_num_items(trainer)
            if has_loss and not self._sums_over_items and trainer.args.gradient_accumulation_steps > 1:
                self._options.mean_over = "micro_batch"
            if self._own_loss is not None and self._counts_padding() and self._pads(trainer, batch):
                raise InputError("compute_loss counts what fills up shorter texts; pad all samples to one length, or leave out of the loss where attention_mask is 0")
            before = dict(optimizer.state)
            states = optimizer_states.taken(optimizer, self.module, trainer.state.global_step)
            try:
                super()._start(self._padding.pad(batch)[0])
            except BaseException:
                optimizer.state.update(before)
                raise
            if states is not None:
                optimizer_states.load(self, states)
        self._on_start(self)

    def _say_that_it_begins(self) -> None:
        """Trainer's log says it."""

    def _groups_of(self, optimizers: list[torch.optim.Optimizer], model: Model) -> Groups:
        groups = super()._groups_of(optimizers, model)
        if groups.left:
            raise InputError(
                f"the optimizer does not have {', '.join(groups.left[:3])}, which has gradients that would be in grad_norm and in clipping; say that it is not "
                "trained, by requires_grad_(False), or give it to the optimizer"
            )
        return groups

    def _batches_of(self, model: Model) -> Batches:
        """What is not seen in the graph of how samples may fill a batch up, is seen by trying. What the last batch of an epoch would be refused for is
        refused at once."""
        batches, trainer = super()._batches_of(model), self.trainer
        if not batches.why_not_fewer:
            return batches
        if not model.cotangents:
            meet = model.graph.description.samples_meet and self._samples_meet()
            fills = self._fills_that_do_not_count(trainer)
            lengths = self._lengths_of(model)
            batches = Batches(model.graph.description, model.example, model.optional, fills=fills, samples_meet=meet, lengths=lengths)
        left = _left_over(trainer)
        if left and batches.why_not_fewer:
            raise InputError(
                f"the last batch of an epoch has {left} samples, the others {batches.size}; give TrainingArguments dataloader_drop_last=True, or a batch size "
                f"that divides the data set: {batches.why_not_fewer}"
            )
        return batches

    def _samples_meet(self) -> bool:
        """Whether what the model returns of a sample changes with the other one of its batch."""
        one = {name: t for name, t in self._tensors(self._row).items() if t.dim() > 0}
        other = {k: v.flip(1) if _is_of(v, 1) and v.dim() > 1 else v for k, v in self._row.items()}
        both = {k: torch.cat([v, other[k]]) if _is_of(v, 1) else v for k, v in self._row.items()}
        beside = self._tensors(both)
        return not all(torch.allclose(beside[name][:1], t, rtol=1e-4, atol=1e-5) for name, t in one.items() if len(beside[name]) == 2 * len(t))

    def _fills_that_do_not_count(self, trainer: Any) -> dict[str, int]:
        """By label, a value with which a sample adds nothing to the loss; none, if there is no such."""
        two = {k: torch.cat([v, v]) if _is_of(v, 1) else v for k, v in self._row.items()}
        names = [n for n in trainer.label_names if _is_of(two.get(n), 2) and not two[n].is_floating_point()]
        for value in (IGNORED, _BEYOND):
            filled = {**two, **{n: torch.cat([two[n][:1], torch.full_like(two[n][1:], value)]) for n in names}}
            try:
                if names and self._same_loss(filled, self._row):
                    return dict.fromkeys(names, value)
            except (IndexError, RuntimeError):  # It is no index.
                continue
        return {}

    def _same_loss(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
        """Whether two batches have one loss. In float64, so that a small term that differs is not taken for rounding."""
        try:
            with _in_double(self.module):
                losses = [self._loss_of({k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in of.items()}) for of in (a, b)]
        except RuntimeError:  # The loss has tensors of its own, which are not.
            losses = [self._loss_of(a), self._loss_of(b)]
        return bool(torch.allclose(losses[0].double(), losses[1].double(), rtol=_ROUNDING, atol=0.0))

    def _loss_of(self, batch: Mapping[str, Any], num_items: float | None = 1.0) -> torch.Tensor:
        """Computed here, as in evaluation; over `num_items` if it is such a sum."""
        if self._own_loss is not None:
            return self._own_loss.evaluated(batch)[0]
        items = {} if num_items is None or not self._sums_over_items else {"num_items_in_batch": torch.tensor(num_items)}
        return self._tensors({**batch, **items})["loss"]

    def _padding_of(self, trainer: Any, batch: Mapping[str, Any]) -> Padding:
        config = getattr(self.module, "config", None)
        lengths: dict[str, int] = {}
        if self._max_length is not None:
            lengths = {"input_ids": self._max_length, "labels": self._max_length}
        elif pads_to_longest(trainer.data_collator) and not self._options.buckets:
            evaluated = trainer.eval_dataset.values() if isinstance(trainer.eval_dataset, dict) else [trainer.eval_dataset]
            lengths = longest([trainer.train_dataset, *evaluated], trainer.data_collator.pad_to_multiple_of)
        elif not self._options.buckets and (length := _length_of_first(trainer.data_collator, batch)):
            _log.warning(
                "tacc: the collator is none of transformers: the job computes with the %d tokens of the first batch, and refuses a longer one; give "
                "tacc.accelerate_hf_trainer(max_length=N) if one may come",
                length,
            )
        has_decoder = bool(getattr(config, "is_encoder_decoder", False))
        if not has_decoder:
            lengths = {"input_ids": max(lengths.values())} if lengths else {}
        token = getattr(config, "pad_token_id", None)
        buckets = self._options.buckets
        if buckets and has_decoder:
            raise InputError("buckets= is of models whose samples have one length; this one has an encoder and a decoder: give max_length instead")
        return Padding(batch, lengths, token if isinstance(token, int) and token >= 0 else 0, has_decoder=has_decoder, buckets=buckets)

    def _pads(self, trainer: Any, batch: Mapping[str, Any]) -> bool:
        """Whether batches will have fewer tokens than the job's."""
        return self._max_length is not None or bool(self._options.buckets) or pads_to_longest(trainer.data_collator) or any(
            padded.shape != value.shape for padded, value in zip(self._padding.pad(batch)[0].values(), batch.values()) if isinstance(value, torch.Tensor)
        )

    def _counts_padding(self) -> bool:
        """Whether the loss is another one of a text that is filled up."""
        shorter = self._padding.shorter(self._row)
        try:
            filled, _ = self._padding.pad(shorter)
        except InputError:  # Such a batch is refused when it comes.
            return False
        return not self._same_loss(filled, shorter)

    def _reads_num_items(self, trainer: Any) -> bool:
        """Whether the model's loss is a sum over `num_items_in_batch`. Many take the argument, and do without."""
        if not trainer.model_accepts_loss_kwargs or "labels" not in self._row:
            return False
        losses = [self._tensors({**self._row, "num_items_in_batch": torch.tensor(n)})["loss"] for n in (1.0, 2.0)]
        return not torch.equal(losses[0], losses[1])

    def _returned(self, batch: Mapping[str, Any]) -> Any:
        """What the module itself returns, as it is here."""
        if self._own_loss is not None:
            return self._own_loss.evaluated(batch)[1]
        with in_evaluation(self.module), torch.no_grad():
            return self.module(**batch)

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
                f"the job has begun again after step {error.step}: {error.why}. A Trainer cannot go back by itself: call trainer.train(resume_from_checkpoint=True), which goes on from its last checkpoint"
            ) from error

    def _update(self) -> None:
        try:
            super()._update()
        except UnlikeWeightsError as error:
            raise InputError(
                "a step has batches whose losses are over different num_items_in_batch, as where a stream of data has ended in the middle of a step and its "
                "gradients stay for the next one; let it give a multiple of gradient_accumulation_steps batches"
            ) from error
        trainer = self.trainer
        if trainer is not None and self.last_step is not None and hasattr(trainer.optimizer, "_is_overflow"):
            # In float16; the schedule stays then, as with a GradScaler.
            trainer.optimizer._is_overflow = self.last_step.skipped and self.last_step.loss_scale is not None

    def end(self, error: BaseException | None = None) -> None:
        """Ends the job. The optimizer has its states then, and the module its weights, unless it has got others meanwhile.

        Args:
            error: What the training has died of: the job is cancelled, with a checkpoint. None: it has come to its end.
        """
        if not self.is_open:
            return
        if error is not None and not self.session.is_connected:
            self._cancel(error, takes_weights=False)
            return
        optimizer = self._optimizers[0]
        try:
            if not self._changes.has_tensors_changed():
                self.refresh()
            states = optimizer_states.read(self, optimizer)
            self.close() if error is None else self._cancel(error, takes_weights=False)
        except TaccError as why:
            self.detach()
            states = {}
            _log.warning("tacc: the job %s could not be ended, and its weights since the last save are gone: %s", self.job.id, why)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        optimizer.state.update({parameters[i]: of for i, of in states.items()})

    def _check_unchanged(self, *, trains: bool) -> None:
        self._give_weights()
        self._changes.check_attributes(trains=trains)

    def _give_weights(self) -> None:
        """The job has what a callback has written into the module."""
        if self._changes.has_tensors_changed():
            self.refresh()

    # --- Weights --------------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """The module has the weights of the job; if it has got others since it had these, the job has those of the module."""
        if not self.is_open:
            return
        if not self._is_current():
            self.sync()
        elif self._changes.has_tensors_changed():
            self.load_state_dict(self.module.state_dict())

    def _refresh(self) -> None:
        self.refresh()

    # --- A loss that the trainer computes -------------------------------------------------------------------------------

    def compute_loss(self, compute: Callable[..., Any], inputs: dict[str, Any], return_outputs: bool, num_items: Any) -> Any:
        """As `compute`, the trainer's own, of this model. Where that is a function of its inputs, the job has it, from the first batch on."""
        trainer = self.trainer
        if self._session is None:
            self._start_with(trainer, compute, inputs, num_items)
        if (own := self._own_loss) is None:
            return compute(self, inputs, return_outputs=return_outputs, num_items_in_batch=num_items)
        if not (self.training and torch.is_grad_enabled()):
            self.refresh()
            return compute(self if self._evaluates_in_job else self.module, inputs, return_outputs=return_outputs, num_items_in_batch=num_items)
        own.check(trainer)
        self._give_weights()
        padded, lengths = self._padding.pad(self._batch((), dict(inputs)))
        outputs = self._forward_in_training(padded, float(num_items) if own.is_sum else None)
        return (outputs.loss, self._whole(dict(outputs), lengths)) if return_outputs else outputs.loss

    def _start_with(self, trainer: Any, compute: Callable[..., Any], inputs: Mapping[str, Any], num_items: Any) -> None:
        """Begins the job with that loss in its graph, if it can be."""
        batch = self._batch((), dict(inputs))
        with _same_randomness():
            if own_compute_loss(trainer) and isinstance(self._returned(_samples(batch)), Mapping):
                return
            own = _own_loss_of(trainer, compute, self.module, batch, num_items is not None)
        if own.is_own:
            return
        self._no_gradients = (
            "compute_loss is computed here, and uses what the model returns beside its loss, whose gradients do not go back to the workers; let it give the "
            "model no labels, and compute the whole loss itself"
        )
        in_training = [name for name, m in self.module.named_modules() if differs_in_training(m)]
        if own.impure and in_training:
            raise InputError(
                f"compute_loss {own.impure}, so that the workers cannot compute it, and the model computes otherwise in training than in evaluation "
                f"({', '.join(in_training[:3])}), so that it cannot be computed here: let it be a function of the model and the batch alone"
            )
        if own.impure:
            _log.warning("tacc: compute_loss %s, so it is computed here at each step, from what the model returns", own.impure)
            return
        self._own_loss, self._loss = own, own.traced()
        # What is one number of a batch is another one of parts of it.
        self._evaluates_in_job = own.calls_once and all(t.dim() > 0 for t in self._tensors(_samples(batch)).values())
        try:
            self._start(batch)
        except InputError as error:
            if self._job is not None or in_training:
                raise
            self._own_loss = self._loss = None
            self._options.mean_over = "step"
            _log.warning("tacc: compute_loss cannot be in the job's graph, so it is computed here at each step, from what the model returns: %s", error)

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
        return self._evaluated_in_parts(batch, None if num_items is None or not self._sums_over_items else float(num_items))

    def _trained(self, padded: dict[str, Any], lengths: dict[str, int], num_items: Any) -> Any:
        if self._model.cotangents:
            return self._whole(self._forward_here(padded), lengths)
        outputs = super().forward(**padded, **({"num_items_in_batch": num_items} if self._sums_over_items else {}))
        names = list(pytree.tree_unflatten(self._model.graph.leaves, self._model.graph.structure))
        return ModelOutputs(outputs.loss, names, lambda: self._whole(outputs.copy(), lengths))

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
        rows = _rows(batch)
        size = self._batches.size if self._batches.has_samples else rows
        for first in range(0, rows, size):
            yield {k: v[first : first + size] if _is_of(v, rows) else v for k, v in batch.items()}

    def _evaluated_in_parts(self, batch: dict[str, Any], num_items: float | None) -> Any:
        padded, lengths = self._padding.pad(batch)
        loss, values = self._mean(padded, num_items, outputs=self.wants_outputs or self._own_loss is not None)
        if self._own_loss is not None:
            return self._whole(values, lengths)
        if loss is None and "loss" in self._names() and set(self._row) <= set(batch):
            self.refresh()
            loss = self._loss_of(batch, num_items)  # What would fill it up would count.
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


class _LossFirst(Mapping[str, Any]):
    """The loss, and outputs that are computed when they are looked at. It is no dict, of which Trainer would look at all."""

    def __init__(self, loss: torch.Tensor | None, names: list[str], fetch: Callable[[], Mapping[str, Any]]):
        self._outputs = ModelOutputs(loss, names, fetch)

    def __getitem__(self, key: Any) -> Any:
        return _Later(lambda: self._outputs[key]) if isinstance(key, slice) else self._outputs[key]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._outputs, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)


class _Later(Sequence[Any]):
    def __init__(self, make: Callable[[], tuple[Any, ...]]):
        self._make = make

    def __getitem__(self, key: Any) -> Any:
        return self._make()[key]

    def __len__(self) -> int:
        return len(self._make())


def _own_loss_of(trainer: Any, compute: Callable[..., Any], module: torch.nn.Module, batch: Mapping[str, Any], has_items: bool) -> TrainerLoss:
    """Of two samples, which are quicker; if it cannot be computed of these, of the whole batch."""
    try:
        return TrainerLoss(compute, trainer, module, _samples(batch, 2), has_items=has_items)
    except Exception:
        return TrainerLoss(compute, trainer, module, batch, has_items=has_items)


def _targets(batch: Mapping[str, Any], count: int) -> int:
    labels = batch.get("labels")
    return int((labels != IGNORED).sum()) if isinstance(labels, torch.Tensor) and not labels.is_floating_point() else count


def _left_over(trainer: Any) -> int:
    """Samples of the last batch of an epoch, if it has fewer than the others and the training comes to it; 0 where nobody knows."""
    data, args, size = trainer.train_dataset, trainer.args, trainer._train_batch_size
    if not hasattr(data, "__len__") or args.dataloader_drop_last or len(data) < size:
        return 0
    batches = trainer.state.max_steps * args.gradient_accumulation_steps
    return len(data) % size if batches > len(data) // size else 0


def _whole(batch: Mapping[str, Any], size: int, dataset: Any) -> dict[str, Any]:
    """The batch with so many samples as those that may follow: a training that goes on may begin with the last one of an epoch."""
    rows = _rows(batch)
    if rows >= size or (hasattr(dataset, "__len__") and len(dataset) <= rows):
        return dict(batch)
    index = torch.arange(size) % rows
    return {k: v[index] if _is_of(v, rows) else v for k, v in batch.items()}


def _rows(batch: Mapping[str, Any]) -> int:
    return next((len(v) for v in batch.values() if isinstance(v, torch.Tensor) and v.dim() > 0), 1)


def _is_of(value: Any, rows: int) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and len(value) == rows


def _samples(batch: Mapping[str, Any], count: int = 1) -> dict[str, Any]:
    """The samples of a batch with the most labels, as a batch."""
    labels, rows = batch.get("labels"), _rows(batch)
    index = torch.arange(rows)
    if _is_of(labels, rows):
        index = (labels != IGNORED).reshape(rows, -1).sum(1).sort(descending=True, stable=True).indices
    return {k: v[index[:count]] if _is_of(v, rows) else v for k, v in batch.items()}


@contextmanager
def _in_double(module: torch.nn.Module) -> Iterator[None]:
    """With parameters and buffers in float64."""
    before = [(t, t.data) for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()]
    try:
        for tensor, data in before:
            tensor.data = data.double()
        yield
    finally:
        for tensor, data in before:
            tensor.data = data


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
