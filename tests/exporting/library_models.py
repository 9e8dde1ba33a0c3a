"""Models with ops that other C++ libraries register with PyTorch: the library of tests/op_library, and torchvision."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch_models import BATCH, TorchModel, filled
from torchvision.ops import DeformConv2d, ps_roi_align, roi_align

OPS = (Path(os.environ["TACC_BUILD"]) / "tests/tacc_test_ops.so").resolve()
VISION = (Path(torchvision.__file__).parent / "_C.so").resolve()
CLASSES = 5
torch.ops.load_library(OPS)


class Between(nn.Module):
    """What `compute` makes of a layer's result, before the next layer."""

    def __init__(self, compute: Callable[[Between, torch.Tensor], torch.Tensor]):
        super().__init__()
        self.first, self.last, self.compute = nn.Linear(6, 8), nn.Linear(8, CLASSES), compute
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x, labels):
        h = self.compute(self, self.first(x))
        return {"loss": F.cross_entropy(self.last(h).mean(1), labels), "h": h}


def between(compute: Callable[[Between, torch.Tensor], torch.Tensor]) -> TorchModel:
    torch.manual_seed(0)
    return TorchModel(filled(Between(compute)), {"x": torch.randn(BATCH, 5, 6), "labels": torch.arange(BATCH) % CLASSES})


def scaled_tanh(m: Between, h: torch.Tensor) -> torch.Tensor:
    return torch.ops.tacc_test.scaled_tanh(h, m.scale, power=2.0) + torch.ops.tacc_test.scaled_tanh(h, h[:, :1, :1])


class Detector(nn.Module):
    """What torchvision's models for boxes consist of. `corners`, any numbers, become a box of each image."""

    def __init__(self):
        super().__init__()
        self.body, self.parts = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 16, 1)
        self.offsets, self.masks, self.bent = nn.Conv2d(3, 18, 3, padding=1), nn.Conv2d(3, 9, 3, padding=1), DeformConv2d(3, 5, 3, padding=1)
        self.head = nn.Linear(4 * 4 + 4 * 4 + 2 * 5, CLASSES)

    def forward(self, image, corners, labels):
        low = 3 * corners[:, :2].sigmoid()
        boxes = torch.cat([low, low + 2 + 2 * corners[:, 2:].sigmoid()], 1)
        rois = torch.cat([torch.arange(image.shape[0]).to(image.dtype)[:, None], boxes], 1)
        a = roi_align(self.body(image), rois, output_size=2, spatial_scale=0.5, sampling_ratio=2, aligned=True)
        b = ps_roi_align(self.parts(image), rois, output_size=2, sampling_ratio=2)
        offsets = self.offsets(image)
        bent = torch.cat([self.bent(image, offsets), self.bent(image, offsets, self.masks(image).sigmoid())], 1)
        h = torch.cat([a.flatten(1), b.flatten(1), bent.mean((2, 3))], 1)
        return {"loss": F.cross_entropy(self.head(h), labels), "h": h}


def detector() -> TorchModel:
    torch.manual_seed(0)
    return TorchModel(filled(Detector()), {"image": torch.randn(BATCH, 3, 8, 8), "corners": torch.randn(BATCH, 4), "labels": torch.arange(BATCH) % CLASSES})
