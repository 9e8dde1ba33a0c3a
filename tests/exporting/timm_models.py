"""Models of timm that the exporter is tried on, small, of unmodified classes."""

from __future__ import annotations

from collections.abc import Callable

import timm
from image_models import CLASSES, classified
from timm.models.efficientnet import _gen_efficientnet
from torch_models import TorchModel


def convnext() -> TorchModel:
    return classified(timm.models.ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 16, 16, 16), num_classes=CLASSES), 32)


def vit() -> TorchModel:
    return classified(timm.models.VisionTransformer(img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=CLASSES), 16)


def swin() -> TorchModel:
    module = timm.models.SwinTransformer(
        img_size=32, patch_size=2, embed_dim=8, depths=(2, 2), num_heads=(2, 2), window_size=4, drop_path_rate=0.0, num_classes=CLASSES
    )
    return classified(module, 32)


def efficientnet() -> TorchModel:
    return classified(_gen_efficientnet("efficientnet_b0", channel_multiplier=0.25, depth_multiplier=0.3, num_classes=CLASSES), 32)


MODELS: dict[str, Callable[[], TorchModel]] = {"timm, convnext": convnext, "timm, vit": vit, "timm, swin": swin, "timm, efficientnet": efficientnet}
