"""The handle that `tacc.accelerate` gives: it feels like the model, and trains where the workers are."""

from __future__ import annotations

import atexit
import contextlib
import copy
import math
import os
import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tacc.accelerating import clipping, optimizer_states, remote_tensors
from tacc.accelerating.ahead import Ahead, Arrays, arrays_of, staged_ahead
from tacc.accelerating.batches import Batches, as_batch, leaves_of, names, takes
from tacc.accelerating.changes import Changes, in_evaluation, in_training
from tacc.accelerating.job import Model, Options, check_average, check_lengths, check_plain, export, start
from tacc.accelerating.job_notes import say_that_it_begins, say_where_it_begins
from tacc.accelerating.lengths import Lengths
from tacc.accelerating.optimizer_calls import OptimizerCalls
from tacc.accelerating.optimizers import Groups, check_apart, find_optimizers
from tacc.accelerating.outputs import ModelOutputs, loss_tensor, output_tensors, refusing
from tacc.accelerating.padding import TOKENS
from tacc.accelerating.states import as_tensor, assembled, named_states, weights_of, with_states
from tacc.accelerating.steps import MicroBatch, Steps
from tacc.accelerating.store import default_store, upload_states, write_states
from tacc.accelerating.training import Training, finish_dropped, is_failure, script_died_of
from tacc.client import Job
from tacc.errors import InputError, TaccError
from tacc.exporting.example import Example
from tacc.exporting.forward import Loss, LossWithModel
from tacc.live.session import Session, SessionRestartedError, StepResult

_UNCLIPPED = 3e38
_AFTER_A_RESTART = (
    "go on from model.step_number, with the weights that are there; set the learning rate's scheduler and the loader back to that step (an AsyncLoader goes "
    "back by itself)"
)


class AcceleratedModel(torch.nn.Module):  # type: ignore[misc]
    """A model that a job trains. `tacc.accelerate` makes it; the job begins at its first forward.

        out = model(**batch)
        out.loss.backward()
        optimizer.step()

    Attributes of the module are its too. Its parameters are the module's: who reads one of them here finds it as the ranks have it, at the price of a
    `sync` when there was an update since the last one.

    Args:
        module: The model.
        options: As given to `tacc.accelerate`.
        optimizers: Those given there.
        loss: As there.
    """

    def __init__(self, module: torch.nn.Module, options: Options, optimizers: Sequence[torch.optim.Optimizer], loss: Loss | None):
        super().__init__()
        check_plain(module)
        self.module = module
        self._options = options
        self._optimizers = list(optimizers)
        self._loss = loss
        self._job: Job | None = None
        self._session: Session | None = None
        self._ended_path = ""
        self._max_norm: float | None = None
        self._norms: list[tuple[clipping.GradNorm, float]] = []  # That were asked for, and what they were clipped to before; of the next update,
        self._norms_under_way: list[tuple[clipping.GradNorm, float]] = []  # and of the one under way.
        self._num_updates = 0
        self._current: tuple[int, int] | None = None  # What `_now` was when the module got the weights.
        self._is_reading = False
        self.trained: set[int] = set()
        """By id, the parameters that the ranks train."""
        self.loader_state: bytes | None = None
        """What checkpoints keep with the next update, as the position of a loader; `AsyncLoader` sets it."""
        self.batch_ahead: Ahead | None = None
        """The batch that the loop was given last, if it lies where the ranks read it; `AsyncLoader` sets it."""
        self.num_rewinds = 0
        """How often the training has begun at another step than the loop was at: `session.state` is what was kept with that step."""
        self._training: Training | None = None
        self._last_step: StepResult | None = None
        self.device = torch.device("cpu")
        """Where batches are taken from, and outputs are."""
        self.train(True)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # torch.nn.Module would take the module for a part of this one.

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["module"], name)

    def __repr__(self) -> str:
        where = f"job {self._job.id!r}, step {self._session.step_number if self._session else 0}" if self._job is not None else "no job yet: it begins at the first forward"
        return f"AcceleratedModel({type(self.module).__name__}, {where})"

    # --- What a module is asked for: it is that of the module ---------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Sets the mode, of the module too.

        Args:
            mode: As of torch.nn.Module.
        """
        self.training = mode
        self.module.train(mode)
        return self

    def apply(self, fn: Callable[[torch.nn.Module], None]) -> Self:
        """Before the first forward, as of torch.nn.Module.

        Args:
            fn: As there.
        """
        self._need_not_begun("apply")
        self.module.apply(fn)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """What to(), half() and the like do. InputError: after the start, if anything would change."""
        probes = [p for p in self.module.parameters() if p.is_floating_point()][:1]
        if self._job is not None and any(fn(p.detach().new_zeros(0)).dtype != p.dtype for p in probes):
            self._need_not_begun("a change of dtype")
        if self._job is None:
            self.module._apply(fn, recurse)
        return self

    def _need_not_begun(self, what: str) -> None:
        if self._job is not None:
            raise InputError(f"{what}: the ranks have the model already; do it before the first forward")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self._job is None:
            made = AcceleratedModel(copy.deepcopy(self.module, memo), self._options, [], self._loss)
            return made.train(self.training)
        raise InputError("a model that a job trains cannot be copied: copy.deepcopy(model.sync()) is a module with its weights as they are now")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise InputError("a model that a job trains cannot be pickled: model.sync() is its module with the weights as they are now, or save its state_dict()")

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """The module's.

        Args:
            args: As of torch.nn.Module.
            kwargs: As of torch.nn.Module.
        """
        yield from self.module.named_buffers(*args, **kwargs)

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.nn.Module]]:
        """The module's.

        Args:
            args: As of torch.nn.Module.
            kwargs: As of torch.nn.Module.
        """
        yield from self.module.named_modules(*args, **kwargs)

    def named_children(self) -> Iterator[tuple[str, torch.nn.Module]]:
        """The module's."""
        yield from self.module.named_children()

    # --- The job --------------------------------------------------------------------------------------------------------

    @property
    def job(self) -> Job:
        """The job. InputError: there is none before the first forward."""
        if self._job is None:
            raise InputError("the job begins at the model's first forward, or with model.start(batch)")
        return self._job

    @property
    def session(self) -> Session:
        """The session that drives it; its commands are not to be mixed with this handle's."""
        if self._session is None:
            raise TaccError("the model is closed" if self._ended_path or self._job else "the job begins at the model's first forward")
        return self._session

    @property
    def step_number(self) -> int:
        """Updates that the training has done."""
        self._settle()
        return self._session.step_number if self._session is not None else 0

    @property
    def last_step(self) -> StepResult | None:
        """What the newest update gave: step, loss, grad_norm, learning_rate."""
        self._settle()
        return self._last_step

    @property
    def optimizer_step(self) -> int:
        """Updates that the optimizer's states have had: those of the training, and those before it of states that were loaded."""
        return self._steps_before + self.step_number

    _steps_before = 0
    _no_gradients = (  # of outputs in training
        "this is computed from what the model returns, and in training only its loss goes back to the ranks: give the loss to tacc.accelerate, as "
        "loss=lambda outputs, batch: ..."
    )

    def start(self, *args: Any, **kwargs: Any) -> Self:
        """Exports the model, and submits the job and waits until it runs, if there is none. The first forward does so.

        Args:
            args: A batch, as of a forward in training: those that follow have its shapes, and at most as many samples.
            kwargs: The same by name.
        """
        if self._session is None:
            self._start(self._batch(args, kwargs))
        return self

    def _batch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return as_batch(self.module, args, kwargs, by_position=self._loss is not None)

    def _start(self, batch: Any) -> None:
        if self._job is not None:
            raise TaccError("the model is closed; accelerate it again")
        remote_tensors.check(dict(self.module.named_parameters()))
        optimizers = self._optimizers or find_optimizers(self.module.parameters())
        if not optimizers:
            raise InputError("no optimizer has the model's parameters: make one of model.parameters() before the first forward, or give optimizer=")
        check_apart(optimizers)
        model = export(self.module, batch, self._loss, by_samples=self._options.mean_over == "micro_batch")
        remote_tensors.check_outside(model.graph.outside)
        check_average(model, self._options)
        check_lengths(model, self._options)
        groups = self._groups_of(optimizers, model)
        batches = self._batches_of(model)
        self._job, self._session = start(self.module, model, groups, batches.size, self._options)
        try:
            self._begin(model, batches, groups, optimizers)
        except BaseException:
            if self._training is None:
                self._session.close()
                self._session = None
                self._job.cancel(now=True)  # Nobody else would.
            raise

    def _begin(self, model: Model, batches: Batches, groups: Groups, optimizers: list[torch.optim.Optimizer]) -> None:
        """What there is to do here for a job that runs."""
        assert self._job is not None and self._session is not None
        self._model, self._batches, self._groups, self._optimizers = model, batches, groups, optimizers
        self._steps = Steps(self._session)
        self._calls = OptimizerCalls(optimizers, groups)
        self.num_rewinds = 1 if self._session.step_number > 0 else 0
        self.trained = groups.trained
        self._current = self._now if self._session.step_number == 0 else None
        changing = set(model.graph.description.changed_buffers)
        remote_tensors.take(self.module.parameters(), [b for name, b in self.module.named_buffers() if name in changing], self)
        clipping.patch()
        with in_training(self.module):
            self._changes = Changes(self.module, model.graph.outside)
        self._training = Training(self.module, model, self._job, self._session, self._steps, self._changes, self._hook(optimizers))
        self._finalizer = weakref.finalize(self, finish_dropped, self._training)
        self._finalizer.atexit = False  # _close_all ends it then.
        _OPEN.add(self)
        self._say_that_it_begins()
        if self._session.step_number > 0:
            say_where_it_begins(self._job.status(), self._session.step_number)
        states = [of for o in optimizers if (of := optimizer_states.taken(o, self.module, 0)) is not None]
        if states and self._session.step_number == 0:  # Else the job goes on with its own.
            optimizer_states.load(self, {"state": {name: state for of in states for name, state in of["state"].items()}})

    def _say_that_it_begins(self) -> None:
        say_that_it_begins(self.job)

    def _groups_of(self, optimizers: list[torch.optim.Optimizer], model: Model) -> Groups:
        return Groups(optimizers, {id(p): name for name, p in self.module.named_parameters()}, set(model.graph.description.parameters))

    def _batches_of(self, model: Model) -> Batches:
        return Batches(model.graph.description, model.example, model.optional, frozenset(model.cotangents), lengths=self._lengths_of(model))

    def _lengths_of(self, model: Model) -> Lengths | None:
        buckets, fills = self._options.buckets, self._options.fills
        if not buckets:
            return None
        known = [str(path[-1]) for path in leaves_of(model.example)]
        if unknown := [name for name in fills if name not in known]:
            raise InputError(f"dataloader.pad_value_dict of config has {unknown[0]!r}, which the batch has not; it has {', '.join(map(repr, known))}")
        return Lengths(buckets, model.graph.description, {**self._fill_tokens(), **fills}, self.module, self._returned_here)

    def _fill_tokens(self) -> dict[str, float]:
        token = getattr(getattr(self.module, "config", None), "pad_token_id", None)
        return dict.fromkeys(TOKENS, token if isinstance(token, int) and token >= 0 else 0)

    def _returned_here(self, batch: Any) -> Any:
        """What the module returns of a batch in evaluation, computed here, and the loss with it."""
        with in_evaluation(self.module), torch.no_grad():
            if self._loss is None:
                return self.module(**batch)
            if isinstance(self._loss, LossWithModel):
                return self._loss.compute(self.module, batch)
            example = Example(self.module, batch, has_loss=True)
            outputs, whole = example.call(self.module, example.tensors)
            return outputs, self._loss(outputs, whole)

    def _hook(self, optimizers: list[torch.optim.Optimizer]) -> Callable[[], None]:
        """The optimizers find no gradients, so that their own steps do nothing; before the last one's the ranks' is done. Returns what ends that."""
        ends = [self._hook_of(optimizer) for optimizer in optimizers]

        def unhook() -> None:
            for end in ends:
                end()

        return unhook

    def _hook_of(self, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        handle = weakref.ref(self)
        zero_grad = optimizer.zero_grad

        def step(of: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if (model := handle()) is None or model._session is None:
                raise TaccError("the model that this optimizer trains is closed")
            if any(a is not None for a in (*args[1:], kwargs.get("closure"))):
                raise InputError("optimizer.step(closure) is not supported: call the model and backward, then optimizer.step()")
            if model._calls.step(of, has_gradients=model._steps.has_gradients):
                model._update()
            model._calls.is_under_way = True

        def end_step(*_: Any) -> None:
            if (model := handle()) is not None and model._session is not None:
                model._calls.is_under_way = False

        def zero(set_to_none: bool = True) -> None:
            if (model := handle()) is None or model._session is None:
                zero_grad(set_to_none)
            elif model._calls.zero(optimizer):
                model.zero_grad()

        def is_open() -> bool:
            return (model := handle()) is not None and model._session is not None

        hooks: list[Any] = [optimizer.register_step_pre_hook(step), optimizer.register_step_post_hook(end_step)]
        unfollow = optimizer_states.follow(optimizer, handle, is_open)
        optimizer.zero_grad = zero

        def unhook() -> None:
            for hook in hooks:
                hook.remove()
            unfollow()
            optimizer.__dict__.pop("zero_grad", None)

        return unhook

    def close(self) -> None:
        """Ends the training: its last checkpoint and the trained model are written (`exported_path`), and the job has finished. The module has its weights,
        unless some were changed here since they were read. A model that nobody has any more is closed so, and at the end of a script each one is."""
        self._finish(takes_weights=not self._is_current())

    def detach(self) -> None:
        """Lets go of the job without ending it: it waits for `keep_seconds` for another session, then saves and ends."""
        if (ended := self._leave()) is not None:
            ended[0].detach()

    def _leave(self) -> tuple[Training, Session] | None:
        """The training, of which this is no handle any more. None: there is none here."""
        training, session = self._training, self._session
        if training is None or session is None:
            return None
        self._session = self._training = None
        self._finalizer.detach()
        _OPEN.discard(self)
        return (training, session) if training.is_of_this_process else None

    def _finish(self, *, takes_weights: bool) -> None:
        if (ended := self._leave()) is not None:
            training, session = ended
            try:
                self._ended_path = training.finish(takes_weights=takes_weights).exported_path
            finally:
                self._last_step = session.last_update or self._last_step

    def _cancel(self, error: BaseException, *, takes_weights: bool) -> None:
        """Ends the training of a loop that has died: with a checkpoint, and without an export, which would be taken for a trained model."""
        if (ended := self._leave()) is not None:
            ended[0].cancel(error, takes_weights=takes_weights)

    @property
    def exported_path(self) -> str:
        """After `close`: the folder of the trained model."""
        return self._ended_path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and is_failure(error):
            self._cancel(error, takes_weights=not self._is_current())
        else:
            self.close()

    def _settle(self) -> None:
        """Waits for the update under way. That the job has begun again meanwhile, the next command says."""
        if self._session is None or self._training is None:
            return
        try:
            self._session.end_update()
        except SessionRestartedError as error:
            self._training.restarted = error
        self._last_step = self._session.last_update or self._last_step
        for norm, clipped_to in self._norms_under_way:
            norm.know(min(self._last_step.grad_norm, clipped_to) if self._last_step is not None and self._training.restarted is None else math.nan)
        self._norms_under_way = []

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """The call; if the job has begun again, what the ranks had of the step is gone."""
        try:
            if self._training is not None and self._training.restarted is not None:
                error, self._training.restarted = self._training.restarted, None
                raise error
            self._calls.check_whole("another command")
            return call()
        except SessionRestartedError as error:
            self._steps.forget()
            self._calls.forget()
            self.num_rewinds += 1
            raise SessionRestartedError(error.step, error.why, _AFTER_A_RESTART) from None

    # --- Forward --------------------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns.

        In training forward and backward run at once, and count when the loss's backward is called. In evaluation and under torch.no_grad() it is
        computed as in evaluation.

        Args:
            args: A batch: one dict, or the arguments of the model. With `loss=` also what the loss takes behind these.
            kwargs: The arguments by name. `num_items_in_batch` is what the loss is the sum over, in place of its own targets.
        """
        num_items = None if names(self.module, "num_items_in_batch") else kwargs.pop("num_items_in_batch", None)
        if num_items is not None and self._options.mean_over == "micro_batch":
            raise InputError('num_items_in_batch is of a mean over all targets of a step: leave mean_over="micro_batch" out')
        batch = self._batch(args, kwargs)
        if self._session is None:
            self._start(batch)
        self._check_unchanged(trains=self.training and torch.is_grad_enabled())
        if self._model.cotangents:
            return self._forward_here(batch)
        if self.training and torch.is_grad_enabled():
            return self._forward_in_training(batch, None if num_items is None else float(num_items))
        return self._evaluated(self._arrays(batch, trains=False))

    @property
    def session_ahead(self) -> Session | None:
        """Where batches may be staged before the loop gives them. None: nowhere, as before the job has begun, or if their loss is computed here."""
        return self._session if self._training is not None and not self._model.cotangents else None

    def stage_ahead(self, batch: Any) -> Ahead | None:
        """Stages a batch that the loop will be given. Another thread may do it. None: it cannot be, and the forward says why.

        Args:
            batch: As a loader gives it, whole.
        """
        if (session := self.session_ahead) is None:
            return None
        try:
            whole = self._batch((batch,), {})
        except InputError:  # As above.
            return None
        return staged_ahead(session, self._batches, whole, trains=self.training)

    def _arrays(self, batch: Any, *, trains: bool) -> Arrays:
        ready = None if self.batch_ahead is None else self.batch_ahead.of(batch, trains=trains)
        return ready or arrays_of(self._batches, batch, trains=trains)

    def _check_unchanged(self, *, trains: bool) -> None:
        """InputError: the module is another one than the ranks have."""
        self._check_weights()
        self._changes.check_attributes(trains=trains)

    def _check_weights(self) -> None:
        self._changes.check_tensors()

    def _forward_in_training(self, batch: Any, num_items: float | None) -> ModelOutputs:
        arrays = self._arrays(batch, trains=True)
        made: MicroBatch = self._guarded(lambda: self._steps.run(arrays.for_ranks, num_items))
        handle = weakref.ref(self)  # What a loop has kept of its last step does not keep the job.
        loss = loss_tensor(made.loss, lambda weight: _there(handle)._confirm(made, weight))
        num_updates, message = self._num_updates, self._no_gradients

        def fetch() -> dict[str, torch.Tensor]:
            model = _there(handle)
            if model._options.keeps_average:
                raise InputError("with train.ema_decay outputs are computed with the average of the weights, in evaluation: call model.eval() before the forward")
            if model._num_updates != num_updates:
                raise InputError("outputs are computed when they are looked at, and the weights have changed since this forward: read them before optimizer.step()")
            return output_tensors(model._outputs(arrays.by_input, arrays.count, arrays.length), refusing(message))

        return ModelOutputs(loss, self._names(), fetch)

    def _forward_here(self, batch: Any) -> Any:
        """Of a model whose loss is computed here: its outputs, whose gradients go to the ranks."""
        given = self._with_zeros(batch)
        arrays, count, _ = self._batches.arrays(given, trains=self.training and torch.is_grad_enabled())
        values = self._outputs(arrays, count)
        if self.training and torch.is_grad_enabled():
            handle = weakref.ref(self)
            values = output_tensors(values, lambda gradients: _there(handle)._backward_from(arrays, gradients))
        return self._as_returned(values)

    def _as_returned(self, values: dict[str, torch.Tensor]) -> Any:
        leaves = [None if name is None else values[name] for name in self._model.graph.leaves]
        returned = pytree.tree_unflatten(leaves, self._model.graph.structure)
        return ModelOutputs(None, list(returned), lambda: returned) if isinstance(returned, dict) else returned

    def _with_zeros(self, batch: Any) -> dict[str, Any]:
        example = self._model.example
        count = next((len(v) for v in batch.values() if isinstance(v, torch.Tensor) and v.dim() > 0), self._batches.size)
        zeros = {name: example[name][:count] if example[name].dim() else example[name] for name in self._model.cotangents}
        return {**batch, **zeros}

    def _backward_from(self, arrays: dict[str, np.ndarray[Any, Any]], gradients: dict[str, torch.Tensor]) -> None:
        inputs = {given.path[0]: given.name for given in self._model.graph.description.inputs}
        with_gradients = dict(arrays)
        for given, name in self._model.cotangents.items():
            whole = np.zeros(arrays[inputs[given]].shape, np.float32)
            whole[(slice(len(gradients[name])) if whole.ndim else ...)] = gradients[name].numpy()
            with_gradients[inputs[given]] = whole
        session = self.session
        made = self._guarded(lambda: self._steps.run(with_gradients, float(session.micro_batch_size)))
        self._confirm(made, 1.0)

    def _confirm(self, made: MicroBatch, weight: float) -> None:
        if self._max_norm is not None:
            raise InputError("a backward came behind clip_grad_norm_ in the same step: the ranks clip the sum, once; clip before optimizer.step()")
        self._calls.note_backward(has_gradients=self._steps.has_gradients or self._steps.is_stale)
        self._steps.confirm(made, weight)

    def _names(self) -> list[str]:
        return [name for name in self._model.graph.leaves if name is not None]

    def _outputs(self, arrays: dict[str, np.ndarray[Any, Any]], count: int, length: int = 0) -> dict[str, torch.Tensor]:
        session = self.session
        found = self._guarded(lambda: session.forward(arrays, outputs=session.outputs)).outputs
        return {name: self._cut(self._shortened(name, value, length), count) for name, value in found.items()}

    def _cut(self, value: np.ndarray[Any, Any], count: int) -> torch.Tensor:
        has_samples = value.ndim > 0 and len(value) == self._batches.size
        return as_tensor(value[:count] if has_samples else value)

    def _shortened(self, name: str, value: np.ndarray[Any, Any], length: int) -> np.ndarray[Any, Any]:
        """The output without what filled up its samples of `length` tokens."""
        if length == 0:
            return value
        dims = self._model.graph.output_dims.get(name, [])
        if length not in self._options.buckets and any("S" in dim and dim != "S" for dim in dims):
            raise InputError(f"{name!r} of what the model returns has the dims {dims}, of which what filled up samples of {length} tokens cannot be cut off")
        return value[tuple(slice(0, length if dim == "S" else None) for dim in dims)]

    def _evaluated(self, arrays: Arrays) -> ModelOutputs:
        session = self.session
        result = self._guarded(lambda: session.forward(arrays.for_ranks, outputs=session.outputs))
        message = "the model is in evaluation, where there is no backward: call model.train()"
        values = {name: self._cut(self._shortened(name, value, arrays.length), arrays.count) for name, value in result.outputs.items()}
        loss = torch.tensor(result.loss) if arrays.has_loss else None
        if torch.is_grad_enabled():
            values = output_tensors(values, refusing(message)) if values else values
            loss = loss_tensor(result.loss, refusing(message)) if arrays.has_loss else None
        return ModelOutputs(loss, [name for name in self._names() if name in values], lambda: values)

    # --- Steps ----------------------------------------------------------------------------------------------------------

    def has_gradients(self) -> bool:
        """Whether backward was called since the last update."""
        return self._session is not None and self._steps.has_gradients and not self._calls.is_under_way

    def _update(self) -> None:
        self._updated(self._steps.begin_update)

    def _updated(self, update: Callable[[bytes | None, dict[str, dict[float, float]], float, int | None], Any]) -> None:
        state, self.loader_state = self.loader_state, None
        max_norm, self._max_norm = self._max_norm, None
        self._settle()  # Norms of the update before.
        counted = self.optimizer_step if self._steps_before else None
        rates = self._calls.take_rates()
        norms, self._norms = self._norms, []
        if self._guarded(lambda: update(state, rates, max_norm or _UNCLIPPED, counted)):
            self._norms_under_way = norms
            self._num_updates += 1

    def step(self, *args: Any, **kwargs: Any) -> StepResult:
        """A whole step with a batch: forward, backward and update, with the optimizer's learning rates.

        Args:
            args: As of a forward.
            kwargs: The same by name.
        """
        batch = self._batch(args, kwargs)
        if self._session is None:
            self._start(batch)
        if self._model.cotangents:
            raise InputError("the model returns no loss, and none is given: give loss= to tacc.accelerate, or call the model and backward")
        self._check_unchanged(trains=True)
        self._steps.settle("model.step(batch)")
        given = self._arrays(batch, trains=True).for_ranks
        session = self.session
        self._updated(
            lambda state, rates, norm, counted: session.step(given, state=state, **rates, max_grad_norm=norm, optimizer_step=counted)
        )
        self._steps.zero()  # As if zero_grad came behind it.
        assert session.last_update is not None
        return session.last_update

    def forward_backward(self, *args: Any, output_fn: Callable[..., torch.Tensor] | None = None, **kwargs: Any) -> torch.Tensor:
        """Forward and backward of a batch. Returns the loss.

        Args:
            args: As of a forward.
            output_fn: Makes the loss of what the model returns. What of `kwargs` the model does not take goes to it.
            kwargs: As of a forward.
        """
        if output_fn is None:
            loss = self(*args, **kwargs).loss
        else:
            taken = {k: v for k, v in kwargs.items() if takes(self.module, k)}
            loss = output_fn(self(*args, **taken), **{k: v for k, v in kwargs.items() if k not in taken})
        loss.backward()
        return loss.detach()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clips the gradients of this step, as torch.nn.utils.clip_grad_norm_ does of `parameters()`.

        Args:
            max_norm: What their norm is at most.
            norm_type: 2.

        Returns:
            Their norm before; it is looked up when it is used, which must be behind optimizer.step().
        """
        if float(norm_type) != 2.0:
            raise InputError(f"norm_type={norm_type!r}: the ranks clip the 2-norm of all gradients alone")
        if not max_norm > 0:
            raise InputError(f"max_norm={max_norm!r}; wanted more than 0")
        if self._session is not None:
            self._calls.check_whole("clip_grad_norm_")
        clipped_to = math.inf if self._max_norm is None else self._max_norm
        self._max_norm = min(float(max_norm), _UNCLIPPED, clipped_to)
        handle = weakref.ref(self)
        norm = clipping.GradNorm.of(lambda: _there(handle)._settle())
        self._norms.append((norm, clipped_to))
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients of this step.

        Args:
            set_to_none: Either way there are none.
        """
        self._max_norm = None
        self._norms = []
        if self._session is None:
            return
        try:
            self._calls.check_whole("zero_grad()")
        finally:
            self._calls.forget()
            self._guarded(self._steps.zero)

    # --- Weights --------------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> tuple[int, int]:
        """Changes when the weights do."""
        return self._num_updates, self.num_rewinds

    def read_through(self) -> None:
        """Before a parameter is read here: the module has the weights as they are now."""
        if self._session is None or self._is_reading:
            return
        if not self._calls.is_under_way:
            self._calls.check_whole("a reading of weights")
        if self._is_current():
            return
        self._is_reading = True
        try:
            self._refresh()
        finally:
            self._is_reading = False

    def _is_current(self) -> bool:
        return self._current == self._now

    def _refresh(self) -> None:
        self.sync()

    def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:
        """The module's, for an optimizer.

        Args:
            recurse: As of torch.nn.Module.
        """
        yield from self.module.parameters(recurse)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The module's.

        Args:
            args: As of torch.nn.Module.
            kwargs: As of torch.nn.Module.
        """
        yield from self.module.named_parameters(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The weights as they are now, by the names that the module has.

        Args:
            args: As of torch.nn.Module; without effect.
            kwargs: The same.
        """
        if self._session is None:
            own: dict[str, Any] = self.module.state_dict()
            return own
        session = self._session
        with remote_tensors.without_reading():
            now: dict[str, Any] = self._guarded(lambda: weights_of(self.module, self._model.graph.description, session))
        return now

    def averaged_state_dict(self) -> dict[str, Any]:
        """The average of the weights that the job keeps (`train.ema_decay`) as it is now, by the names that the module has. What it has no average of, as
        buffers and frozen parameters, is as of `state_dict`.

        Raises InputError: it keeps none.
        """
        session = self.session
        with remote_tensors.without_reading():
            now: dict[str, Any] = self._guarded(lambda: weights_of(self.module, self._model.graph.description, session, averaged=True))
        return now

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Gives the training these weights; the optimizer's states stay.

        Args:
            state_dict: As of the module.
            strict: Whether it must have all of them, and nothing else.
            assign: False.
        """
        if self._session is None:
            return self.module.load_state_dict(state_dict, strict=strict, assign=assign)
        for owner in filter(None, map(remote_tensors.owner_of, state_dict.values())):
            owner.read_through()
        with remote_tensors.without_reading():
            return self._load_weights(state_dict, strict, assign)

    def _load_weights(self, state_dict: Mapping[str, Any], strict: bool, assign: bool) -> Any:
        exported, own = self._model.graph.description, self.module.state_dict()
        if changed := [n for n in exported.frozen if n in state_dict and n in own and not torch.equal(own[n], state_dict[n].to(own[n].dtype))]:
            raise InputError(f"{changed[0]} is frozen, and the ranks have it as it was when the training began: load it before the first forward")
        try:
            result = self.module.load_state_dict(state_dict, strict=strict, assign=assign)
        finally:  # Also of one that fails, and has written some.
            self._changes.note_tensors(state_dict)
        sources = {name: exported.aliases.get(name, name) for name in state_dict}
        known = {*exported.parameters, *exported.buffers} - set(exported.frozen)
        self._load({f"weights/{source}": state_dict[name] for name, source in sources.items() if source in known})
        return result

    def full_optim_state_dict(self) -> dict[str, Any]:
        """The optimizer's states, whole: `state` by parameter's name, each with its tensors and `step`; and the optimizer's `param_groups`, of several
        optimizers those of one behind those of another."""
        found: dict[str, dict[str, Any]] = {}
        own = {name: p.shape for name, p in self.module.named_parameters()}
        for kind in sorted({name.partition("/")[0] for name in self.session.state_names()} - {"weights"}):
            for name, tensor in self._read(kind).items():
                # A program may have a parameter's heads apart. Adafactor has sums of rows and columns.
                if name in own and tensor.numel() == own[name].numel():
                    tensor = tensor.reshape(own[name])
                found.setdefault(name, {"step": torch.tensor(float(self.optimizer_step))})[kind] = tensor
        by_id = {id(p): name for name, p in self.module.named_parameters()}
        groups = [{**g, "params": [by_id[id(p)] for p in g["params"]]} for o in self._optimizers for g in o.param_groups]
        return {"state": found, "param_groups": groups}

    def load_full_optim_state_dict(self, state: Mapping[str, Any]) -> None:
        """Gives the training these states of the optimizer.

        Args:
            state: As `full_optim_state_dict` gave it. Of another step, of all parameters: the optimizer goes on from there.
        """
        counting = self._groups.counting or with_states(self.session)
        steps = {float(of["step"]) for name, of in state["state"].items() if name in counting}
        if steps - {float(self.optimizer_step)} and (len(steps) > 1 or (with_states(self.session) & counting) - set(state["state"])):
            raise InputError(
                f"the optimizer's states are of step {sorted(steps)[0]:g}, the training is at step {self.optimizer_step}: its next updates would be "
                "corrected for other steps. Give the states of all parameters, of one step"
            )
        self._steps_before = int(next(iter(steps), self.optimizer_step)) - self.step_number
        self._load({f"{kind}/{name}": t for name, of in state["state"].items() for kind, t in of.items() if kind != "step"})

    def sync(self) -> torch.nn.Module:
        """Puts the weights as they are now into the module, and returns it."""
        if self._session is None:
            return self.module
        self._check_weights()
        weights, now = self.state_dict(), self._now
        with remote_tensors.without_reading():
            self.module.load_state_dict(weights)
        self._changes.note_tensors()
        self._current = now
        return self.module

    def save_pretrained(self, folder: str | Path, *, state_dict: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """Writes the model with its weights as they are now, as its own `save_pretrained` does; without that, `model.safetensors`.

        Args:
            folder: Where to; made if it is not there.
            state_dict: Other weights that are written in their place, as `averaged_state_dict()`.
            kwargs: Of the model's own.
        """
        self.sync()
        if hasattr(self.module, "save_pretrained"):
            self.module.save_pretrained(folder, **kwargs, **({} if state_dict is None else {"state_dict": state_dict}))
            return
        if kwargs:
            raise InputError(f"{next(iter(kwargs))}= is for a model with a save_pretrained of its own; {type(self.module).__name__} has none")
        from tacc.exporting.weights import write_safetensors

        Path(folder).mkdir(parents=True, exist_ok=True)
        write_safetensors(Path(folder) / "model.safetensors", self.module.state_dict() if state_dict is None else state_dict)

    def _read(self, kind: str) -> dict[str, torch.Tensor]:
        session = self.session
        found: dict[str, torch.Tensor] = self._guarded(lambda: assembled(session, kind))
        return found

    def _load(self, states: Mapping[str, torch.Tensor]) -> None:
        self._steps.settle("loading states")
        named = named_states(self.session, states)
        client = self.session.client
        if self._options.uploads(client):
            sent = upload_states(client, named)
            self._guarded(lambda: self.session.load(sent))
            return
        store, private = (self._options.cache_dir, False) if self._options.cache_dir else default_store(client)
        folder = write_states(store, named, private=private)
        try:
            self._guarded(lambda: self.session.load(folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


_OPEN: weakref.WeakSet[AcceleratedModel] = weakref.WeakSet()
os.register_at_fork(after_in_child=_OPEN.clear)  # A child that ends has not ended the training.


def _there(handle: weakref.ref[AcceleratedModel]) -> AcceleratedModel:
    """The model. TaccError: it has gone."""
    if (model := handle()) is None:
        raise TaccError("the model that this came from is closed: keep what tacc.accelerate returns as long as you train with it")
    return model


@atexit.register
def _close_all() -> None:
    """A script that ends has ended its trainings; one that dies has not."""
    error = script_died_of()
    for model in list(_OPEN):
        if error is not None and is_failure(error):
            with contextlib.suppress(KeyboardInterrupt):  # Another one: the job ends by itself.
                model._cancel(error, takes_weights=False)  # Nobody will read them.
        elif (ended := model._leave()) is not None:
            ended[0].finish_alone(takes_weights=False)
