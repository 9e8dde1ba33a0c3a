"""Ops that another C++ library registers with PyTorch, in exported models: what they compute, beside PyTorch, in float64; and which are refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import tacc
import torch
from comparison import EXACT, check_against_torch, nodes_of
from library_models import OPS, VISION, Between, between, detector, scaled_tanh
from torch import nn
from torchvision.ops import nms


@torch.library.impl("tacc_test::later", "cpu")
def _later(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@torch.library.register_fake("tacc_test::later")
def _later_fake(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


torch.library.register_autograd("tacc_test::doubled", lambda context, dy: dy * 2)


@torch.library.custom_op("tacc_python::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


halved.register_fake(torch.empty_like)


def line_of(function: Callable, begin: str) -> str:
    """The one that begins so, as messages have it."""
    lines, first = inspect.getsourcelines(function)
    number = next(i for i, text in enumerate(lines) if text.strip().startswith(begin))
    return f"{inspect.getfile(function)}:{first + number}, in {function.__name__}: {lines[number].strip()}"


LINE = line_of(Between.forward, "h = ")


def of_data(m: Between, h: torch.Tensor) -> torch.Tensor:
    low, high = torch.ops.tacc_test.below(h.detach(), [-0.5, 0.25], is_strict=True)
    return h * low + high


@pytest.mark.parametrize("compute, op, count", [(scaled_tanh, "scaled_tanh", 2), (of_data, "below", 1)], ids=["with a derivative", "of data"])
def test_ops_of_a_library(compute, op: str, count: int, tmp_path: Path):
    model = between(compute)
    exported = tacc.export_model(model.module, model.batch, tmp_path)
    assert exported.any_batch
    of_library = [node for node in nodes_of(exported) if node.op == "aten"]
    assert [node.attrs["schema"] for node in of_library] == [f"tacc_test::{op}.default"] * count
    for node in of_library:
        assert node.attrs["library"] == str(OPS)
        assert node.attrs["source"] == LINE.partition(", in ")[0]
    [note] = [note for note in exported.notes if "of other libraries" in note]
    assert note.startswith(f"of other libraries than LibTorch, and computed whole on every rank: tacc_test.{op}.default ({OPS}); ")
    assert f"each worker needs --op-library {OPS}, with the paths on its machine" in note
    assert not any("LibTorch computes" in note for note in exported.notes)
    check_against_torch(exported, model, EXACT)


def test_ops_of_torchvision(tmp_path: Path):
    model = detector()
    exported = tacc.export_model(model.module, model.batch, tmp_path)
    assert exported.any_batch
    [note] = exported.notes
    ops = ", ".join(f"torchvision.{op}.default" for op in ("deform_conv2d", "ps_roi_align", "roi_align"))
    assert f"{ops} ({VISION}); each worker needs --op-library {VISION}, " in note
    check_against_torch(exported, model, EXACT)


def of_python(m: Between, h: torch.Tensor) -> torch.Tensor:
    return halved(h)


def without_a_kernel(m: Between, h: torch.Tensor) -> torch.Tensor:
    return torch.ops.tacc_test.later(h.detach()) + h


def derived_in_python(m: Between, h: torch.Tensor) -> torch.Tensor:
    return torch.ops.tacc_test.doubled(h)


def without_a_derivative(m: Between, h: torch.Tensor) -> torch.Tensor:
    return torch.ops.tacc_test.below(h, [0.0])[0] * h


def derived_by_an_error(m: Between, h: torch.Tensor) -> torch.Tensor:
    return torch.ops.tacc_test.underived(h)


def of_bytes(m: Between, h: torch.Tensor) -> torch.Tensor:
    return torch.ops.tacc_test.below((h > 0).to(torch.uint8), [0.5])[0] + h


def with_a_number(m: Between, h: torch.Tensor) -> torch.Tensor:
    doubled, num_dims = torch.ops.tacc_test.counted(h)
    return doubled * num_dims


def in_place(m: Between, h: torch.Tensor) -> torch.Tensor:
    h = h.clone()
    torch.ops.tacc_test.add_one(h)
    return h


REFUSED = {
    in_place: ("tacc_test.add_one.default", "changes its operands"),
    derived_by_an_error: ("tacc_test.underived.default", "it has no derivative (its kernel for Autograd makes none), and what it takes depends on parameters"),
    of_bytes: ("tacc_test.below.default", "it takes elements of torch.uint8, which ranks have as torch.int32"),
    with_a_number: ("tacc_test.counted.default", "it makes Tensor, int; a node makes tensors, or one list of tensors"),
    of_python: ("tacc_python.halved.default", "an op that is written in Python; put the ops that it consists of into the model"),
    without_a_kernel: ("tacc_test.later.default", "its kernel is written in Python, which ranks have not"),
    derived_in_python: ("tacc_test.doubled.default", "its derivative is written in Python, which ranks have not"),
    without_a_derivative: ("tacc_test.below.default", "it has no derivative (no kernel for Autograd in C++), and what it takes depends on parameters"),
}


@pytest.mark.parametrize("compute", REFUSED)
def test_what_is_refused_says_why_and_where(compute, tmp_path: Path):
    op, why = REFUSED[compute]
    model = between(compute)
    with pytest.raises(tacc.UnsupportedOpsError) as error:
        tacc.export_model(model.module, model.batch, tmp_path)
    assert [refused.op for refused in error.value.ops] == [op]
    assert f"{LINE}: {op}: {why}" in str(error.value)
    assert not (tmp_path / "model.graph").exists()


def on_cpus_alone(m: Between, h: torch.Tensor) -> torch.Tensor:
    return torch.ops.tacc_test.on_cpus(h.detach()) + h


def test_ops_without_a_kernel_for_shapes_are_refused(tmp_path: Path):
    """torch.export cannot trace them."""
    model = between(on_cpus_alone)
    with pytest.raises(tacc.InputError) as error:
        tacc.export_model(model.module, model.batch, tmp_path)
    assert "tacc_test.on_cpus.default" in str(error.value)
    assert line_of(on_cpus_alone, "return ") in str(error.value)


def under_no_grad(m: Between, h: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        low = torch.ops.tacc_test.below(h, [0.0])[0]
    return h * low


def of_what_is_not_trained(m: Between, h: torch.Tensor) -> torch.Tensor:
    return h * torch.ops.tacc_test.below(m.scale, [2.0])[0]


@pytest.mark.parametrize("compute", [under_no_grad, of_what_is_not_trained])
def test_ops_without_a_derivative_that_need_none(compute, tmp_path: Path):
    model = between(compute)
    model.module.scale.requires_grad_(False)
    check_against_torch(tacc.export_model(model.module, model.batch, tmp_path), model, EXACT)


class Suppressed(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, boxes, scores):
        kept = nms(boxes, scores, 0.5)
        return {"loss": self.head(boxes[kept]).mean()}


def test_results_whose_size_depends_on_values_are_refused(tmp_path: Path):
    boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0], [1.0, 1.0, 4.0, 4.0], [5.0, 5.0, 6.0, 6.0]])
    with pytest.raises(tacc.InputError) as error:
        tacc.export_model(Suppressed(), {"boxes": boxes, "scores": torch.rand(3)}, tmp_path)
    assert line_of(Suppressed.forward, "kept = ") in str(error.value)
