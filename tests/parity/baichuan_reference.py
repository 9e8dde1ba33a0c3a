"""Baichuan 7B and 13B in plain PyTorch, written from the models' descriptions: the reference of the parity tests,
because transformers has no such class. 7B: rotary embeddings. 13B: ALiBi. Baichuan 2: head rows have length 1."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class BaichuanShape:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    rms_norm_eps: float
    alibi: bool
    norm_head: bool


class RmsNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normal.to(x.dtype)


def alibi_slopes(heads: int) -> list[float]:
    """Head h of 2^n heads: 2^(-8h/2^n). Else those of the power of two below, then every second of the one above."""
    below = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * h / below) for h in range(1, below + 1)]
    return slopes + [2.0 ** (-8.0 * h / (2 * below)) for h in range(1, 2 * below + 1, 2)][: heads - below]


def rotate(x: torch.Tensor) -> torch.Tensor:
    """x: [B, H, S, D]."""
    half = x.shape[-1] // 2
    exponents = torch.arange(0, 2 * half, 2, dtype=torch.float32) / (2 * half)
    inv_freq = (1.0 / 10000.0**exponents).double()  # fp32 numbers in the published code
    phase = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * inv_freq
    table = torch.float64 if x.dtype == torch.float64 else torch.float32
    cos, sin = phase.cos().to(table), phase.sin().to(table)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: BaichuanShape):
        super().__init__()
        self.heads, self.alibi = shape.num_attention_heads, shape.alibi
        self.W_pack = nn.Linear(shape.hidden_size, 3 * shape.hidden_size, bias=False)
        self.o_proj = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)

    def forward(self, x):
        batch, length, size = x.shape
        q, k, v = (t.reshape(batch, length, self.heads, -1).transpose(1, 2) for t in self.W_pack(x).split(size, dim=-1))
        if not self.alibi:
            q, k = rotate(q), rotate(k)
        scores = q @ k.transpose(-1, -2) / math.sqrt(size // self.heads)
        i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]
        if self.alibi:
            scores = scores + torch.tensor(alibi_slopes(self.heads), dtype=scores.dtype)[:, None, None] * (j - i)
        weights = scores.masked_fill(j > i, float("-inf")).softmax(-1).to(v.dtype)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(batch, length, size))


class Mlp(nn.Module):
    def __init__(self, shape: BaichuanShape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: BaichuanShape):
        super().__init__()
        self.self_attn, self.mlp = Attention(shape), Mlp(shape)
        self.input_layernorm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    def __init__(self, shape: BaichuanShape):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)


class Baichuan(nn.Module):
    def __init__(self, shape: BaichuanShape):
        super().__init__()
        self.norm_head = shape.norm_head
        self.model = Model(shape)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)

    def forward(self, tokens):
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x)
        x = self.model.norm(x)
        if not self.norm_head:
            return self.lm_head(x)
        return F.linear(x, F.normalize(self.lm_head.weight))
