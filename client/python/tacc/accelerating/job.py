"""The job that trains an accelerated model: from module, batch, optimizer and config to a session."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tacc.accelerating.changes import in_evaluation, in_training
from tacc.accelerating.layer_classes import without_classes
from tacc.accelerating.optimizers import Groups
from tacc.accelerating.store import Kept, default_store, folders_in_use, inputs_of_outputs, keep, sees_this_machine, share_of_disk, upload_model
from tacc.client import Client, Job
from tacc.config import Config
from tacc.errors import InputError
from tacc.exporting.export import GRAPH, ExportedGraph, export_graph
from tacc.exporting.forward import NoLossError
from tacc.live.pad import next_length
from tacc.live.session import Session

_COTANGENT = "gradient_of."  # Input names: of the gradient of what the model returns.
_MAX_STEPS = 1_000_000_000  # A loop ends when it likes.


@dataclass
class Model:
    """A model as the ranks compute it.

    Attributes:
        graph: What was exported.
        example: The batch of it.
        optional: Inputs on which nothing that the model returns depends.
        cotangents: By input, the output of which it takes the gradient: the loss is computed here. Empty: by the ranks.
        kept: Its folder, once it has one that workers read.
    """

    graph: ExportedGraph
    example: Any
    optional: set[str]
    cotangents: dict[str, str]
    kept: Kept | None = None


def check_plain(module: Any) -> None:
    """InputError: it is a module that PyTorch trains in another way, around the one to give."""
    if isinstance(module, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
        raise InputError(f"the model is wrapped in a {type(module).__name__}; give the plain module, which is its .module: the job has its own layout (dist)")
    if isinstance(getattr(module, "_orig_mod", None), torch.nn.Module):
        raise InputError("the model is one of torch.compile; give the plain module, as it was before that: the job is compiled as a whole")


def export(module: torch.nn.Module, batch: Any, loss: Any, *, by_samples: bool) -> Model:
    """Exports the module as it trains. Without a loss of its own, and none given, the gradients of its outputs are inputs of the graph."""
    with in_training(module):
        try:
            graph = export_graph(module, batch, loss=loss, by_samples=by_samples, weighs_rows=True)
            cotangents: dict[str, str] = {}
        except NoLossError:
            graph, batch, cotangents = _export_outputs(module, batch)
    inputs = {given.name for given in graph.description.inputs}
    return Model(graph, batch, inputs - inputs_of_outputs(graph.text), cotangents)


def _export_outputs(module: torch.nn.Module, batch: Any) -> tuple[ExportedGraph, Any, dict[str, str]]:
    if changed := [name for name, m in module.named_modules() if m.training and differs_in_training(m)]:
        raise InputError(_difference(changed))
    with in_evaluation(module), torch.no_grad():
        returned = module(**batch)
    leaves = {_path_name(path): leaf for path, leaf in pytree.tree_flatten_with_path(returned)[0] if isinstance(leaf, torch.Tensor)}
    leaves = {name: leaf for name, leaf in leaves.items() if leaf.is_floating_point()}
    cotangents = {f"{_COTANGENT}{name}": name for name in leaves}
    with_gradients = {**batch, **{given: torch.zeros_like(leaves[name], dtype=torch.float32) for given, name in cotangents.items()}}

    def product(outputs: Any, whole: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Whose gradients are those of whatever has these gradients by the outputs."""
        found = {_path_name(path): leaf for path, leaf in pytree.tree_flatten_with_path(outputs)[0]}
        return sum((found[name].float() * whole[given]).sum() for given, name in cotangents.items())

    def exported() -> ExportedGraph:
        return export_graph(module, with_gradients, loss=product, makes_up_parts=True)

    graph = exported()
    with in_evaluation(module):
        if (where := _first_difference(graph.text, exported().text)) is not None:
            raise InputError(_difference([where]))
    return graph, with_gradients, cotangents


def _first_difference(training: str, evaluation: str) -> str | None:
    """Where the graph of a training is random, or another one than that of an evaluation; None: nowhere."""
    random = [line for line in training.splitlines() if ", %step, " in line or " = random %step, " in line]  # it draws by the number of the step
    others = [a or b for a, b in zip_longest(training.splitlines(), evaluation.splitlines(), fillvalue="") if a != b]
    if not random + others:
        return None
    return (random + others)[0].partition(" @")[2] or "its forward"


def _difference(where: list[str]) -> str:
    return (
        f"the model returns no loss, and computes otherwise in training than in evaluation ({', '.join(where[:3])}): give its loss to "
        "tacc.accelerate, as loss=lambda outputs, batch: ..., so that one computation has both; batches are then whole: model(source, labels).loss"
    )


def differs_in_training(module: torch.nn.Module) -> bool:
    """Whether a module, of its own and not by its parts, computes otherwise in training than in evaluation."""
    if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
        return True
    rate = getattr(module, "p", getattr(module, "dropout", 0.0))
    return "Dropout" in type(module).__name__ and isinstance(rate, float) and rate > 0


def _path_name(path: Any) -> str:
    return ".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path) or "output"


@dataclass
class Options:
    """See `tacc.accelerate`."""

    config: Config | Mapping[str, Any] | None
    client: Client | str | None
    name: str | None
    max_steps: int | None
    keep_seconds: float
    cache_dir: Path | None
    mean_over: str
    upload: bool | None = None
    buckets: list[int] = field(default_factory=list)
    fills: dict[str, float] = field(default_factory=dict)

    @property
    def keeps_average(self) -> bool:
        """Whether the job has `train.ema_decay`, so that evaluations are of an average of the weights."""
        return _as_dict(self.config).get("train", {}).get("ema_decay") is not None

    def uploads(self, client: Client) -> bool:
        """Whether weights go to the coordinator, and not into a folder that workers read."""
        if self.upload is not None:
            return self.upload
        return self.cache_dir is None and not sees_this_machine(client)


def _as_dict(config: Config | Mapping[str, Any] | None) -> dict[str, Any]:
    return config.to_dict() if isinstance(config, Config) else dict(config or {})


def start(module: torch.nn.Module, model: Model, groups: Groups, batch_size: int, options: Options) -> tuple[Job, Session]:
    """Submits the job and waits until it runs."""
    client = options.client if isinstance(options.client, Client) else Client(options.client)
    fields = spec(module, model, graph_of(model, options, client), groups.train(), batch_size, options)
    if not fields.get("dist", {}).get("pp"):  # A loop sends one micro-batch after the other, and stages work on several at once.
        fields["dist"] = {**fields.get("dist", {}), "pp": {"size": 1}}
    # As PyTorch: no clipping but by clip_grad_norm_, no other precision but by config.
    fields["train"]["max_grad_norm"] = 0.0
    fields["compute"] = {"bf16": False, **fields.get("compute", {})} if not fields.get("compute", {}).get("fp16") else fields["compute"]
    job = client.submit(fields)
    session = None
    try:
        session = Session(job)
        groups.check_states(session.state_names())
        if options.mean_over == "micro_batch" and session.num_micro_batches > 1:
            raise InputError(
                f'mean_over="micro_batch": the job splits a batch into {session.num_micro_batches} parts, so that their means would be other ones; let '
                f"config have train.per_device_train_batch_size = {batch_size} over the number of ranks that share a batch"
            )
        return job, session
    except BaseException:
        if session is not None:
            session.close()
        job.cancel(now=True)  # Nobody else would.
        raise


def check_average(model: Model, options: Options) -> None:
    """InputError: the loop computes the loss of outputs, which would be those of an average of the weights."""
    if options.keeps_average and model.cotangents:
        raise InputError(
            "train.ema_decay: what the model returns would be computed with the average of the weights, and the loop makes its loss of that: give loss= to "
            "tacc.accelerate, or let the model return its loss"
        )


def check_lengths(model: Model, options: Options) -> None:
    """InputError: the model cannot have samples of several lengths."""
    if not options.buckets:
        return
    if model.cotangents:
        raise InputError("buckets= needs the model's loss: give loss= to tacc.accelerate, or let the model return one")
    if not model.graph.description.any_length:
        notes = [note for note in model.graph.description.notes if "length" in note or "tokens" in note]
        raise InputError(
            f"buckets={options.buckets}: the exported model has one length{' (' + '; '.join(notes) + ')' if notes else ''}: leave buckets out, and pad all "
            "samples to that"
        )
    next_length(options.buckets, model.graph.description.seq_len)  # Before there is a job.


def graph_of(model: Model, options: Options, client: Client) -> str:
    """What a job names the model's graph by: a file in a folder that the client's workers see, with the weights beside it, or an upload."""
    if options.uploads(client):
        return upload_model(client, model.graph)
    if options.cache_dir is not None:  # What is there is the user's to remove.
        model.kept = keep(model.graph, options.cache_dir)
    else:
        store, private = default_store(client)
        model.kept = keep(model.graph, store, private=private, most_bytes=share_of_disk(store), in_use=lambda: folders_in_use(client))
    return str(model.kept.path / GRAPH)


def spec(module: torch.nn.Module, model: Model, graph: str, train: Mapping[str, Any], batch_size: int, options: Options) -> dict[str, Any]:
    """The job, as a dict of its fields; those of `train` are laid over the config's."""
    config = without_classes(module, model.graph.description.units, _as_dict(options.config))
    if config.get("model") or config.get("data"):
        raise InputError("config has the section model or data: an exported model's data is what its batches are; leave them out")
    name = options.name or config.get("name") or re.sub("[^a-z0-9-]+", "-", type(module).__name__.lower()).strip("-") or "model"
    given = {k: v for k, v in config.get("train", {}).items() if k not in ("max_steps", "global_batch_size")}
    max_steps = options.max_steps or config.get("train", {}).get("max_steps") or _MAX_STEPS
    data: dict[str, Any] = {"client": {"wait_seconds": options.keep_seconds}}
    if model.graph.description.seq_len >= 2:
        data["seq_len"] = model.graph.description.seq_len
    if options.buckets:
        data["seq_len"] = max(options.buckets)
        data["client"]["buckets"] = options.buckets
    # Of this training alone, however soon another of its name begins.
    checkpoint = {"dir": f"runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}", **config.get("checkpoint", {})}
    return {
        **config, "name": name, "model": {"graph": graph}, "data": data, "checkpoint": checkpoint,
        "train": {**given, **train, "max_steps": max_steps, "global_batch_size": batch_size},
    }
