"""Exported models on the daemon beside plain PyTorch loops in float64: what the tests of both kinds of models share.

In fp32 PyTorch's own loops are no measure: after nine steps at a rate of 1e-2 DeepSeek's sends a token to another expert than in float64.
"""

import copy
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
ADAMW: dict[str, Any] = {"learning_rate": 1e-2, "lr_scheduler_type": "constant"}
# Adam makes steps of full size of gradients that are nothing but rounding, as of a bias before a batch norm.
SGD: dict[str, Any] = {"optim": "sgd", "momentum": 0.9, "learning_rate": 0.005, "lr_scheduler_type": "constant"}


def optimizer_for(module: nn.Module) -> dict[str, Any]:
    return SGD if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules()) else ADAMW


@dataclass
class Trained:
    """An exported model, batches of it by the names of its inputs, and what a plain PyTorch loop in float64 makes of them."""

    model: tacc.Exported
    optimizer: dict[str, Any]
    batches: list[dict[str, np.ndarray]]
    losses: list[float]
    returned: str
    outputs: np.ndarray  # of the first batch, in evaluation, after all steps
    state: dict[str, torch.Tensor]


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


def train_in_torch(model: TorchModel, exported: tacc.Exported, optimizer: dict[str, Any]) -> Trained:
    generator = torch.Generator().manual_seed(5)
    batches = [batch_like(model.batch, generator) for _ in range(STEPS)]
    module = copy.deepcopy(model.module).double()
    parameters, rate = list(module.parameters()), optimizer["learning_rate"]
    if optimizer.get("optim") == "sgd":
        update: torch.optim.Optimizer = torch.optim.SGD(parameters, rate, momentum=optimizer["momentum"])
    else:
        update = torch.optim.AdamW(parameters, rate, weight_decay=0.0)
    losses = []
    with KeepDouble():
        for batch in batches:
            update.zero_grad()
            _, loss = model.run(module, in_double(batch))
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            update.step()
            losses.append(loss.item())
        with torch.no_grad():
            outputs, _ = model.run(module.eval(), in_double(batches[0]))
    returned = exported.outputs[0]
    named = [{i.name: batch[i.path[0]].numpy() for i in exported.inputs} for batch in batches]
    kept = outputs if isinstance(outputs, torch.Tensor) else outputs[returned]
    return Trained(exported, optimizer, named, losses, returned, kept.numpy(), module.state_dict())


def spec(model: Trained, name: str, runs: Path, dist: dict[str, Any], workers: int, **train: Any) -> dict[str, Any]:
    exported = model.model
    return {
        "name": name, "model": {"graph": str(exported.folder / "model.graph")},
        "data": {"client": {}, **({"seq_len": exported.seq_len} if exported.seq_len else {})},
        "train": {"max_steps": STEPS, "global_batch_size": SAMPLES, **model.optimizer, **train},
        "compute": {"bf16": False}, "dist": dist, "checkpoint": {"dir": str(runs / name), "save_steps": 4}, "resources": {"workers": workers},
    }


def steps(session: tacc.Session, batches: list[dict[str, np.ndarray]]) -> list[tuple[float, float]]:
    results = [session.step(batch) for batch in batches]
    return [(result.loss, result.grad_norm) for result in results]


def exported_by(job: tacc.Job, folder: Path) -> dict[str, torch.Tensor]:
    job.wait(progress=False)
    return load_file(Path(job.export(folder / job.name)) / "model.safetensors")


def train(job: tacc.Job, model: Trained) -> list[tuple[float, float]]:
    """The losses and gradients' norms of all steps."""
    with tacc.Session(job) as session:
        got = steps(session, model.batches)
        session.finish()
    job.wait(progress=False)
    return got


def train_killed(cluster: Cluster, job: tacc.Job, model: Trained) -> list[tuple[float, float]]:
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
