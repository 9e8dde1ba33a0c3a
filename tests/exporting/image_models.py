"""Models of images and sounds that the exporter is tried on, tiny, of unmodified classes, with random weights; and a batch of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch_models import BATCH, VOCABULARY, TorchModel, ids, padding
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.efficientnet import EfficientNet, _efficientnet_conf
from torchvision.models.mobilenetv3 import MobileNetV3, _mobilenet_v3_conf
from torchvision.models.resnet import Bottleneck, ResNet
from torchvision.models.swin_transformer import SwinTransformer

CLASSES = 5


def filled(module: nn.Module) -> nn.Module:
    """With random weights, none all alike, that keep activations about as large as they are."""
    generator = torch.Generator().manual_seed(11)
    for name, parameter in module.named_parameters():
        value = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() >= 2:
            value *= 0.8 / math.sqrt(parameter[0].numel())
        else:
            value = 0.1 * value + (1.0 if name.endswith("weight") else 0.0)
        with torch.no_grad():
            parameter.copy_(value)
    return module.train()


def random(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


LABELS = torch.tensor([0, 4, 2])


def classified(module: nn.Module, size: int) -> TorchModel:
    """Of torchvision, which has the logits alone."""
    return TorchModel(filled(module), (random(BATCH, 3, size, size), LABELS), {"loss": lambda logits, batch: F.cross_entropy(logits, batch[1])})


def resnet50(width: int = 4) -> nn.Module:
    return ResNet(Bottleneck, [3, 4, 6, 3], width_per_group=width, num_classes=CLASSES)


def _resnet50() -> TorchModel:
    """Whose blocks add little to what they are given, as at the start of training (zero_init_residual). Else rounding grows a thousandfold on the way through
    50 norms of a small batch, and losses in fp32 say nothing."""
    model = classified(resnet50(), 48)
    for name, parameter in model.module.named_parameters():
        if name.endswith("bn3.weight"):
            parameter.data *= 0.1
    return model


def convnext(drop: float = 0.0) -> nn.Module:
    blocks = [CNBlockConfig(16, 32, 2), CNBlockConfig(32, 48, 2), CNBlockConfig(48, None, 1)]
    return ConvNeXt(blocks, stochastic_depth_prob=drop, layer_scale=0.5, num_classes=CLASSES)


def efficientnet(drop: float = 0.0) -> nn.Module:
    settings, last = _efficientnet_conf("efficientnet_b0", width_mult=0.25, depth_mult=0.5)
    return EfficientNet(settings, dropout=drop, stochastic_depth_prob=drop, num_classes=CLASSES, last_channel=last)


def mobilenet() -> nn.Module:
    settings, _ = _mobilenet_v3_conf("mobilenet_v3_small", width_mult=0.25)
    return MobileNetV3(settings[:5], 32, num_classes=CLASSES, dropout=0.0)


def swin() -> nn.Module:
    return SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.0, num_classes=CLASSES)


def time_embedding(steps: torch.Tensor, width: int) -> torch.Tensor:
    frequencies = torch.exp(-math.log(10000.0) * torch.arange(width // 2, dtype=steps.dtype) / (width // 2))
    angles = steps[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, channels: int, out: int, width: int):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, channels), nn.Conv2d(channels, out, 3, padding=1)
        self.time = nn.Linear(width, out)
        self.norm2, self.conv2 = nn.GroupNorm(4, out), nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x, time):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Attention2d(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.attention = nn.MultiheadAttention(channels, 2, batch_first=True)

    def forward(self, x):
        rows = self.norm(x).flatten(2).transpose(1, 2)
        made, _ = self.attention(rows, rows, rows, need_weights=False)
        return x + made.transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """The noise in an image, as of a diffusion model: down, attention in the middle, up with what was on the way down."""

    def __init__(self, channels: int = 8):
        super().__init__()
        self.width = 4 * channels
        self.embed = nn.Sequential(nn.Linear(channels, self.width), nn.SiLU(), nn.Linear(self.width, self.width))
        self.start = nn.Conv2d(3, channels, 3, padding=1)
        self.down = nn.ModuleList([ResBlock(channels, channels, self.width), ResBlock(channels, 2 * channels, self.width)])
        self.smaller = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.middle = nn.ModuleList([ResBlock(2 * channels, 2 * channels, self.width), Attention2d(2 * channels)])
        self.larger = nn.ConvTranspose2d(2 * channels, channels, 4, stride=2, padding=1)
        self.up = nn.ModuleList([ResBlock(4 * channels, 2 * channels, self.width), ResBlock(2 * channels, channels, self.width)])
        self.end = nn.Sequential(nn.GroupNorm(4, channels), nn.SiLU(), nn.Conv2d(channels, 3, 3, padding="same"))

    def forward(self, image, noise, time):
        keep = torch.cos(time)[:, None, None, None]
        embedded = self.embed(time_embedding(time * 100, self.width // 4))
        wide = self.down[0](self.start(keep * image + (1 - keep**2).sqrt() * noise), embedded)
        small = self.down[1](self.smaller(wide), embedded)
        x = self.middle[1](self.middle[0](small, embedded))
        x = self.up[0](torch.cat([x, small], dim=1), embedded)
        x = self.up[1](torch.cat([self.larger(x), wide], dim=1), embedded)
        x = x + F.interpolate(F.avg_pool2d(x, 2), scale_factor=2, mode="nearest")
        found = self.end(x)
        return {"loss": F.mse_loss(found, noise), "noise": found}


class DiTBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(approximate="tanh"), nn.Linear(2 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, condition):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition)[:, None].chunk(6, dim=-1)
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(h).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + gate1 * self.proj(h)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiT(nn.Module):
    """A transformer of patches of an image, with norms that follow the time and the class."""

    def __init__(self, width: int = 16, size: int = 8):
        super().__init__()
        self.size, self.width = size, width
        self.patches = nn.Conv2d(3, width, 2, stride=2)
        self.position = nn.Parameter(torch.zeros(1, (size // 2) ** 2, width))
        self.time, self.label = nn.Linear(width, width), nn.Embedding(CLASSES, width)
        self.blocks = nn.ModuleList([DiTBlock(width) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 12)

    def forward(self, image, noise, time, label):
        x = self.patches(image + noise * time[:, None, None, None]).flatten(2).transpose(1, 2) + self.position
        condition = self.time(time_embedding(time * 100, self.width)) + self.label(label)
        for block in self.blocks:
            x = block(x, condition)
        n = self.size // 2
        found = self.head(self.norm(x)).view(-1, n, n, 2, 2, 3).permute(0, 5, 1, 3, 2, 4).reshape(-1, 3, self.size, self.size)
        return {"loss": F.mse_loss(found, noise), "noise": found}


class Kinds(nn.Module):
    """Kinds of layers that the models here do not have."""

    def __init__(self):
        super().__init__()
        self.same = nn.Conv2d(3, 8, (4, 3), padding="same", dilation=(1, 2))
        self.grouped = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=4, bias=False)
        self.plain = nn.BatchNorm2d(8, affine=False)
        self.own = nn.BatchNorm2d(8, track_running_stats=False)
        self.fixed = nn.BatchNorm2d(8)
        self.instance = nn.InstanceNorm2d(8, affine=True)
        self.larger = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.line = nn.Conv1d(4, 6, 3, stride=2)
        self.line_norm = nn.BatchNorm1d(6)
        self.volume = nn.Conv3d(1, 2, 2)
        self.volume_norm = nn.BatchNorm3d(2, momentum=0.3)
        self.shuffle, self.unshuffle = nn.PixelShuffle(2), nn.PixelUnshuffle(2)
        self.head = nn.Linear(6, 1)
        self.rows_norm = nn.BatchNorm1d(6)

    def forward(self, x):
        x = self.instance(self.fixed(self.own(self.plain(self.grouped(self.same(x))))))
        x = self.larger(F.relu6(x)) * torch.sigmoid(x.mean((2, 3), keepdim=True)[:, :4])
        x = self.shuffle(self.unshuffle(x)) + F.hardswish(F.interpolate(F.max_pool2d(x, 3, 2, 1), size=x.shape[2:], mode="bilinear"))
        x = x + F.interpolate(x, scale_factor=0.5, mode="bicubic", align_corners=True).mean() + F.hardsigmoid(F.adaptive_max_pool2d(x, 2)).mean()
        x = x + F.adaptive_avg_pool2d(x, 3).square().mean() + F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False).mean()
        cube = self.volume_norm(self.volume(x[:, None])).mean((1, 2, 3, 4))
        line = self.line_norm(self.line(x.flatten(2))).mean(-1)
        line = line + F.avg_pool1d(F.max_pool1d(line[:, None], 2), 3).flatten(1) * 0.5
        out = self.head(self.rows_norm(line))[:, 0] + cube
        return {"loss": out.square().mean(), "out": out}


def kinds() -> TorchModel:
    module = filled(Kinds())
    module.fixed.eval()
    with torch.no_grad():
        module.fixed.running_mean.copy_(random(8)), module.fixed.running_var.copy_(random(8).exp())
    return TorchModel(module, {"x": random(BATCH, 3, 8, 8)})


_ENCODER: dict[str, Any] = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_labels=CLASSES)
_NO_DROPOUT = dict.fromkeys(("hidden_dropout", "attention_dropout", "feat_proj_dropout", "final_dropout", "activation_dropout", "layerdrop"), 0.0)


def _hf(class_name: str, config: Any, **batch: torch.Tensor) -> TorchModel:
    module = getattr(transformers, class_name)._from_config(config, attn_implementation="sdpa")
    return TorchModel(filled(module), {"labels": LABELS, **batch})


def clip() -> TorchModel:
    vision = {**_ENCODER, "image_size": 16, "patch_size": 4}
    config = transformers.CLIPConfig(vision_config=vision, num_labels=CLASSES)
    return _hf("CLIPForImageClassification", config, pixel_values=random(BATCH, 3, 16, 16))


def wav2vec2() -> TorchModel:
    config = transformers.Wav2Vec2Config(
        conv_dim=(8, 8, 8), conv_kernel=(5, 3, 2), conv_stride=(3, 2, 2), num_feat_extract_layers=3, num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, classifier_proj_size=8, apply_spec_augment=False, **_ENCODER, **_NO_DROPOUT,
    )
    return _hf("Wav2Vec2ForSequenceClassification", config, input_values=random(BATCH, 160))


def whisper() -> TorchModel:
    config = transformers.WhisperConfig(
        d_model=16, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=24, num_mel_bins=8, max_source_positions=10,
        classifier_proj_size=8, num_labels=CLASSES, dropout=0.0,
    )
    return _hf("WhisperForAudioClassification", config, input_features=random(BATCH, 8, 20))


def whisper_text() -> TorchModel:
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, d_model=16, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=24, decoder_layers=1,
        decoder_attention_heads=2, decoder_ffn_dim=24, num_mel_bins=8, max_source_positions=10, max_target_positions=16,
        pad_token_id=0, bos_token_id=1, eos_token_id=1, decoder_start_token_id=2, dropout=0.0,
    )
    return _hf("WhisperForConditionalGeneration", config, input_features=random(BATCH, 8, 20), labels=ids())


def contrast(outputs: Any, batch: Any) -> torch.Tensor:
    """CLIP's own loss, which takes the number of samples by len() and so only trains batches of one size."""
    scores = outputs["logits_per_text"]
    own = torch.arange(scores.shape[0])
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2


def clip_pairs(**arguments: Any) -> TorchModel:
    """Of texts and images that belong together."""
    text = {**_ENCODER, "num_hidden_layers": 1, "vocab_size": VOCABULARY, "max_position_embeddings": 16, "eos_token_id": VOCABULARY - 1, "bos_token_id": 1, "pad_token_id": 0}
    config = transformers.CLIPConfig(text_config=text, vision_config={**_ENCODER, "image_size": 16, "patch_size": 4}, projection_dim=16)
    module = transformers.CLIPModel._from_config(config, attn_implementation="sdpa")
    batch = {"input_ids": ids(), "attention_mask": padding(), "pixel_values": random(BATCH, 3, 16, 16), **arguments}
    return TorchModel(filled(module), batch, {} if arguments else {"loss": contrast})


_SPEECH_T5: dict[str, Any] = dict(
    vocab_size=VOCABULARY, hidden_size=16, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=24, decoder_layers=1, decoder_attention_heads=2,
    decoder_ffn_dim=24, conv_dim=(8, 8, 8), conv_kernel=(5, 3, 2), conv_stride=(3, 2, 2), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
    num_mel_bins=8, speech_decoder_prenet_units=16, speech_decoder_postnet_units=16, speech_decoder_postnet_layers=2, speaker_embedding_dim=4,
    max_speech_positions=64, max_text_positions=64, apply_spec_augment=False, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2,
    encoder_layerdrop=0.0, decoder_layerdrop=0.0, speech_decoder_postnet_dropout=0.0, **_NO_DROPOUT, positional_dropout=0.0,
)


def speecht5() -> TorchModel:
    """Speech to text."""
    module = transformers.SpeechT5ForSpeechToText(transformers.SpeechT5Config(**_SPEECH_T5))
    return TorchModel(filled(module), {"input_values": random(BATCH, 160), "labels": ids()})


def speecht5_speech() -> TorchModel:
    """Text to speech. Its decoder always drops features, the same of all samples. Its own loss takes elements by a mask, which no graph can have."""
    module = transformers.SpeechT5ForTextToSpeech(transformers.SpeechT5Config(**_SPEECH_T5))
    batch = {"input_ids": ids(), "decoder_input_values": random(BATCH, 6, 8), "speaker_embeddings": random(BATCH, 4), "sound": random(BATCH, 12, 8)}
    return TorchModel(filled(module), batch, {"loss": lambda outputs, batch: F.l1_loss(outputs["spectrogram"], batch["sound"])})


def diffusion(module: nn.Module, **more: torch.Tensor) -> TorchModel:
    time = torch.tensor([0.1, 0.7, 0.4])
    return TorchModel(filled(module), {"image": random(BATCH, 3, 8, 8), "noise": random(BATCH, 3, 8, 8, seed=4), "time": time, **more})


MODELS: dict[str, Callable[[], TorchModel]] = {
    "resnet50": _resnet50,
    "convnext": lambda: classified(convnext(), 32),
    "efficientnet": lambda: classified(efficientnet(), 48),
    "mobilenet": lambda: classified(mobilenet(), 48),
    "swin": lambda: classified(swin(), 32),
    "unet": lambda: diffusion(UNet()),
    "dit": lambda: diffusion(DiT(), label=LABELS),
    "clip": clip,
    "clip, pairs": clip_pairs,
    "wav2vec2": wav2vec2,
    "whisper": whisper,
    "whisper, text": whisper_text,
    "speecht5": speecht5,
    "kinds of layers": kinds,
}
