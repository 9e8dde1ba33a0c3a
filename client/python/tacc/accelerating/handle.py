"""The handle that `tacc.accelerate` gives: it feels like the model, and trains where the workers are."""

from __future__ import annotations

import atexit
import copy
import math
import os
import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tacc.accelerating import clipping, optimizer_states
from tacc.accelerating.batches import Batches, as_batch, names, takes
from tacc.accelerating.changes import Changes, in_evaluation, in_training
from tacc.accelerating.job import Model, Options, check_lengths, export, start
from tacc.accelerating.job_notes import CheckpointWatch, say_where_it_begins
from tacc.accelerating.lengths import Lengths
from tacc.accelerating.optimizers import Groups, find_optimizer
from tacc.accelerating.outputs import ModelOutputs, loss_tensor, output_tensors, refusing
from tacc.accelerating.states import as_tensor, assembled, named_states, weights_of, with_states
from tacc.accelerating.steps import MicroBatch, Steps
from tacc.accelerating.store import default_folder, upload_states, write_states
from tacc.client import Job
from tacc.errors import InputError, TaccError
from tacc.exporting.example import Example
from tacc.exporting.forward import Loss, LossWithModel
from tacc.live.session import Session, SessionRestartedError, StepResult

_UNCLIPPED = 3e38


class AcceleratedModel(torch.nn.Module):  # type: ignore[misc]
    """A model that a job trains. `tacc.accelerate` makes it; the job begins at its first forward.

        out = model(**batch)
        out.loss.backward()
        optimizer.step()

    Attributes of the module are its too. Its parameters are the module's: they stay as they were until `sync`.

    Args:
        module: The model.
        options: As given to `tacc.accelerate`.
        optimizer: As there.
        loss: As there.
    """

    def __init__(self, module: torch.nn.Module, options: Options, optimizer: torch.optim.Optimizer | None, loss: Loss | None):
        super().__init__()
        self.module = module
        self._options = options
        self._optimizer = optimizer
        self._loss = loss
        self._job: Job | None = None
        self._session: Session | None = None
        self._ended_path = ""
        self._max_norm: float | None = None
        self._norms: list[tuple[clipping.GradNorm, float]] = []  # That were asked for, and what they were clipped to before; of the next update,
        self._norms_under_way: list[tuple[clipping.GradNorm, float]] = []  # and of the one under way.
        self._num_updates = 0
        self.trained: set[int] = set()
        """By id, the parameters that the ranks train."""
        self.loader_state: bytes | None = None
        """What checkpoints keep with the next update, as the position of a loader; `AsyncLoader` sets it."""
        self.num_rewinds = 0
        """How often the training has begun at another step than the loop was at: `session.state` is what was kept with that step."""
        self._restarted: SessionRestartedError | None = None  # That the next command raises.
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
            made = AcceleratedModel(copy.deepcopy(self.module, memo), self._options, None, self._loss)
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
        optimizer = self._optimizer or find_optimizer(self.module.parameters())
        if optimizer is None:
            raise InputError("no optimizer has the model's parameters: make one of model.parameters() before the first forward, or give optimizer=")
        clipping.check(dict(self.module.named_parameters()))
        model = export(self.module, batch, self._loss, by_samples=self._options.mean_over == "micro_batch")
        check_lengths(model, self._options)
        groups = self._groups_of(optimizer, model)
        batches = self._batches_of(model)
        self._job, self._session = start(self.module, model, groups, batches.size, self._options)
        self._model, self._batches, self._groups, self._optimizer = model, batches, groups, optimizer
        self._steps = Steps(self._session)
        self.num_rewinds = 1 if self._session.step_number > 0 else 0
        self.trained = groups.trained
        clipping.take(self.module.parameters(), self)
        with in_training(self.module):
            self._changes = Changes(self.module)
        self._hook(optimizer)
        _OPEN.add(self)
        self._watch = CheckpointWatch(self._job)
        if self._session.step_number > 0:
            say_where_it_begins(self._job.status(), self._session.step_number)
        states = optimizer_states.taken(optimizer, self.module, 0)
        if states is not None and self._session.step_number == 0:  # Else the job goes on with its own.
            optimizer_states.load(self, states)

    def _groups_of(self, optimizer: torch.optim.Optimizer, model: Model) -> Groups:
        return Groups(optimizer, {id(p): name for name, p in self.module.named_parameters()}, set(model.graph.description.parameters))

    def _batches_of(self, model: Model) -> Batches:
        return Batches(model.graph.description, model.example, model.optional, frozenset(model.cotangents), lengths=self._lengths_of(model))

    def _lengths_of(self, model: Model) -> Lengths | None:
        buckets = self._options.buckets
        return Lengths(buckets, model.graph.description, self._fill_token(), self.module, self._returned_here) if buckets else None

    def _fill_token(self) -> int:
        token = getattr(getattr(self.module, "config", None), "pad_token_id", None)
        return token if isinstance(token, int) and token >= 0 else 0

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

    def _hook(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer finds no gradients, so that its own step does nothing; before it the ranks' is done."""
        handle = weakref.ref(self)
        zero_grad = optimizer.zero_grad

        def step(_: Any, args: Any, kwargs: Any) -> None:
            if (model := handle()) is None or model._session is None:
                raise TaccError("the model that this optimizer trains is closed")
            if any(a is not None for a in (*args[1:], kwargs.get("closure"))):
                raise InputError("optimizer.step(closure) is not supported: call the model and backward, then optimizer.step()")
            model._update()

        def zero(set_to_none: bool = True) -> None:
            if (model := handle()) is not None and model._session is not None:
                model.zero_grad()
            else:
                zero_grad(set_to_none)

        def is_open() -> bool:
            return (model := handle()) is not None and model._session is not None

        self._step_hook: Any = optimizer.register_step_pre_hook(step)
        self._unfollow = optimizer_states.follow(optimizer, handle, is_open)
        optimizer.zero_grad = zero
        self._unhook: Callable[[], Any] = lambda: optimizer.__dict__.pop("zero_grad", None)

    def close(self) -> None:
        """Ends the training: its last checkpoint and the trained model are written (`exported_path`), and the job has finished."""
        self._end(finish=True)

    def detach(self) -> None:
        """Lets go of the job without ending it: it waits for `keep_seconds` for another session, then saves and ends."""
        self._end(finish=False)

    def _end(self, *, finish: bool) -> None:
        if self._session is None or self._job is None:
            return
        session, self._session = self._session, None
        _OPEN.discard(self)
        self._step_hook.remove()
        self._unfollow()
        self._unhook()
        clipping.let_go(self.module.parameters())
        try:
            if finish:
                if self._restarted is not None:
                    raise self._restarted
                self._steps.abandon()
                session.finish()
                self._last_step = session.last_update or self._last_step
                self._ended_path = self._job.wait(progress=False).exported_path
        finally:
            self._watch.stop()
            session.close()  # The client stays: it is the job's.
            if self._model.kept is not None:
                self._model.kept.close()

    @property
    def exported_path(self) -> str:
        """After `close`: the folder of the trained model."""
        return self._ended_path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _settle(self) -> None:
        """Waits for the update under way. That the job has begun again meanwhile, the next command says."""
        if self._session is None:
            return
        try:
            self._session.end_update()
        except SessionRestartedError as error:
            self._restarted = error
        self._last_step = self._session.last_update or self._last_step
        for norm, clipped_to in self._norms_under_way:
            norm.know(min(self._last_step.grad_norm, clipped_to) if self._last_step is not None and self._restarted is None else math.nan)
        self._norms_under_way = []

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """The call; if the job has begun again, what the ranks had of the step is gone."""
        try:
            if self._restarted is not None:
                error, self._restarted = self._restarted, None
                raise error
            return call()
        except SessionRestartedError:
            self._steps.forget()
            self.num_rewinds += 1
            raise

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
        arrays, count, has_loss = self._batches.arrays(batch, trains=False)
        return self._evaluated(arrays, count, has_loss, self._batches.length_of(batch))

    def _check_unchanged(self, *, trains: bool) -> None:
        """InputError: the module is another one than the ranks have."""
        self._check_weights()
        self._changes.check_attributes(trains=trains)

    def _check_weights(self) -> None:
        self._changes.check_tensors()

    def _forward_in_training(self, batch: Any, num_items: float | None) -> ModelOutputs:
        arrays, count, _ = self._batches.arrays(batch, trains=True)
        length = self._batches.length_of(batch)
        made: MicroBatch = self._guarded(lambda: self._steps.run(arrays, num_items))
        loss = loss_tensor(made.loss, lambda weight: self._confirm(made, weight))
        num_updates = self._num_updates

        def fetch() -> dict[str, torch.Tensor]:
            if self._num_updates != num_updates:
                raise InputError("outputs are computed when they are looked at, and the weights have changed since this forward: read them before optimizer.step()")
            return output_tensors(self._outputs(arrays, count, length), refusing(self._no_gradients))

        return ModelOutputs(loss, self._names(), fetch)

    def _forward_here(self, batch: Any) -> Any:
        """Of a model whose loss is computed here: its outputs, whose gradients go to the ranks."""
        given = self._with_zeros(batch)
        arrays, count, _ = self._batches.arrays(given, trains=self.training and torch.is_grad_enabled())
        values = self._outputs(arrays, count)
        if self.training and torch.is_grad_enabled():
            values = output_tensors(values, lambda gradients: self._backward_from(arrays, gradients))
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
            whole[: len(gradients[name])] = gradients[name].numpy()
            with_gradients[inputs[given]] = whole
        session = self.session
        made = self._guarded(lambda: self._steps.run(with_gradients, float(session.micro_batch_size)))
        self._confirm(made, 1.0)

    def _confirm(self, made: MicroBatch, weight: float) -> None:
        if self._max_norm is not None:
            raise InputError("a backward came behind clip_grad_norm_ in the same step: the ranks clip the sum, once; clip before optimizer.step()")
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

    def _evaluated(self, arrays: dict[str, np.ndarray[Any, Any]], count: int, has_loss: bool, length: int) -> ModelOutputs:
        session = self.session
        result = self._guarded(lambda: session.forward(arrays, outputs=session.outputs))
        message = "the model is in evaluation, where there is no backward: call model.train()"
        values = {name: self._cut(self._shortened(name, value, length), count) for name, value in result.outputs.items()}
        loss = torch.tensor(result.loss) if has_loss else None
        if torch.is_grad_enabled():
            values = output_tensors(values, refusing(message)) if values else values
            loss = loss_tensor(result.loss, refusing(message)) if has_loss else None
        return ModelOutputs(loss, [name for name in self._names() if name in values], lambda: values)

    # --- Steps ----------------------------------------------------------------------------------------------------------

    def has_gradients(self) -> bool:
        """Whether backward was called since the last update."""
        return self._session is not None and self._steps.has_gradients

    def _update(self) -> None:
        self._updated(self._steps.begin_update)

    def _updated(self, update: Callable[[bytes | None, dict[float, float], float, int | None], Any]) -> None:
        state, self.loader_state = self.loader_state, None
        max_norm, self._max_norm = self._max_norm, None
        self._settle()  # Norms of the update before.
        counted = self.optimizer_step if self._steps_before else None
        rates = self._groups.learning_rates()
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
        arrays, _, _ = self._batches.arrays(batch, trains=True)
        session = self.session
        self._updated(
            lambda state, rates, norm, counted: session.step(arrays, state=state, learning_rates=rates, max_grad_norm=norm, optimizer_step=counted)
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
        clipped_to = math.inf if self._max_norm is None else self._max_norm
        self._max_norm = min(float(max_norm), _UNCLIPPED, clipped_to)
        norm = clipping.GradNorm.of(self._settle)
        self._norms.append((norm, clipped_to))
        return norm


    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients of this step.

        Args:
            set_to_none: Either way there are none.
        """
        self._max_norm = None
        self._norms = []
        if self._session is not None:
            self._guarded(self._steps.zero)

    # --- Weights --------------------------------------------------------------------------------------------------------

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
        now: dict[str, Any] = self._guarded(lambda: weights_of(self.module, self._model.graph.description, session))
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
        """The optimizer's states, whole: `state` by parameter's name, each with its tensors and `step`; and the optimizer's `param_groups`."""
        found: dict[str, dict[str, Any]] = {}
        for kind in sorted({name.partition("/")[0] for name in self.session.state_names()} - {"weights"}):
            for name, tensor in self._read(kind).items():
                found.setdefault(name, {"step": torch.tensor(float(self.optimizer_step))})[kind] = tensor
        by_id = {id(p): name for name, p in self.module.named_parameters()}
        assert self._optimizer is not None
        groups = [{**g, "params": [by_id[id(p)] for p in g["params"]]} for g in self._optimizer.param_groups]
        return {"state": found, "param_groups": groups}

    def load_full_optim_state_dict(self, state: Mapping[str, Any]) -> None:
        """Gives the training these states of the optimizer.

        Args:
            state: As `full_optim_state_dict` gave it. Of another step, of all parameters: the optimizer goes on from there.
        """
        steps = {float(of["step"]) for of in state["state"].values()}
        if steps - {float(self.optimizer_step)} and (len(steps) > 1 or with_states(self.session) - set(state["state"])):
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
        self.module.load_state_dict(self.state_dict())
        self._changes.note_tensors()
        return self.module

    def save_pretrained(self, folder: str | Path, **kwargs: Any) -> None:
        """Writes the model with its weights as they are now, as its own `save_pretrained` does; without that, `model.safetensors`.

        Args:
            folder: Where to; made if it is not there.
            kwargs: Of the model's own.
        """
        self.sync()
        if hasattr(self.module, "save_pretrained"):
            self.module.save_pretrained(folder, **kwargs)
            return
        from tacc.exporting.weights import write_safetensors

        Path(folder).mkdir(parents=True, exist_ok=True)
        write_safetensors(Path(folder) / "model.safetensors", self.module.state_dict())

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
        folder = write_states(self._options.cache_dir or default_folder(), named)
        try:
            self._guarded(lambda: self.session.load(folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


_OPEN: weakref.WeakSet[AcceleratedModel] = weakref.WeakSet()
os.register_at_fork(after_in_child=_OPEN.clear)  # A child that ends has not ended the training.


@atexit.register
def _close_all() -> None:
    """A script that ends has ended its trainings."""
    for model in list(_OPEN):
        try:
            model.close()
        except TaccError as error:
            print(f"tacc: {error}")
