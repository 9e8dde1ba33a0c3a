"""Models in PyTorch that the exporter is tried on, tiny and with random weights, and a batch of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import nn

BATCH, LENGTH, VOCABULARY = 3, 10, 64


@dataclass
class TorchModel:
    """A model, a batch of it, and what export_model is told of it."""

    module: nn.Module
    batch: Any
    options: dict[str, Any] = field(default_factory=dict)


def ids(seed: int = 1, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def padding() -> torch.Tensor:
    """One row is padded on the right, one on the left."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[1, 7:] = 0
    mask[2, :3] = 0
    return mask


def filled(module: nn.Module) -> nn.Module:
    """With random weights that no initialisation hides behind."""
    generator = torch.Generator().manual_seed(11)
    for name, parameter in module.named_parameters():
        value = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() >= 2:
            value *= 0.5 / math.sqrt(parameter.shape[-1])
        else:
            value = 0.1 * value + (1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0)
        with torch.no_grad():
            parameter.copy_(value)
    return module.train()


def _hf(class_name: str, config_name: str, attention: str = "sdpa", **config: Any) -> nn.Module:
    made = getattr(transformers, config_name)(**config)
    return filled(getattr(transformers, class_name)._from_config(made, attn_implementation=attention))


_DECODER = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    bos_token_id=1, eos_token_id=2, pad_token_id=None,
)
_GPT2 = dict(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=1, eos_token_id=2)
_ENCODER = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def _language_model(module: nn.Module) -> TorchModel:
    labels = ids()
    labels[0, 2:4] = -100
    return TorchModel(module, {"input_ids": ids(), "labels": labels})


def _padded(module: nn.Module) -> TorchModel:
    model, mask = _language_model(module), padding()
    model.batch["labels"][mask == 0] = -100
    return TorchModel(module, model.batch | {"attention_mask": mask})


def _classifier(attention: str) -> TorchModel:
    mask = padding()
    module = _hf("BertForSequenceClassification", "BertConfig", attention, vocab_size=VOCABULARY, num_labels=5, pad_token_id=0, **_ENCODER)
    return TorchModel(module, {"input_ids": ids() * mask, "attention_mask": mask, "labels": torch.tensor([0, 4, 2])})


def _vit() -> TorchModel:
    module = _hf("ViTForImageClassification", "ViTConfig", image_size=16, patch_size=4, num_labels=5, **_ENCODER)
    pixels = torch.randn(BATCH, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    return TorchModel(module, {"pixel_values": pixels, "labels": torch.tensor([0, 4, 2])})


def _mlp() -> TorchModel:
    module = filled(nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.LayerNorm(12), nn.Linear(12, 3)))
    generator = torch.Generator().manual_seed(3)
    batch = (torch.randn(BATCH, 6, generator=generator), torch.randn(BATCH, 3, generator=generator))
    return TorchModel(module, batch, {"loss": lambda outputs, batch: F.mse_loss(outputs, batch[1])})


class Translator(nn.Module):
    """torch.nn.Transformer between embeddings and a head, with its own loss."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.transformer = nn.Transformer(32, 4, 1, 1, 48, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, source, target, labels):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        made = self.transformer(self.embedding(source), self.embedding(target), tgt_mask=mask, tgt_is_causal=True)
        logits = self.head(made)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class PaddedEmbeddings(nn.Module):
    """A table with a row for padding that is not zero and not trained, and a loss of two terms."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8, padding_idx=0)
        self.head = nn.Linear(8, VOCABULARY, bias=False)

    def forward(self, tokens, labels):
        x = self.embedding(tokens)
        logits = self.head(x)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten()) + 0.1 * x.pow(2).mean()
        return {"loss": loss, "logits": logits}


class Stopped(nn.Module):
    """Features of which no gradient goes to the layer that makes them."""

    def __init__(self):
        super().__init__()
        self.features = nn.Linear(6, 8)
        self.shared = nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x, y):
        with torch.no_grad():
            fixed = self.shared(x.new_ones(x.shape[0], 8))
        h = torch.tanh(self.shared(self.features(x))) * fixed + self.features(x).detach()
        return {"loss": F.mse_loss(self.head(h)[:, 0], y)}


def _table_with_padding() -> TorchModel:
    tokens = ids()
    tokens[:, 7:] = 0
    return TorchModel(filled(PaddedEmbeddings()), {"tokens": tokens, "labels": ids(2)})


def _stopped() -> TorchModel:
    generator = torch.Generator().manual_seed(3)
    return TorchModel(filled(Stopped()), {"x": torch.randn(BATCH, 6, generator=generator), "y": torch.randn(BATCH, generator=generator)})


MODELS: dict[str, Callable[[], TorchModel]] = {
    "gpt2": lambda: _language_model(_hf("GPT2LMHeadModel", "GPT2Config", **_GPT2)),
    "llama": lambda: _language_model(_hf("LlamaForCausalLM", "LlamaConfig", **_DECODER)),
    "llama, eager": lambda: _language_model(_hf("LlamaForCausalLM", "LlamaConfig", "eager", **_DECODER)),
    "llama, padded": lambda: _padded(_hf("LlamaForCausalLM", "LlamaConfig", **_DECODER)),
    "qwen3": lambda: _language_model(_hf("Qwen3ForCausalLM", "Qwen3Config", head_dim=8, **_DECODER)),
    "mistral, window": lambda: _language_model(_hf("MistralForCausalLM", "MistralConfig", sliding_window=4, **_DECODER)),
    "gemma2": lambda: _language_model(_hf("Gemma2ForCausalLM", "Gemma2Config", "eager", head_dim=8, sliding_window=4, **_DECODER)),
    "bert, masked": lambda: _language_model(_hf("BertForMaskedLM", "BertConfig", vocab_size=VOCABULARY, **_ENCODER)),
    "bert, classes": lambda: _classifier("sdpa"),
    "bert, classes, eager": lambda: _classifier("eager"),
    "vit": _vit,
    "mlp": _mlp,
    "nn.Transformer": lambda: TorchModel(filled(Translator()), {"source": ids(), "target": ids(2), "labels": ids(3)}),
    "table with padding": _table_with_padding,
    "stopped gradients": _stopped,
}
