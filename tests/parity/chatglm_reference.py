"""ChatGLM2, ChatGLM3 and GLM-4 in plain PyTorch, written from the models' descriptions: the reference of the parity
tests, because transformers has no class for their model_type `chatglm`. Half of each head is rotated, in pairs of
neighbours."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from baichuan_reference import RmsNorm
from torch import nn


def inv_freq(config: dict) -> torch.Tensor:
    """In fp32, as the published code computes them."""
    rotated = config["kv_channels"] // 2
    base = 10000.0 * config.get("rope_ratio", 1)
    return 1.0 / base ** (torch.arange(0, rotated, 2, dtype=torch.float32) / rotated)


def rotate(x: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """x: [B, S, H, D], whose dims 2i and 2i + 1 turn by position x frequencies[i]."""
    turns = torch.outer(torch.arange(x.shape[1], dtype=torch.float64), frequencies.double())[None, :, None]
    table = torch.float64 if x.dtype == torch.float64 else torch.float32
    cos, sin = turns.cos().to(table), turns.sin().to(table)
    turned = 2 * len(frequencies)
    pairs = x[..., :turned].unflatten(-1, (-1, 2))
    a, b = pairs[..., 0], pairs[..., 1]
    pairs = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    return torch.cat([pairs.to(x.dtype), x[..., turned:]], dim=-1)


class Attention(nn.Module):
    def __init__(self, config: dict):
        super().__init__()
        self.heads, self.size = config["num_attention_heads"], config["kv_channels"]
        self.shared = config.get("multi_query_attention", False)
        self.groups = config["multi_query_group_num"] if self.shared else self.heads
        bias = config.get("add_bias_linear", False)
        rows = (self.heads + 2 * self.groups) * self.size
        self.query_key_value = nn.Linear(config["hidden_size"], rows, bias=bias or config.get("add_qkv_bias", False))
        self.dense = nn.Linear(self.heads * self.size, config["hidden_size"], bias=bias)
        self.frequencies = inv_freq(config)

    def _split(self, mixed: torch.Tensor) -> list[torch.Tensor]:
        """[B, S, heads or groups, D] each. With shared keys and values all queries come first, else head by head."""
        if not self.shared:
            return list(mixed.unflatten(-1, (self.heads, 3, self.size)).unbind(3))
        counts = [self.heads, self.groups, self.groups]
        return list(mixed.unflatten(-1, (-1, self.size)).split(counts, dim=2))

    def forward(self, x):
        q, k, v = self._split(self.query_key_value(x))
        q, k = rotate(q, self.frequencies), rotate(k, self.frequencies)
        k, v = (t.repeat_interleave(self.heads // self.groups, dim=2) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        length = x.shape[1]
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(self.size)).masked_fill(hidden, float("-inf"))
        return self.dense((scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, config: dict):
        super().__init__()
        hidden, inner, bias = config["hidden_size"], config["ffn_hidden_size"], config.get("add_bias_linear", False)
        self.dense_h_to_4h = nn.Linear(hidden, 2 * inner, bias=bias)
        self.dense_4h_to_h = nn.Linear(inner, hidden, bias=bias)

    def forward(self, x):
        gate, up = self.dense_h_to_4h(x).chunk(2, dim=-1)
        return self.dense_4h_to_h(F.silu(gate) * up)


def _norm(config: dict) -> nn.Module:
    kind = RmsNorm if config.get("rmsnorm", True) else nn.LayerNorm
    return kind(config["hidden_size"], eps=config.get("layernorm_epsilon", 1e-5))


class Layer(nn.Module):
    def __init__(self, config: dict):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = _norm(config), _norm(config)
        self.self_attention, self.mlp = Attention(config), Mlp(config)
        self.from_norm = config.get("apply_residual_connection_post_layernorm", False)

    def forward(self, x):
        for norm, branch in ((self.input_layernorm, self.self_attention), (self.post_attention_layernorm, self.mlp)):
            normal = norm(x)
            x = (normal if self.from_norm else x) + branch(normal)
        return x


class ChatGlm(nn.Module):
    def __init__(self, config: dict):
        super().__init__()
        self.transformer = nn.Module()
        self.transformer.embedding = nn.Module()
        self.transformer.embedding.word_embeddings = nn.Embedding(config["padded_vocab_size"], config["hidden_size"])
        self.transformer.encoder = nn.Module()
        self.transformer.encoder.layers = nn.ModuleList(Layer(config) for _ in range(config["num_layers"]))
        self.transformer.encoder.final_layernorm = _norm(config)
        self.transformer.output_layer = nn.Linear(config["hidden_size"], config["padded_vocab_size"], bias=False)

    def forward(self, tokens):
        x = self.transformer.embedding.word_embeddings(tokens)
        for layer in self.transformer.encoder.layers:
            x = layer(x)
        return self.transformer.output_layer(self.transformer.encoder.final_layernorm(x))
