"""Models of timm, unmodified, mean what PyTorch computes in float64, and all of them is in ops of the graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tacc
import timm
from comparison import EXACT, check_against_torch
from image_models import CLASSES, classified
from timm.models.efficientnet import _gen_efficientnet
from torch import nn

# Each of images so wide.
MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "ConvNeXt": (lambda: timm.models.ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 16, 16, 16), num_classes=CLASSES), 32),
    "ViT": (lambda: timm.models.VisionTransformer(img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=CLASSES), 16),
    "Swin": (
        lambda: timm.models.SwinTransformer(
            img_size=32, patch_size=2, embed_dim=8, depths=(2, 2), num_heads=(2, 2), window_size=4, drop_path_rate=0.0, num_classes=CLASSES
        ),
        32,
    ),
    "EfficientNet": (lambda: _gen_efficientnet("efficientnet_b0", channel_multiplier=0.25, depth_multiplier=0.3, num_classes=CLASSES), 32),
}


@pytest.mark.parametrize("name", MODELS)
def test_loss_outputs_gradients_and_buffers(name: str, tmp_path: Path):
    make, size = MODELS[name]
    model = classified(make(), size)
    exported = tacc.export_model(model.module, model.batch, tmp_path, **model.options)
    assert (exported.notes, exported.any_batch, exported.coverage.share) == ([], True, 1.0)
    check_against_torch(exported, model, EXACT)
