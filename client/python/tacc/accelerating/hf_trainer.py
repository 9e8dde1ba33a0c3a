"""What `tacc.accelerate_hf_trainer` changes of `transformers.Trainer`, and back."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import os
import secrets
import time
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import transformers
from accelerate.optimizer import AcceleratedOptimizer
from transformers import Trainer, TrainingArguments

from tacc.accelerating.job import Options
from tacc.accelerating.trainer_model import TrainerModel
from tacc.accelerating.training import is_failure
from tacc.client import Job
from tacc.config import Config
from tacc.errors import InputError, TaccError

_NEVER = 1_000_000_000

# Methods that are changed, and what they take.
_METHODS: dict[str, list[str]] = {
    "_build_accelerator_args": ["self", "kwargs"],
    "_wrap_model": ["self", "model", "training", "dataloader"],
    "_clip_grad_norm": ["self", "model"],
    "_get_grad_norm": ["self", "model", "grad_norm"],
    "evaluation_loop": ["self", "dataloader", "description", "prediction_loss_only", "ignore_keys", "metric_key_prefix"],
    "save_model": ["self", "output_dir", "_internal_call"],
    "_save_checkpoint": ["self", "model", "trial"],
    "_finalize_training": ["self", "trial", "num_train_samples", "start_time"],
}

# Arguments that are refused if they are set, and what to do.
_REFUSED = {
    "deepspeed": 'leave it out: config={"dist": {"fsdp": {"size": N}}} shards as ZeRO does',
    "fsdp": 'leave it out: config={"dist": {"fsdp": {"size": N}}} shards the model over N workers',
    "parallelism_config": 'leave it out: config={"dist": ...} lays the model out',
    "neftune_noise_alpha": "leave it out: noise that a hook adds to embeddings is no part of an exported model",
    "use_liger_kernel": "leave it out: its kernels cannot be exported, and the workers have their own",
    "debug": "leave it out: the model does not run in this process",
}
# Those that have no meaning, and why.
_MEANINGLESS = {
    "torch_compile": "the whole training is compiled anyway",
    "auto_find_batch_size": "memory is planned before the training begins",
    "torch_empty_cache_steps": "the memory of the workers is planned",
    "bf16_full_eval": "evaluation computes as training does, as bf16 says",
    "fp16_full_eval": "evaluation computes as training does, as fp16 says",
    "tf32": 'it is of the workers: config={"compute": {"tf32": True}}',
}

_log = logging.getLogger("transformers.trainer")
_installed: AcceleratedTrainer | None = None


class AcceleratedTrainer:
    """While it is in place, trainings of `transformers.Trainer` run in jobs. `tacc.accelerate_hf_trainer` makes it.

    `undo()`, or the end of a `with`, ends that, and the newest job.

    Args:
        options: Of the jobs.
        max_length: As of `accelerate_hf_trainer`.
    """

    def __init__(self, options: Options, max_length: int | None):
        self._options = options
        self._max_length = max_length
        self._originals: dict[tuple[type, str], Callable[..., Any]] = {}
        self._model: TrainerModel | None = None
        self._restore: Callable[[], None] = lambda: None
        self._told: set[str] = set()

    @property
    def job(self) -> Job:
        """The newest job. InputError: there is none yet."""
        if self._model is None:
            raise InputError("no Trainer has begun to train since; the job begins with the first batch of trainer.train()")
        return self._model.job

    def undo(self) -> None:
        """Ends the newest job, whose trainer has its weights then, and gives `Trainer` its own methods back."""
        self._undo(None)

    def _undo(self, error: BaseException | None) -> None:
        global _installed
        try:
            self._end_job(error)
        finally:
            for (of, name), original in self._originals.items():
                setattr(of, name, original)
            self._originals = {}
            _installed = None if _installed is self else _installed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._undo(error if is_failure(error) else None)

    # --- The changed methods --------------------------------------------------------------------------------------------

    def _install(self) -> Self:
        """Changes `Trainer`. TaccError: it has other methods than those that are known."""
        global _installed
        _check_methods()
        if _installed is not None:
            _installed.undo()
        for name in _METHODS:
            self._change(Trainer, name, getattr(self, f"_changed_{name.lstrip('_')}"))
        self._change(TrainingArguments, "__post_init__", self._changed_post_init)
        _installed = self
        return self

    def _change(self, of: type, name: str, to: Callable[..., Any]) -> None:
        original = self._originals[of, name] = getattr(of, name)

        def changed(instance: Any, *args: Any, **kwargs: Any) -> Any:
            return to(original, instance, *args, **kwargs)

        changed.__name__, changed.__doc__ = name, original.__doc__
        setattr(of, name, changed)

    def _changed_post_init(self, original: Callable[..., Any], args: Any) -> None:
        """The model lies in the host's memory, whatever this machine has."""
        args.use_cpu = True
        original(args)

    def _changed_build_accelerator_args(self, original: Callable[..., Any], trainer: Any, **kwargs: Any) -> dict[str, Any]:
        """The accelerator computes nothing; the precision is the job's."""
        return {**original(trainer, **kwargs), "mixed_precision": "no"}

    def _changed_wrap_model(self, original: Callable[..., Any], trainer: Any, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        """In place of the model, what trains it."""
        current = self._of(trainer)
        if not training:
            return current if current is not None else original(trainer, model, training, dataloader)
        self._check(trainer.args)
        self._end_job()
        optimizer = trainer.optimizer
        while isinstance(optimizer, AcceleratedOptimizer):
            optimizer = optimizer.optimizer
        if getattr(trainer.model, "is_activation_checkpointing", False):
            trainer.model.activation_checkpointing_disable()  # memory.gc does it.
        self._model = TrainerModel(trainer, optimizer, self._options_of(trainer), self._max_length, _tell)
        self._let_compute_loss(trainer, self._model)
        trainer.accelerator._models.append(trainer.model)  # So Trainer sees that it need not prepare it for an evaluation.
        return self._model

    def _let_compute_loss(self, trainer: Any, by: TrainerModel) -> None:
        """The trainer's `compute_loss`, which may be a subclass's, asks its model."""
        own, model_of, trainer_of = trainer.__dict__.get("compute_loss"), weakref.ref(by), weakref.ref(trainer)

        def compute(*args: Any, **kwargs: Any) -> Any:
            of: Any = trainer_of()
            return own(*args, **kwargs) if own is not None else type(of).compute_loss(of, *args, **kwargs)

        def compute_loss(model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
            of_job = model_of()
            if of_job is None or model is not of_job:
                return compute(model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)
            return of_job.compute_loss(compute, inputs, return_outputs, num_items_in_batch)

        def restore() -> None:
            if (of := trainer_of()) is not None:
                of.__dict__.pop("compute_loss", None) if own is None else of.__dict__.update(compute_loss=own)

        trainer.compute_loss = compute_loss
        self._restore = restore

    def _changed_clip_grad_norm(self, original: Callable[..., Any], trainer: Any, model: Any) -> Any:
        """The ranks clip."""
        return model.clip_grad_norm_(trainer.args.max_grad_norm) if isinstance(model, TrainerModel) else original(trainer, model)

    def _changed_get_grad_norm(self, original: Callable[..., Any], trainer: Any, model: Any, grad_norm: Any = None) -> Any:
        """Theirs, also where they do not clip."""
        if not isinstance(model, TrainerModel):
            return original(trainer, model, grad_norm)
        return model.clip_grad_norm_(float("inf")) if grad_norm is None else grad_norm

    def _changed_evaluation_loop(
        self, original: Callable[..., Any], trainer: Any, dataloader: Any, description: str, prediction_loss_only: bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Metrics and generation may look at the trainer's model; outputs are not sent where nobody does."""
        if (current := self._of(trainer)) is not None:
            current.refresh()
            loss_only = trainer.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
            computes = type(trainer).compute_loss is not Trainer.compute_loss
            current.wants_outputs = computes or not (loss_only or getattr(trainer.args, "predict_with_generate", False))
        return original(trainer, dataloader, description, prediction_loss_only, *args, **kwargs)

    def _changed_save_model(self, original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """With the weights as they are now."""
        return self._refreshed(original, trainer, *args, **kwargs)

    def _changed_save_checkpoint(self, original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """The same."""
        return self._refreshed(original, trainer, *args, **kwargs)

    def _changed_finalize_training(self, original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """The same, for callbacks and for whoever takes `trainer.model` then."""
        return self._refreshed(original, trainer, *args, **kwargs)

    def _refreshed(self, original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
        if (current := self._of(trainer)) is not None:
            current.refresh()
        return original(trainer, *args, **kwargs)

    # --- The job --------------------------------------------------------------------------------------------------------

    def _of(self, trainer: Any) -> TrainerModel | None:
        """What trains the trainer's model, while its job runs."""
        current = self._model
        is_its = current is not None and current.is_open and current.trainer is trainer and current.module is trainer.model
        return current if is_its else None

    def _end_job(self, error: BaseException | None = None) -> None:
        model = self._model
        if model is None:
            return
        if (trainer := model.trainer) is not None:
            trainer.model_wrapped = trainer.model
        self._restore()
        model.end(error)

    def _options_of(self, trainer: Any) -> Options:
        given, args = self._options.config, trainer.args
        config: dict[str, Any] = given.to_dict() if isinstance(given, Config) else dict(given or {})
        compute = {"fp16": True} if args.fp16 else {"bf16": True} if args.bf16 else {}
        memory = {"gc": True} if args.activation_checkpointing else {}
        # Trainer writes the checkpoints.
        folder = os.path.join(os.path.abspath(args.output_dir), "tacc", f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")
        sections = {"compute": compute, "memory": memory, "train": {"seed": args.seed}, "checkpoint": {"dir": folder, "save_steps": _NEVER}}
        merged = {name: {**section, **config.get(name, {})} for name, section in sections.items()}
        config = {**config, **{name: section for name, section in merged.items() if section}}
        return dataclasses.replace(self._options, config=config, max_steps=max(trainer.state.max_steps - trainer.state.global_step, 1))

    def _check(self, args: Any) -> None:
        if args.world_size > 1 or args.n_gpu > 1:
            raise InputError(_LAUNCHED)
        if args.device.type != "cpu":
            raise InputError(
                f"the TrainingArguments say that the model is on {args.device}: make them after tacc.accelerate_hf_trainer(), or with use_cpu=True; the "
                "devices are the workers'"
            )
        for name, what in _REFUSED.items():
            if getattr(args, name, None):
                raise InputError(f"TrainingArguments have {name}={getattr(args, name)!r}, which a job cannot follow; {what}")
        for name, why in _MEANINGLESS.items():
            if getattr(args, name, None) and name not in self._told:
                self._told.add(name)
                _log.warning("tacc: %s of TrainingArguments has no meaning: %s", name, why)


_LAUNCHED = (
    "this script was started as one of several processes (torchrun, accelerate launch), each of which would train a job of its own: start it once, with "
    'python; config={"resources": {"workers": N}} says how many workers train'
)


def accelerate_hf_trainer(options: Options, max_length: int | None) -> AcceleratedTrainer:
    """As `tacc.accelerate_hf_trainer`."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(_LAUNCHED)
    return AcceleratedTrainer(options, max_length)._install()


def _check_methods() -> None:
    for name, wanted in _METHODS.items():
        method = getattr(Trainer, name, None)
        found = list(inspect.signature(method).parameters) if method is not None else None
        if found != wanted:
            has = "no such method" if found is None else f"the parameters {', '.join(found)}"
            raise TaccError(
                f"transformers {transformers.__version__}: Trainer.{name} has {has}, not {', '.join(wanted)}: this tacc knows the Trainer of transformers "
                "5.23; install that, or train with tacc.accelerate"
            )


def _tell(model: TrainerModel) -> None:
    job: Mapping[str, Any] = {"name": model.job.status().name, "id": model.job.id}
    _log.warning("tacc: the job %s trains the model; `taccctl watch %s` shows it", job["name"], job["id"])
