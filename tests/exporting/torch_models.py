"""Models in PyTorch that the exporter is tried on, tiny and with random weights, and a batch of each."""

from __future__ import annotations

import inspect
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

    def run(self, module: nn.Module, batch: Any) -> tuple[Any, torch.Tensor]:
        """What the module, this one or a copy, returns for a batch of that kind, and the loss."""
        if "loss" not in self.options:
            outputs = module(**batch)
            return outputs, outputs["loss"]
        taken = inspect.signature(module.forward).parameters
        outputs = module(**{k: v for k, v in batch.items() if k in taken}) if isinstance(batch, dict) else module(batch[0])
        return outputs, self.options["loss"](outputs, batch)


def in_double(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, bool):
        return value
    return {k: in_double(v) for k, v in value.items()} if isinstance(value, dict) else [in_double(v) for v in value]


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
_NEOX = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, hidden_dropout=0.0, attention_dropout=0.0)
_LAYERS = ["sliding_attention", "full_attention"]


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


class Recurrent(nn.Module):
    """A recurrent network over tokens, of two layers."""

    def __init__(self, kind: str):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.layers = getattr(nn, kind)(16, 24, 2, batch_first=True)
        self.head = nn.Linear(24, VOCABULARY)

    def forward(self, tokens, labels):
        states, _ = self.layers(self.embedding(tokens))
        logits = self.head(states)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class Indexed(nn.Module):
    """Comparisons, choices and elements by index: a spelling of each that models have."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 12)
        self.offsets = nn.Parameter(torch.zeros(4, 12))
        self.head = nn.Linear(12, 5)
        self.register_buffer("order", torch.tensor([11, 2, -1, 4, 0, 3]))

    def forward(self, tokens, labels):
        x = self.embedding(tokens)
        position = (tokens > 9).long().cumsum(1) - 1
        x = x + self.offsets[position.clamp(0, 3)] + x.cumsum(1) / 10
        largest, places = x.topk(3, dim=-1)
        x = x.scatter(-1, places, 0.5) + x.flip(1) * (x.abs() >= 0.3)
        x = torch.where(tokens[..., None] % 2 == 0, x, x.abs() ** 1.5) + largest.sum(-1, keepdim=True)
        x[:, 1:] = x[:, 1:] + x[:, :-1].clone()
        rows = torch.arange(x.shape[0])
        last = x[rows, (tokens != 7).long().sum(-1) - 1] * F.one_hot(labels, 12)
        seen = ((tokens < 20) | ~(tokens >= 40)) & (tokens != 3)
        x = x.masked_fill(~seen[..., None], -1.0).amax(1) + F.softplus(last)
        x = x + torch.zeros_like(x).index_add(1, self.order % 12, x[:, self.order]) + x.gather(1, x.argsort(1))
        logits = self.head(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Fourier(nn.Module):
    """As FNet, which mixes tokens by Fourier transforms; and a filter of their frequencies, and scans."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 12), nn.LayerNorm(12)
        self.up, self.down = nn.Linear(12, 160), nn.Linear(160, 12)
        self.filter = nn.Parameter(torch.randn(6, 12, 2))
        self.head = nn.Linear(12, 5)

    def forward(self, x, labels):
        x = self.first(x)
        x = self.norm(x + torch.fft.fft2(x).real)
        x = x + self.down(F.gelu(self.up(x)))
        spectrum = torch.fft.rfft(x, dim=1) * torch.view_as_complex(self.filter)
        x = x + torch.fft.irfft(spectrum, n=x.shape[1], dim=1)
        x = x.logcumsumexp(1) + x.cummax(1).values
        logits = self.head(x.mean(1))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Weighed(nn.Module):
    """A classifier whose loss weighs classes, smooths labels, or leaves out a class."""

    def __init__(self, **options: Any):
        super().__init__()
        self.head = nn.Linear(6, 5)
        self.register_buffer("weight", torch.tensor([0.5, 1.0, 2.0, 1.5, 0.25]) if options.pop("weigh", False) else None)
        self.options = options

    def forward(self, x, labels):
        logits = self.head(x)
        return {"loss": F.cross_entropy(logits, labels, weight=self.weight, **self.options), "logits": logits}


def _mixture(class_name: str, config_name: str, **config: Any) -> TorchModel:
    """Of experts, which run as the loop over them that defines them: PyTorch's grouped products know no float64."""
    module = _hf(class_name, config_name, **config)
    module.config._experts_implementation = "eager"
    return _language_model(module)


def _recurrent(kind: str) -> TorchModel:
    """Of few tokens, for each is some nodes of the graph."""
    return TorchModel(filled(Recurrent(kind)), {"tokens": ids(length=5), "labels": ids(2, length=5)})


def _weighed(**options: Any) -> TorchModel:
    generator = torch.Generator().manual_seed(3)
    batch = {"x": torch.randn(BATCH, 6, generator=generator), "labels": torch.tensor([4, 2, 0])}
    return TorchModel(filled(Weighed(**options)), batch)


def _t5() -> TorchModel:
    config = dict(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=1, num_heads=4, dropout_rate=0.0, decoder_start_token_id=0)
    return _language_model(_hf("T5ForConditionalGeneration", "T5Config", "eager", vocab_size=VOCABULARY, **config))


def _deepseek() -> TorchModel:
    """Latent attention, and experts that are chosen of groups."""
    latent = dict(kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8)
    experts = dict(moe_intermediate_size=24, n_routed_experts=8, num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1)
    return _mixture("DeepseekV3ForCausalLM", "DeepseekV3Config", **{**_DECODER, "num_key_value_heads": 4}, **latent, **experts)


MODELS: dict[str, Callable[[], TorchModel]] = {
    "gpt2": lambda: _language_model(_hf("GPT2LMHeadModel", "GPT2Config", **_GPT2)),
    "llama": lambda: _language_model(_hf("LlamaForCausalLM", "LlamaConfig", **_DECODER)),
    "llama, eager": lambda: _language_model(_hf("LlamaForCausalLM", "LlamaConfig", "eager", **_DECODER)),
    "llama, padded": lambda: _padded(_hf("LlamaForCausalLM", "LlamaConfig", **_DECODER)),
    "qwen3": lambda: _language_model(_hf("Qwen3ForCausalLM", "Qwen3Config", head_dim=8, **_DECODER)),
    "mistral, window": lambda: _language_model(_hf("MistralForCausalLM", "MistralConfig", sliding_window=4, **_DECODER)),
    "gemma2": lambda: _language_model(_hf("Gemma2ForCausalLM", "Gemma2Config", "eager", head_dim=8, sliding_window=4, **_DECODER)),
    "gemma3": lambda: _language_model(_hf("Gemma3ForCausalLM", "Gemma3TextConfig", head_dim=8, sliding_window=4, layer_types=_LAYERS, **_DECODER)),
    "gpt-neox": lambda: _language_model(_hf("GPTNeoXForCausalLM", "GPTNeoXConfig", vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2, **_NEOX)),
    "phi3": lambda: _language_model(_hf("Phi3ForCausalLM", "Phi3Config", **_DECODER)),
    "bert, masked": lambda: _language_model(_hf("BertForMaskedLM", "BertConfig", vocab_size=VOCABULARY, **_ENCODER)),
    "bert, classes": lambda: _classifier("sdpa"),
    "bert, classes, eager": lambda: _classifier("eager"),
    "vit": _vit,
    "mlp": _mlp,
    "nn.Transformer": lambda: TorchModel(filled(Translator()), {"source": ids(), "target": ids(2), "labels": ids(3)}),
    "table with padding": _table_with_padding,
    "stopped gradients": _stopped,
    "t5": _t5,
    "mamba": lambda: _language_model(_hf("MambaForCausalLM", "MambaConfig", "eager", vocab_size=VOCABULARY, hidden_size=32, state_size=8, num_hidden_layers=2)),
    "mixtral": lambda: _mixture("MixtralForCausalLM", "MixtralConfig", num_local_experts=4, num_experts_per_tok=2, **_DECODER),
    "deepseek v3": _deepseek,
    "rnn": lambda: _recurrent("RNN"),
    "lstm": lambda: _recurrent("LSTM"),
    "gru": lambda: _recurrent("GRU"),
    "indexed": lambda: TorchModel(filled(Indexed()), {"tokens": ids(), "labels": torch.tensor([4, 2, 0])}),
    "fourier": lambda: TorchModel(filled(Fourier()), {"x": torch.randn(BATCH, 10, 6), "labels": torch.tensor([4, 2, 0])}),
    "class weights": lambda: _weighed(weigh=True),
    "smoothed labels": lambda: _weighed(weigh=True, label_smoothing=0.1),
    "a class is ignored": lambda: _weighed(ignore_index=2),
}
