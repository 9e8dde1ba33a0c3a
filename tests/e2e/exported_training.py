"""Exported models on the daemon beside plain PyTorch loops: what the tests of both kinds of models share.

A loop in float64 is what the daemon's steps are compared with, and the same loop in the daemon's precision says how far PyTorch itself is from it.
"""

import contextlib
import copy
import math
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tacc
import torch
from cluster import ROOT, Cluster
from safetensors.torch import load_file
from torch import nn

sys.path += [str(ROOT / "tests/exporting"), str(ROOT / "tests/parity")]
from references import KeepDouble
from torch_models import VOCABULARY, TorchModel, in_double

STEPS, SAMPLES, CLASSES = 10, 8, 5
# With an epsilon by which a gradient that is nothing but rounding makes no step of full size: else its sign decides the losses that follow.
ADAMW: dict[str, Any] = {"learning_rate": 1e-2, "adam_epsilon": 1e-4, "lr_scheduler_type": "constant"}
# Adam makes steps of full size of gradients that are nothing but rounding, as of a bias before a batch norm.
SGD: dict[str, Any] = {"optim": "sgd", "momentum": 0.9, "learning_rate": 0.005, "lr_scheduler_type": "constant"}


def optimizer_for(module: nn.Module) -> dict[str, Any]:
    return SGD if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules()) else ADAMW


AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
LOSS_SCALE = 4096.0  # in fp16: no step of the models overflows
COMPUTE = {"fp32": {"bf16": False}, "bf16": {"bf16": True}, "fp16": {"fp16": True, "grad_scaler": {"init_scale": LOSS_SCALE}}}
# Of ten steps: each one's loss, and the norm of its gradients before they are clipped.
Steps = list[tuple[float, float]]


@dataclass
class Trained:
    """An exported model, batches of it by the names of its inputs, and what a plain PyTorch loop in float64 makes of them."""

    model: tacc.Exported
    optimizer: dict[str, Any]
    precision: str  # that it trains in: fp32, bf16 or fp16
    batches: list[dict[str, np.ndarray]]
    exact: Steps
    own: Steps  # PyTorch's, in that precision
    returned: str
    outputs: np.ndarray  # of the first batch, in evaluation, after all steps
    state: dict[str, torch.Tensor]

    @property
    def losses(self) -> list[float]:
        return [loss for loss, _ in self.exact]


def distance(got: list[float], exact: list[float]) -> float:
    """The norm of the difference, as a part of the norm of the exact ones."""
    return math.dist(got, exact) / math.hypot(*exact)


def check_steps(got: Steps, model: Trained, of_own: float, floors: tuple[float, float], at_most: float) -> None:
    """Losses and norms are at most `of_own` times as far from float64 as PyTorch's own, and their floor more; never more than `at_most`, whatever PyTorch's are."""
    for quantity, ours, exact, own, floor in zip(("losses", "gradients' norms"), zip(*got), zip(*model.exact), zip(*model.own), floors):
        far, allowed = distance(ours, exact), min(of_own * distance(own, exact) + floor, at_most)
        print(f"{quantity}: {far:.1e} of {allowed:.1e}, PyTorch's own {distance(own, exact):.1e}")
        assert far <= allowed, f"{quantity}: {ours}; exact {exact}; PyTorch's own {own}"


def batch_like(example: Any, generator: torch.Generator) -> Any:
    """Of SAMPLES samples: masks of padded texts, ids of tokens, classes, or numbers."""
    named = example if isinstance(example, dict) else dict(enumerate(example))
    batch = {}
    for name, tensor in named.items():
        shape = (SAMPLES, *tensor.shape[1:])
        if tensor.is_floating_point():
            batch[name] = torch.randn(shape, generator=generator)
        elif name == "attention_mask":
            batch[name] = (torch.arange(shape[1]) < torch.randint(3, shape[1] + 1, (SAMPLES, 1), generator=generator)).long()
        else:
            low, high = (0, CLASSES) if len(shape) == 1 else (1, VOCABULARY)
            batch[name] = torch.randint(low, high, shape, generator=generator)
    return batch if isinstance(example, dict) else tuple(batch.values())


def export_and_train(model: TorchModel, folder: Path, optimizer: dict[str, Any]) -> Trained:
    exported = tacc.export_model(model.module, model.batch, folder, **model.options)
    return train_in_torch(model, exported, optimizer)


def loop(model: TorchModel, batches: list[Any], optimizer: dict[str, Any], precision: str) -> tuple[Steps, nn.Module]:
    """A plain PyTorch loop's steps, and the module after them. `precision`: fp64, fp32, or of autocast bf16 or fp16, which has a GradScaler."""
    is_exact = precision == "fp64"
    module = copy.deepcopy(model.module)
    module = module.double() if is_exact else module
    parameters, rate = list(module.parameters()), optimizer["learning_rate"]
    if optimizer.get("optim") == "sgd":
        update: torch.optim.Optimizer = torch.optim.SGD(parameters, rate, momentum=optimizer["momentum"])
    else:
        update = torch.optim.AdamW(parameters, rate, eps=optimizer["adam_epsilon"], weight_decay=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=LOSS_SCALE, enabled=precision == "fp16")
    made = []
    with KeepDouble() if is_exact else contextlib.nullcontext():
        for batch in batches:
            update.zero_grad()
            with torch.autocast("cpu", AUTOCAST.get(precision), enabled=precision in AUTOCAST):
                _, loss = model.run(module, in_double(batch) if is_exact else batch)
            scaler.scale(loss).backward()
            scaler.unscale_(update)
            norm = nn.utils.clip_grad_norm_(parameters, 1.0)
            scaler.step(update)
            scaler.update()
            made.append((loss.item(), norm.item()))
    assert precision != "fp16" or scaler.get_scale() == LOSS_SCALE, "a step was skipped"
    return made, module


def train_in_torch(model: TorchModel, exported: tacc.Exported, optimizer: dict[str, Any], precision: str = "fp32") -> Trained:
    generator = torch.Generator().manual_seed(5)
    batches = [batch_like(model.batch, generator) for _ in range(STEPS)]
    exact, module = loop(model, batches, optimizer, "fp64")
    own, _ = loop(model, batches, optimizer, precision)
    with KeepDouble(), torch.no_grad():
        outputs, _ = model.run(module.eval(), in_double(batches[0]))
    returned = exported.outputs[0]
    named = [{i.name: batch[i.path[0]].numpy() for i in exported.inputs} for batch in batches]
    kept = outputs if isinstance(outputs, torch.Tensor) else outputs[returned]
    return Trained(exported, optimizer, precision, named, exact, own, returned, kept.numpy(), module.state_dict())


def spec(model: Trained, name: str, runs: Path, dist: dict[str, Any], workers: int, **train: Any) -> dict[str, Any]:
    exported = model.model
    return {
        "name": name, "model": {"graph": str(exported.folder / "model.graph")},
        "data": {"client": {}, **({"seq_len": exported.seq_len} if exported.seq_len else {})},
        "train": {"max_steps": STEPS, "global_batch_size": SAMPLES, **model.optimizer, **train},
        "compute": COMPUTE[model.precision], "dist": dist, "checkpoint": {"dir": str(runs / name), "save_steps": 4}, "resources": {"workers": workers},
    }


def steps(session: tacc.Session, batches: list[dict[str, np.ndarray]]) -> Steps:
    results = [session.step(batch) for batch in batches]
    return [(result.loss, result.grad_norm) for result in results]


def exported_by(job: tacc.Job, folder: Path) -> dict[str, torch.Tensor]:
    job.wait(progress=False)
    return load_file(Path(job.export(folder / job.name)) / "model.safetensors")


def train(job: tacc.Job, model: Trained) -> Steps:
    """The losses and gradients' norms of all steps."""
    with tacc.Session(job) as session:
        got = steps(session, model.batches)
        session.finish()
    job.wait(progress=False)
    return got


def train_killed(cluster: Cluster, job: tacc.Job, model: Trained) -> Steps:
    """As `train`, of a job whose second rank is killed after step 6. The two steps since the checkpoint come again, with the same bits."""
    with tacc.Session(job) as session:
        got = steps(session, model.batches[:6])
        cluster.wait(lambda: job.status().last_checkpoint, "the checkpoint of step 4")
        os.kill(rank_pid(cluster, "w1"), signal.SIGKILL)
        with pytest.raises(tacc.SessionRestartedError, match="after step 4"):
            session.step(model.batches[6])
        again = steps(session, model.batches[4:])
        session.finish()
    job.wait(progress=False)
    assert again[:2] == got[4:]
    return got[:4] + again


def rank_pid(cluster: Cluster, worker: str) -> int:
    """The process that a worker has started."""
    parent = cluster.workers[worker].popen.pid
    children = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return next(pid for pid in children if "tacc-rank" in Path(f"/proc/{pid}/comm").read_text())
