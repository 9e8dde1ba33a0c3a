"""What a graph computes, beside what PyTorch computes of the module that it was exported of; both in float64."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tacc.exporting import Exported
from torch import nn
from torch_models import BATCH, LENGTH, TorchModel, in_double

sys.path.append(str(Path(__file__).resolve().parents[1] / "parity"))
import torch_interpreter
from references import KeepDouble

PLAN = Path(os.environ["TACC_BUILD"]) / "tacc-plan"
EXACT = 1e-10  # float64 rounding
# What the reference itself computes in fp32: tables of positions, or a number with eight digits; hardsigmoid's gradient is 1/6 in fp32.
INEXACT = {**dict.fromkeys(("llama", "llama, eager", "llama, padded", "qwen3", "mistral, window", "gemma2"), 1e-6), "mobilenet": 1e-7}
_LEFT_OUT = "the graph leaves out {}: nothing that the model returns depends on them"
_LIBTORCH = "LibTorch computes {}, which the graph has no op for: as a rule whole on every rank, however the batch is split"
_UNROLLED = "a sample has always {} tokens: the model fixes the length of {!r}"
NOTES = {
    "mamba": _UNROLLED.format(10, "input_ids"),
    **dict.fromkeys(("rnn", "lstm", "gru"), _UNROLLED.format(5, "tokens_")),
    "clip": _LEFT_OUT.format("vision_model.post_layernorm.weight, vision_model.post_layernorm.bias"),
    "wav2vec2": _LEFT_OUT.format("wav2vec2.masked_spec_embed"),
    "speecht5": _LEFT_OUT.format("speecht5.encoder.prenet.masked_spec_embed"),
    "clip, pairs": _LIBTORCH.format("aten.argmax.default"),
    "fourier": _LIBTORCH.format("aten.cummax.default, aten.fft_fft2.default, aten.fft_irfft.default, aten.fft_rfft.default, aten.logcumsumexp.default"),
    "indexed": _LIBTORCH.format("aten.remainder.Scalar, aten.sort.default, aten.sum.dim_IntList"),
}
# Labels by which a sample can be taken out of the loss: those of cross-entropies alone.
TARGETS = {"llama": ["labels"], "bert, classes": ["labels"], "fourier": ["labels"], "t5": ["labels"], "mlp": [], "smoothed labels": []}


def nodes_of(exported: Exported) -> list[torch_interpreter.Node]:
    options = ["--batch", str(BATCH), "--seq-len", str(exported.seq_len or LENGTH)]
    run = subprocess.run([PLAN, "import", "--graph", exported.folder / "model.graph", *options], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return torch_interpreter.parse(run.stdout)


def reference(model: TorchModel) -> tuple[nn.Module, torch.Tensor, Any]:
    """The module in float64 with its gradients, its loss and what it returns."""
    module, batch = copy.deepcopy(model.module).double(), in_double(model.batch)
    with KeepDouble():
        outputs, loss = model.run(module, batch)
        loss.backward()
    return module, loss, outputs


def run_graph(exported: Exported, batch: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The graph's outputs, and the parameters by name, in float64."""
    stored = load_file(exported.folder / "model.safetensors")
    params = {name: t.double().requires_grad_(name in exported.parameters) for name, t in stored.items()}
    inputs = {"step": torch.tensor(0), "sample": torch.arange(BATCH)}
    for i in exported.inputs:
        inputs[i.name] = in_double(batch)[i.path[0]]
    return torch_interpreter.run(nodes_of(exported), inputs, params), params


def errors(exported: Exported, model: TorchModel) -> tuple[float, float]:
    """Of the loss, and of all gradients together, as parts of what PyTorch computes."""
    module, loss, _ = reference(model)
    made, params = run_graph(exported, model.batch)
    got = made["loss"] / made["target_tokens"]
    got.backward()
    wanted = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    difference = sum((params[name].grad - gradient).square().sum() for name, gradient in wanted.items())
    whole = sum(gradient.square().sum() for gradient in wanted.values())
    return abs(got.item() / loss.item() - 1), (difference / whole).sqrt().item()


def check_exported(name: str, exported: Exported, model: TorchModel) -> None:
    """Of the models by name: that export found all there is to say of it, and that it computes what PyTorch does."""
    assert exported.any_batch
    assert exported.notes == ([NOTES[name]] if name in NOTES else [])
    has_aten = NOTES.get(name, "").startswith("LibTorch")
    assert exported.coverage.share == 1.0 or has_aten and exported.coverage.share > 0.98
    if name in TARGETS:
        assert (exported.targets, exported.samples_meet) == (TARGETS[name], False)
    check_against_torch(exported, model, INEXACT.get(name, EXACT))


def check_against_torch(exported: Exported, model: TorchModel, tolerance: float) -> None:
    """The loss, what the model returns, all gradients, and the buffers that the forward changes."""
    module, loss, outputs = reference(model)
    made, params = run_graph(exported, model.batch)
    got = made["loss"] / made["target_tokens"]
    assert abs(got.item() - loss.item()) <= tolerance * abs(loss.item())
    returned = {"output": outputs} if isinstance(outputs, torch.Tensor) else outputs
    for name in exported.outputs:
        if name in returned:
            assert (made[name] - returned[name]).norm() <= tolerance * returned[name].norm(), name
    got.backward()
    trained = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    assert set(trained) == set(exported.parameters)
    largest = max(g.norm() for g in trained.values())
    for parameter, gradient in trained.items():
        difference = (params[parameter].grad - gradient).norm()
        assert difference <= 10 * tolerance * gradient.norm() + 1e-12 * largest, parameter
    before = dict(model.module.named_buffers())
    changed = {name: value for name, value in module.named_buffers() if not torch.equal(value, before[name].to(value.dtype))}
    assert set(exported.changed_buffers) == set(changed)
    for name, value in changed.items():
        assert (made[f"buffer:{name}"] - value).norm() <= tolerance * value.double().norm(), name
