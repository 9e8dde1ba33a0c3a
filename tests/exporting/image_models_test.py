"""Models of images and sounds mean what PyTorch computes: loss, outputs, gradients and running statistics in float64."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import tacc
import torch
from architecture_models import TRAINED
from comparison import EXACT, check_against_torch, check_exported, run_graph
from image_models import MODELS, classified, clip_pairs, convnext, efficientnet, random
from torch import nn


@pytest.mark.parametrize("name", [name for name in MODELS if name not in TRAINED])
def test_loss_outputs_gradients_and_buffers(name: str, tmp_path: Path):
    model = MODELS[name]()
    check_exported(name, tacc.export_model(model.module, model.batch, tmp_path, **model.options), model)


def test_a_loss_that_counts_samples_by_len_is_of_one_size(tmp_path: Path):
    """The example's: CLIP's own loss."""
    model = clip_pairs(return_loss=True)
    exported = tacc.export_model(model.module, model.batch, tmp_path)
    assert not exported.any_batch
    assert exported.inputs[0].dims[0] == exported.inputs[1].dims[0] == "3"
    assert "the number of samples as a plain number (len() of a tensor is one), that a graph cannot say for any" in exported.notes[0]
    assert "a micro-batch has always 3 samples, the same on all ranks" in exported.notes
    check_against_torch(exported, model, EXACT)


@pytest.mark.parametrize("make", [convnext, efficientnet])
def test_layers_of_single_samples_are_dropped(make: Callable[..., nn.Module], tmp_path: Path):
    """Stochastic depth is a dropout of one number a sample, which evaluation leaves out."""
    model = classified(make(drop=0.4), 32)
    exported = tacc.export_model(model.module, model.batch, tmp_path, **model.options)
    text = (tmp_path / "model.graph").read_text()
    dropped = re.findall(r"dropout %\w.* rate=([\d.e-]+) seed=\d+ : f32\[B,1,1,1\]", text)
    assert len(dropped) >= 3 and max(map(float, dropped)) > 0.2
    if make is convnext:  # without batch norms, whose statistics are others in evaluation
        made, _ = run_graph(exported, model.batch)
        wanted = copy.deepcopy(model.module).double().eval()(model.batch[0].double())
        assert (made["output"] - wanted).norm() <= EXACT * wanted.norm()


def test_uniform_numbers_that_drop_samples_are_found(tmp_path: Path):
    """As transformers and timm draw them: floor(p + rand)."""

    class DropPath(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            kept = (0.75 + torch.rand((x.shape[0], 1), dtype=x.dtype)).floor_()
            return {"loss": (x + self.layer(x).div(0.75) * kept).square().mean()}

    tacc.export_model(DropPath(), {"x": random(3, 4)}, tmp_path)
    assert "rate=0.25" in (tmp_path / "model.graph").read_text()


def test_an_input_that_is_changed_is_refused(tmp_path: Path):
    class Doubles(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            x.mul_(2)
            return {"loss": self.layer(x).mean()}

    with pytest.raises(tacc.ExportError, match=r"changes its input .* in place"):
        tacc.export_model(Doubles(), {"x": random(3, 4)}, tmp_path)
