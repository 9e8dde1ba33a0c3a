"""Any PyTorch model in a job: it is exported, trained by the workers and comes back, behind a handle that feels like the model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacc.config_base import check_names
from tacc.errors import InputError
from tacc.extras import what_to_install
from tacc.live.pad import bucket_lengths

if TYPE_CHECKING:
    import torch

    from tacc.accelerating.hf_trainer import AcceleratedTrainer
    from tacc.client import Client
    from tacc.config import Config

__all__ = ["accelerate", "accelerate_hf_trainer"]


def accelerate(
    model: torch.nn.Module, dataloader: Any = None, config: Config | Mapping[str, Any] | None = None, *,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    loss: Callable[[Any, Any], torch.Tensor] | None = None, client: Client | str | None = None, name: str | None = None, max_steps: int | None = None,
    keep_seconds: float = 600.0, cache_dir: str | os.PathLike[str] | None = None, mean_over: str = "step",
    upload: bool | None = None, buckets: Sequence[int] | int | None = None,
) -> Any:
    """Lets a job train the model: on this machine's workers, or on a cluster's, in any layout.

        model = tacc.accelerate(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for batch in loader:
            out = model(**batch)
            out.loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    The job begins at the first forward, whose batch the model is exported with (`export_model`). The weights lie once in a folder of this machine; a
    coordinator or workers of other machines are sent them, what they have already not again.

    Args:
        model: Any module that can be exported, of transformers or your own, on the CPU.
        dataloader: The loop's loader. It is read ahead (`AsyncLoader`), and returned beside the model.
        config: A `tacc.Config` or a dict: layout, precision, checkpoints, what of `train` is not the optimizer's. Precision is float32 without, and
            there is no pipeline: with `dist.pp` a loop calls `model.step(batch)`.
        optimizer: Of torch.optim: AdamW, Adam, SGD, Muon; Lion; Adafactor of transformers. Several, each with other parameters, are one update: Muon for
            matrices with AdamW for all else. None: those that are made of the model's parameters before the first forward. Their groups and options are the
            job's; learning rates and momenta (betas[0]; of several optimizers, of one kind) go with each update, as schedulers move them.
        loss: A function of (outputs, batch), of a model that returns none; batches are then whole: `model(source, labels).loss`. Without it the loss may
            be computed in the loop from what the model returns, which costs a second forward, and cannot be for models with dropout or batch norm.
        client: A `tacc.Client`, or an address. None: as `tacc.Client()`.
        name: Of the job. None: that of the config, or of the model's class.
        max_steps: Updates after which the job takes no more. None: as many as the loop makes.
        keep_seconds: How long the job waits when this process has died, before it saves a checkpoint and ends. 0: it waits without end.
        cache_dir: Where the model's graph and weights are kept, for the workers to read: on a cluster a folder that all of them see under the same
            path, and nothing is removed. None: on this machine, ~/.cache/tacc/models, of which models that were used longest ago go when all take a
            quarter of the file system.
        mean_over: What several micro-batches of a step weigh: "step": what they have of its targets, so that its loss is the mean over all of them;
            "micro_batch": each alike, as `(loss / n).backward()` means it where they have different numbers of targets. With as many it is the same.
        upload: Whether weights, and states that are loaded, are sent to the coordinator (`Client.upload`). None: where it, or a worker, is not of this
            machine, and there is no cache_dir.
        buckets: Tokens that samples may have, where batches have several lengths: [128, 256, 512], or the longest, for the powers of two below it. The
            job is compiled once for each. A batch of another length is filled up to the next one, on the right: `input_ids` with the config's
            `pad_token_id` or 0, `attention_mask` with 0, `labels` with -100, unless the config's `dataloader.pad_value_dict` has others. None: those of
            TorchAcc's `dataloader.buckets` or `dataloader.max_length` in the config; without them all batches have the first one's length.

    Returns:
        An `AcceleratedModel`; with `dataloader` a pair of it and an `AsyncLoader`.

    Raises:
        ImportError: torch is not installed.
        ConfigError: The config has a name that nobody knows.
        InputError: The model is wrapped in a DataParallel, or one of torch.compile; what is given as optimizer is none; or `buckets`, or `dataloader` of
            the config, is wrong.
    """
    try:
        from tacc.accelerating import loader_options
        from tacc.accelerating.handle import AcceleratedModel
        from tacc.accelerating.job import Options
        from tacc.accelerating.optimizers import as_list
    except ModuleNotFoundError as error:
        if (said := what_to_install(error)) is None:
            raise
        raise ImportError(f"tacc.accelerate: {said}", name=error.name) from error
    if mean_over not in ("step", "micro_batch"):
        raise InputError(f'mean_over={mean_over!r}; wanted "step" or "micro_batch"')
    check_names(config)
    padding = loader_options.taken(config, buckets)
    options = Options(
        padding.config, client, name, max_steps, keep_seconds, None if cache_dir is None else Path(cache_dir), mean_over, upload, padding.lengths,
        padding.fills,
    )
    handle = AcceleratedModel(model, options, as_list(optimizer), loss)
    if dataloader is None:
        return handle
    from tacc.live.async_loader import AsyncLoader

    return handle, AsyncLoader(dataloader, handle)


def accelerate_hf_trainer(
    config: Config | Mapping[str, Any] | None = None, *, client: Client | str | None = None, name: str | None = None, max_length: int | None = None,
    keep_seconds: float = 600.0, cache_dir: str | os.PathLike[str] | None = None, upload: bool | None = None,
    buckets: Sequence[int] | int | None = None,
) -> AcceleratedTrainer:
    """Lets jobs train what a script trains with `transformers.Trainer`, which stays as it is.

        tacc.accelerate_hf_trainer()
        trainer = Trainer(model, TrainingArguments("out", ...), train_dataset=..., ...)
        trainer.train()

    Losses, logs, callbacks, evaluations, predictions and checkpoints are Trainer's own. The job begins with the first batch of `train()`. It goes
    on for evaluations afterwards, and ends with the script, with the next `train()`, or with `undo()`.

    Args:
        config: As of `accelerate`. Precision, optimizer, schedule, seed and steps are those of `TrainingArguments`.
        client: As of `accelerate`.
        name: As of `accelerate`.
        max_length: Tokens of a sample, at most, where batches are padded to their own longest. None: the longest of the training's and the
            evaluation's data set, if they can be indexed and the collator is one of transformers that pads so; else as in the first batch.
        keep_seconds: As of `accelerate`.
        cache_dir: As of `accelerate`.
        upload: As of `accelerate`.
        buckets: As of `accelerate`: batches are filled up to the next of these lengths instead of the longest, of models without a decoder of its own
            length. In place of `max_length`.

    Returns:
        What has `job` and `undo()`; a context manager.

    Raises:
        ImportError: torch or transformers is not installed.
        ConfigError: The config has a name that nobody knows.
        InputError: The script was started as several processes.
        TaccError: This version of transformers has another Trainer.
    """
    try:
        from tacc.accelerating import hf_trainer
        from tacc.accelerating.job import Options
    except ModuleNotFoundError as error:
        if (said := what_to_install(error)) is None:
            raise
        raise ImportError(f"tacc.accelerate_hf_trainer: {said}", name=error.name) from error
    check_names(config)
    lengths = [] if buckets is None else bucket_lengths(buckets)
    if lengths and max_length is not None:
        raise InputError("max_length and buckets are both given; the longest of buckets is max_length")
    options = Options(config, client, name, None, keep_seconds, None if cache_dir is None else Path(cache_dir), "step", upload, lengths)
    return hf_trainer.accelerate_hf_trainer(options, max_length)
