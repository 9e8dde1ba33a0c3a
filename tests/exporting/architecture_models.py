"""The architectures that tacc is proved on, from float64 to ten steps on the daemon: small, of unmodified classes."""

from __future__ import annotations

import image_models
import timm_models
import torch_models

_TEXT = {
    "LLaMA": "llama", "Qwen 3": "qwen3", "Gemma 3": "gemma3", "GPT-2": "gpt2", "GPT-NeoX": "gpt-neox", "Phi-3": "phi3", "DeepSeek-V3": "deepseek v3",
    "Mamba": "mamba", "BERT, masked LM": "bert, masked", "BERT, classification": "bert, classes", "T5": "t5", "ViT": "vit", "RNN": "rnn",
}
_OTHER = {
    "ResNet-50": "resnet50", "ConvNeXt": "convnext", "EfficientNet": "efficientnet", "Swin": "swin", "CLIP": "clip, pairs", "Whisper": "whisper, text",
    "Wav2Vec2": "wav2vec2", "SpeechT5": "speecht5", "U-Net": "unet", "DiT": "dit",
}
_TIMM = {"ConvNeXt of timm": "timm, convnext", "ViT of timm": "timm, vit", "Swin of timm": "timm, swin", "EfficientNet of timm": "timm, efficientnet"}
MODELS = torch_models.MODELS | image_models.MODELS | timm_models.MODELS
ARCHITECTURES = {name: MODELS[key] for name, key in (_TEXT | _OTHER | _TIMM).items()}
# Those that train on the daemon (tests/e2e/test_exported_models.py), in which their exports are compared as well. `indexed` has operators of LibTorch.
TRAINED = [*_TEXT.values(), *_OTHER.values(), *_TIMM.values(), "mixtral", "lstm", "indexed", "fourier", "smoothed labels"]
