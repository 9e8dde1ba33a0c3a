"""Which spellings of attention become the op `attention`, with what of their masks in its attributes, in the bias of its keys, and in that of its scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import tacc
import torch
import torch.nn.functional as F
from comparison import EXACT, check_against_torch
from torch import Tensor, nn
from torch_models import BATCH, LENGTH, TorchModel, filled, padding

HEADS, KV_HEADS, WIDTH = 4, 2, 8
Spelling = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def products(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) / math.sqrt(WIDTH)


def causal(scores: Tensor) -> Tensor:
    """True where the query sees the key."""
    return torch.ones(scores.shape[-2:], dtype=torch.bool).tril()


def distances(q: Tensor) -> Tensor:
    """[S,S]: the query's position less the key's."""
    position = torch.arange(q.shape[2])
    return position[:, None] - position[None, :]


def blocks(q: Tensor, size: int) -> Tensor:
    """[S,S]: the query's block less the key's."""
    block = torch.arange(q.shape[2]) // size
    return block[:, None] - block[None, :]


def narrow(x: Tensor) -> Tensor:
    return x[:, :KV_HEADS]


def repeated(x: Tensor) -> Tensor:
    return narrow(x).repeat_interleave(HEADS // KV_HEADS, dim=1)


def expanded(x: Tensor) -> Tensor:
    batch, _, length, width = x.shape
    return narrow(x)[:, :, None].expand(batch, KV_HEADS, HEADS // KV_HEADS, length, width).reshape(batch, HEADS, length, width)


def additive(seen: Tensor) -> Tensor:
    return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)


def infinite(seen: Tensor) -> Tensor:
    return torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))


def there(keys: Tensor) -> Tensor:
    return (keys != 0)[:, None, None]


# Of q, k and v [B,H,S,D], keys [B,S] (not zero where there is one), a mask [B,1,S,S], and a bias [H,S,S] that is trained.
FUSED: dict[str, tuple[Spelling, str]] = {
    "plain": (lambda q, k, v, keys, mask, bias: (q @ k.transpose(-1, -2)).softmax(-1) @ v, "causal=false scale=1.0"),
    "divided": (lambda q, k, v, keys, mask, bias: products(q, k).softmax(-1) @ v, "causal=false scale=0.35355"),
    "multiplied": (lambda q, k, v, keys, mask, bias: F.softmax(torch.matmul(q, k.mT) * 0.25, dim=3) @ v, "causal=false scale=0.25"),
    "sdpa": (lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v), "causal=false scale=0.35355"),
    "sdpa, causal": (lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5), "causal=true scale=0.5"),
    "sdpa, a triangle": (lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, causal(q @ k.mT)), "causal=true"),
    "filled triangle": (lambda q, k, v, keys, mask, bias: (s := products(q, k)).masked_fill(~causal(s), float("-inf")).softmax(-1) @ v, "causal=true"),
    "chosen triangle": (lambda q, k, v, keys, mask, bias: torch.where(causal(s := products(q, k)), s, -1e9).softmax(-1) @ v, "causal=true"),
    "added triangle": (lambda q, k, v, keys, mask, bias: ((s := products(q, k)) + additive(causal(s))).softmax(-1) @ v, "causal=true"),
    "window": (lambda q, k, v, keys, mask, bias: (s := products(q, k)).masked_fill(~causal(s).triu(-2), -1e9).softmax(-1) @ v, "window=3"),
    "soft cap": (lambda q, k, v, keys, mask, bias: (20 * torch.tanh(products(q, k) / 20)).softmax(-1) @ v, "softcap=20.0"),
    "repeated heads": (lambda q, k, v, keys, mask, bias: products(q, repeated(k)).softmax(-1) @ repeated(v), "causal=false"),
    "expanded heads": (lambda q, k, v, keys, mask, bias: products(q, expanded(k)).softmax(-1) @ expanded(v), "causal=false"),
    "sdpa, grouped": (lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, narrow(k), narrow(v), enable_gqa=True), "causal=false"),
    "key padding": (
        lambda q, k, v, keys, mask, bias: products(q, k).masked_fill(keys[:, None, None] == 0, float("-inf")).softmax(-1) @ v,
        "causal=false key_bias=true scale=0.35355",
    ),
    "key padding, added": (
        lambda q, k, v, keys, mask, bias: (products(q, k) + (1.0 - keys[:, None, None].to(q.dtype)) * -1e9).softmax(-1) @ v,
        "causal=false key_bias=true",
    ),
    "key padding, sdpa": (lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, there(keys)), "causal=false key_bias=true"),
    "key padding, sdpa, causal": (
        lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, causal(q @ k.mT) & there(keys)),
        "causal=true key_bias=true",
    ),
    "key padding, sdpa, window": (
        lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, causal(q @ k.mT).triu(-2) & there(keys)),
        "causal=true key_bias=true scale=0.35355",
    ),
    "key padding, soft cap": (
        lambda q, k, v, keys, mask, bias: (20 * torch.tanh(products(q, k) / 20)).masked_fill(~there(keys), -1e9).softmax(-1) @ v,
        "key_bias=true scale=0.35355",
    ),
    "key padding, repeated heads": (
        lambda q, k, v, keys, mask, bias: products(q, repeated(k)).masked_fill(~there(keys), -1e9).softmax(-1) @ repeated(v),
        "causal=false key_bias=true",
    ),
    "key padding, sdpa, grouped": (
        lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, narrow(k), narrow(v), there(keys), enable_gqa=True),
        "causal=false key_bias=true",
    ),
    "key padding, of fewer queries": (
        lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q[:, :, 1:], k, v, there(keys)),
        "causal=false key_bias=true",
    ),
    "key padding, sdpa, of all heads": (
        lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, there(keys).expand(-1, HEADS, q.shape[2], -1)),
        "causal=false key_bias=true",
    ),
    "key padding, heads as samples": (
        lambda q, k, v, keys, mask, bias: (
            torch.baddbmm(additive(there(keys)).to(q.dtype).expand(-1, HEADS, -1, -1).flatten(0, 1), q.flatten(0, 1), k.flatten(0, 1).mT).softmax(-1) @ v.flatten(0, 1)
        ).unflatten(0, (-1, HEADS)),
        "causal=false key_bias=true scale=1.0",
    ),
    "key padding, causal, by -inf": (
        lambda q, k, v, keys, mask, bias: (s := products(q, k)).masked_fill(~(causal(s) & there(keys)), float("-inf")).softmax(-1) @ v,
        "causal=true key_bias=true",
    ),
    "key padding, of another number": (
        lambda q, k, v, keys, mask, bias: products(q, k).masked_fill((7 - keys == 7)[:, None, None], -1e9).softmax(-1) @ v,
        "causal=false key_bias=true",
    ),
    "key padding, of old models": (
        lambda q, k, v, keys, mask, bias: (products(q, k) + (1 - keys[:, None, None]) * -10000.0).softmax(-1) @ v,
        "causal=false key_bias=true",
    ),
    "key padding, bias": (
        lambda q, k, v, keys, mask, bias: (products(q, k) + bias).masked_fill(~there(keys), -1e9).softmax(-1) @ v,
        "bias=true bias_yields=true causal=false key_bias=true scale=0.35355",
    ),
    "key padding, added to a bias": (
        lambda q, k, v, keys, mask, bias: (products(q, k) + (bias + additive(there(keys)))).softmax(-1) @ v,
        "bias=true causal=false key_bias=true scale=0.35355",
    ),
    "key padding, sdpa, in the place of a bias": (
        lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, torch.where(there(keys), bias, torch.finfo(torch.float32).min)),
        "bias=true bias_yields=true causal=false key_bias=true scale=0.35355",
    ),
    "key padding, in the place of a bias": (
        lambda q, k, v, keys, mask, bias: (products(q, k) + bias.expand(q.shape[0], -1, -1, -1).masked_fill(~there(keys), -1e38)).softmax(-1) @ v,
        "bias=true bias_yields=true causal=false key_bias=true scale=0.35355",
    ),
    "triangle in the place of a bias": (
        lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, torch.where(causal(bias), bias, torch.finfo(torch.float32).min)[None]),
        "bias=true bias_yields=true causal=true",
    ),
    "key padding, sdpa, added to a bias": (
        lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, bias + additive(there(keys)).to(q.dtype)),
        "bias=true causal=false key_bias=true scale=0.35355",
    ),
    "added triangle, bias": (lambda q, k, v, keys, mask, bias: ((s := products(q, k)) + bias + additive(causal(s))).softmax(-1) @ v, "bias=true causal=true"),
    "einsum": (
        lambda q, k, v, keys, mask, bias: torch.einsum(
            "bhij,bjhd->bihd", (torch.einsum("bihd,bjhd->bhij", q.transpose(1, 2), k.transpose(1, 2)) / 3).softmax(-1), v.transpose(1, 2)
        ).transpose(1, 2),
        "causal=false scale=0.33333",
    ),
    "einsum, keys first, key padding": (
        lambda q, k, v, keys, mask, bias: torch.einsum(
            "bhjd,bhij->bhid", v, torch.einsum("bhjd,bhid->bhij", k, q).masked_fill(~there(keys), float("-inf")).softmax(-1)
        ),
        "causal=false key_bias=true scale=1.0",
    ),
    "einsum, keys of one head": (
        lambda q, k, v, keys, mask, bias: torch.einsum("bhij,bjd->bhid", torch.einsum("bhid,bjd->bhij", q, k[:, 0]).softmax(-1), v[:, 0]),
        "causal=false scale=1.0",
    ),
    "keys of one head": (lambda q, k, v, keys, mask, bias: products(q, k).softmax(-1) @ v[:, :1], "causal=false"),
    "of five dims": (lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0], "causal=false"),
    "of fewer keys": (lambda q, k, v, keys, mask, bias: products(q, k[:, :, 1:]).softmax(-1) @ v[:, :, 1:], "causal=false"),
}
# With a bias of scores: masks that are no attributes, and what is trained.
BIASED: dict[str, Spelling] = {
    "key padding, causal": lambda q, k, v, keys, mask, bias: (s := products(q, k)).masked_fill(~(causal(s) & there(keys)), -1e9).softmax(-1) @ v,
    "any mask": lambda q, k, v, keys, mask, bias: products(q, k).masked_fill(mask, float("-inf")).softmax(-1) @ v,
    "any mask, sdpa": lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, ~mask),
    "any mask, added": lambda q, k, v, keys, mask, bias: (products(q, k) + additive(~mask)).softmax(-1) @ v,
    "any mask, chosen": lambda q, k, v, keys, mask, bias: torch.where(~mask, products(q, k), -1e9).softmax(-1) @ v,
    "bias": lambda q, k, v, keys, mask, bias: (products(q, k) + bias).softmax(-1) @ v,
    "bias of all, before": lambda q, k, v, keys, mask, bias: ((bias * q[:, :, :1, :1]).relu() + products(q, k)).softmax(-1) @ v,
    "bias before": lambda q, k, v, keys, mask, bias: (bias + products(q, k)).softmax(-1) @ v,
    "bias, soft cap": lambda q, k, v, keys, mask, bias: (2 * torch.tanh(products(q, k) / 2) + bias).softmax(-1) @ v,
    "bias, sdpa": lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, bias[None]),
    "bias of all heads": lambda q, k, v, keys, mask, bias: (products(q, k) + bias[:1]).softmax(-1) @ v,
    "bias of keys": lambda q, k, v, keys, mask, bias: (products(q, k) + bias[:, :1]).softmax(-1) @ v,
    "bias of samples": lambda q, k, v, keys, mask, bias: (products(q, k) + bias + q[..., :1]).softmax(-1) @ v,
    "bias, of fewer queries": lambda q, k, v, keys, mask, bias: (products(q[:, :, 1:], k) + bias[:, 1:]).softmax(-1) @ v,
    "bias, any mask": lambda q, k, v, keys, mask, bias: (products(q, k) + bias).masked_fill(mask, float("-inf")).softmax(-1) @ v,
    "bias and two masks": lambda q, k, v, keys, mask, bias: ((s := products(q, k)) + additive(causal(s)) + additive(there(keys)) + bias).softmax(-1) @ v,
    "heads as samples": lambda q, k, v, keys, mask, bias: (
        torch.baddbmm(bias.repeat(q.shape[0], 1, 1), q.flatten(0, 1), k.flatten(0, 1).mT).softmax(-1) @ v.flatten(0, 1)
    ).unflatten(0, (-1, HEADS)),
    "einsum": lambda q, k, v, keys, mask, bias: torch.einsum("bhqk,bhkd->bhqd", (torch.einsum("bhqd,bhkd->bhqk", q, k) * 0.5 + bias).softmax(-1), v),
    "causal, of fewer queries": lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q[:, :, 1:], k, v, is_causal=True),
    "bias, repeated heads": lambda q, k, v, keys, mask, bias: (products(q, repeated(k)) + bias).softmax(-1) @ repeated(v),
    # What only longer sequences than these show, or keys that are there in another way than by not being 0.
    "near ones of many": lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, distances(q).abs().float() < 16.0),
    "16 keys that are there": lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, there(keys) & (keys.cumsum(1) <= 16)[:, None, None]),
    "the first key always": lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, there(keys) | (torch.arange(q.shape[2]) == 0)),
    "keys of one kind": lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, (keys == 1)[:, None, None]),
    "keys but of one kind": lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, ((keys != 0) & (keys != 7))[:, None, None]),
    "keys above a number": lambda q, k, v, keys, mask, bias: (products(q, k) + infinite((keys > -5)[:, None, None])).softmax(-1) @ v,
    "near ones, in seconds": lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, (distances(q) * 0.02).abs() <= 1.01),
    "causal, of a finite number": lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(
        q, k, v, additive(causal(products(q, k)) & there(keys)).to(q.dtype)
    ),
}


def in_groups(attends: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> Spelling:
    """Of q [B,K,G,S,D] and k, v [B,K,1,T,D], in five dims, and keys [B,T]."""
    return lambda q, k, v, keys, mask, bias: attends(q.unflatten(1, (KV_HEADS, -1)), narrow(k).unsqueeze(2), narrow(v).unsqueeze(2), keys).flatten(1, 2)



# Scores of five dims; what the op's line says.
IN_GROUPS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], str]] = {
    "matmul": (lambda q, k, v, keys: products(q, k).softmax(-1) @ v, "causal=false scale="),
    "causal": (lambda q, k, v, keys: (products(q, k).masked_fill(~causal(products(q, k)), -torch.inf)).softmax(-1) @ v, "causal=true"),
    "padding": (lambda q, k, v, keys: products(q, k).masked_fill(keys[:, None, None, None] == 0, -torch.inf).softmax(-1) @ v, "key_bias=true"),
    "another padding of each head": (
        lambda q, k, v, keys: products(q, k)
        .masked_fill((keys[:, None, None, None] == 0) & (torch.arange(q.shape[2])[:, None, None] > 0), -1e9)
        .softmax(-1)
        @ v,
        " bias=true",
    ),
    "einsum": (
        lambda q, k, v, keys: torch.einsum("bkgst,bktd->bkgsd", torch.einsum("bkgsd,bktd->bkgst", q, k[:, :, 0]).softmax(-1), v[:, :, 0]),
        "causal=false scale=1.0",
    ),
    "sdpa": (lambda q, k, v, keys: F.scaled_dot_product_attention(q, k, v, is_causal=True), "causal=true"),
    "sdpa, with a mask": (
        lambda q, k, v, keys: F.scaled_dot_product_attention(q, k, v, (keys[:, None, None, None] != 0).expand(-1, KV_HEADS, 1, LENGTH, -1)),
        "bias=true",
    ),
}

# That look like others: whether they become the op or not, they compute what they did.
LOOK_ALIKE: dict[str, Spelling] = {
    "padding of all pairs of samples": lambda q, k, v, keys, mask, bias: (
        (products(q[:, None], k[None]).masked_fill(keys[:, None, None] == 0, -1e9).softmax(-1) @ v[None]).mean(1)
    ),
    "padding of all pairs of samples, added": lambda q, k, v, keys, mask, bias: (
        ((products(q[:, None], k[None]) + (keys[:, None, None] == 0) * -1e9).softmax(-1) @ v[None]).mean(1)
    ),
    "padding of all pairs of samples, sdpa": lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(
        *(x.expand(len(q), len(q), -1, -1, -1) for x in (q[:, None], k[None], v[None])), keys[:, None, None] != 0
    ).mean(1),
    "padding of all pairs of samples, einsum": lambda q, k, v, keys, mask, bias: torch.einsum(
        "abhst,bhtd->abhsd", torch.einsum("ahsd,bhtd->abhst", q, k).masked_fill(keys[:, None, None] == 0, -torch.inf).softmax(-1), v
    ).mean(1),
    "padding of samples in the second dim": lambda q, k, v, keys, mask, bias: (
        products(q[None], k[None]).masked_fill(keys[:, None, None] == 0, -1e9).softmax(-1) @ v[None]
    )[0],
    "windows of windows": lambda q, k, v, keys, mask, bias: (
        (products(q[:, None], k[:, None].expand(-1, 3, -1, -1, -1)) + bias[:3, :1].expand(1, 3, LENGTH, LENGTH).view(3, 1, LENGTH, LENGTH)).softmax(-1)
        @ v[:, None]
    ).mean(1),
    "kv heads in five dims, sdpa": lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(
        q[:, None], narrow(k)[:, None], narrow(v)[:, None], enable_gqa=True
    )[:, 0],
    "kv heads in five dims, sdpa, with a mask": lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(
        q[:, None], narrow(k)[:, None], narrow(v)[:, None], ~mask[:, None], enable_gqa=True
    )[:, 0],
    "frames": lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(*(torch.stack([x, x.flip(2)], 1) for x in (q, k, v))).mean(1),
    "divided by the number of keys": lambda q, k, v, keys, mask, bias: (q @ k.mT / k.shape[-2]).softmax(-1) @ v,
    "queries of no sample, one head": lambda q, k, v, keys, mask, bias: (
        (q[0, :1] @ k[:, 0].mT).masked_fill(mask[:, 0], -1e9).softmax(-1) @ v[:, 0]
    )[:, None].expand(-1, HEADS, -1, -1),
    "a bias of heads, scores of one, in three dims": lambda q, k, v, keys, mask, bias: (
        ((q[0, :1] @ k[0, :1].mT + bias).softmax(-1) @ v[0, :1]).expand(len(q), -1, -1, -1)
    ),
    "two dropouts": lambda q, k, v, keys, mask, bias: F.dropout(F.dropout(products(q, k).softmax(-1), 1e-12), 0.0) @ v,
    "samples that are parts": lambda q, k, v, keys, mask, bias: (
        products(q, k) + bias[:3, :1].expand(q.shape[0] // 3, -1, LENGTH, -1).reshape(-1, 1, LENGTH, LENGTH)
    ).softmax(-1) @ v,
    "a bias of heads, scores of one": lambda q, k, v, keys, mask, bias: (bias + products(q[:, :1], k[:, :1])).softmax(-1) @ v[:, :1],
    "a mask of queries, scores of one": lambda q, k, v, keys, mask, bias: products(q[:, :, :1], k).masked_fill(mask, -1e9).softmax(-1) @ v,
    "a bias of keys, scores of one": lambda q, k, v, keys, mask, bias: (bias + products(q, k[:, :, :1])).softmax(-1) @ v,
    "a bias of groups, scores of one": lambda q, k, v, keys, mask, bias: (
        ((bias.unflatten(0, (2, 2)) + products(q[:, None, :1], k[:, None, :1])).softmax(-1) @ v[:, None, :1]).flatten(1, 2)
    ),
    "keys of one number": lambda q, k, v, keys, mask, bias: torch.einsum("bhsd,bhtd->bhst", q, k[..., :1]).softmax(-1) @ v,
    "values of one key": lambda q, k, v, keys, mask, bias: torch.einsum("bhst,bhtd->bhsd", products(q, k).softmax(-1), v[:, :, :1]),
    "a cap below 0": lambda q, k, v, keys, mask, bias: (-2 * torch.tanh(products(q, k) / -2)).softmax(-1) @ v,
    "nearly a cap": lambda q, k, v, keys, mask, bias: (3 * torch.tanh(products(q, k) * 0.3333333)).softmax(-1) @ v,
    "a bias behind the masks of windows": lambda q, k, v, keys, mask, bias: (
        (products(q, k).view(1, *q.shape[:2], LENGTH, LENGTH) + mask[None, :1].to(q.dtype)).view(-1, HEADS, LENGTH, LENGTH) + bias
    ).softmax(-1)
    @ v,
    "a fixed number of rows that drop": lambda q, k, v, keys, mask, bias: F.dropout(products(q, k).softmax(-1), 1e-12) @ v
    + torch.zeros(len(q), 1, 1, 1),
}

SPELLED_OUT: dict[str, Spelling] = {
    "a mask within a cap": lambda q, k, v, keys, mask, bias: (
        (4 * torch.tanh(torch.baddbmm(additive(causal(q @ k.mT)).to(q.dtype).expand(q.shape[0] * HEADS, -1, -1), q.flatten(0, 1), k.flatten(0, 1).mT) / 4)).softmax(-1)
        @ v.flatten(0, 1)
    ).unflatten(0, (-1, HEADS)),
    "probabilities that are rounded": lambda q, k, v, keys, mask, bias: (products(q, k) * 1000).softmax(-1).long().to(v.dtype) @ v + v,
    "values of no head": lambda q, k, v, keys, mask, bias: products(q, k).softmax(-1) @ v[0, 0],
}


class Attends(nn.Module):
    def __init__(self, spelling: Spelling):
        super().__init__()
        self.spelling = spelling
        self.q, self.k, self.v = (nn.Linear(6, HEADS * WIDTH) for _ in range(3))
        self.bias, self.out = nn.Parameter(torch.zeros(HEADS, LENGTH, LENGTH)), nn.Linear(HEADS * WIDTH, 3)

    def forward(self, x, keys, mask):
        q, k, v = (layer(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        out = self.out(self.spelling(q, k, v, keys, mask, self.bias).transpose(1, 2).flatten(2))
        return {"loss": out.square().mean(), "out": out}


def keys_of_texts() -> Tensor:
    """Each query sees one, also a causal one."""
    keys = padding()
    keys[:, 0] = 1
    return keys


def attention_in(folder: Path) -> str:
    """The one line of the graph that is attention."""
    [line] = [line for line in (folder / "model.graph").read_text().splitlines() if " = attention %" in line]
    return line


def export_of(spelling: Spelling, folder: Path, keys: Tensor | None = None) -> tacc.Exported:
    """Whose graph computes what the model does."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(BATCH, LENGTH, 6, generator=generator)
    mask = torch.rand(BATCH, 1, LENGTH, LENGTH, generator=generator) < 0.4
    mask[..., 0] = False  # each query sees a key
    model = TorchModel(filled(Attends(spelling)), {"x": x, "keys": keys_of_texts() if keys is None else keys, "mask": mask})
    exported = tacc.export_model(model.module, model.batch, folder)
    check_against_torch(exported, model, EXACT)
    return exported


@pytest.mark.parametrize("name", FUSED)
def test_becomes_the_op(name: str, tmp_path: Path):
    spelling, said = FUSED[name]
    exported = export_of(spelling, tmp_path)
    line = attention_in(tmp_path)
    assert said in line
    assert "softmax" not in exported.coverage.ops
    if "one head" in name:
        return
    heads = HEADS if name.split(", ")[-1] not in ("repeated heads", "expanded heads", "grouped") else KV_HEADS
    text = (tmp_path / "model.graph").read_text()
    keys = line.split("attention ")[1].split(", ")[1]
    [made] = [other for other in text.splitlines() if other.startswith(f"{keys} = ")]
    assert f",{heads},{WIDTH}]" in made, "the heads of keys and values are not repeated"


# By which a query that sees no key has the result 0, or the mean of all values.
NOTHING_SEEN: dict[str, Spelling] = {
    "sdpa": FUSED["key padding, sdpa"][0],
    "sdpa, causal": FUSED["key padding, sdpa, causal"][0],
    "added": lambda q, k, v, keys, mask, bias: (products(q, k) + additive(there(keys))).softmax(-1) @ v,
    "added, soft cap": lambda q, k, v, keys, mask, bias: (5 * torch.tanh(products(q, k) / 5) + additive(there(keys))).softmax(-1) @ v,
    "added, weak": lambda q, k, v, keys, mask, bias: (products(q, k) + (1.0 - there(keys).to(q.dtype)) * -1e4).softmax(-1) @ v,
    "filled": lambda q, k, v, keys, mask, bias: products(q, k).masked_fill(~there(keys), -1e9).softmax(-1) @ v,
    "chosen, repeated heads": lambda q, k, v, keys, mask, bias: torch.where(there(keys), products(q, repeated(k)), -1e9).softmax(-1) @ repeated(v),
    "sdpa, added": lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, infinite(there(keys)).to(q.dtype)),
    "sdpa, added to a bias": lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, bias + infinite(there(keys))),
    "filled, causal": lambda q, k, v, keys, mask, bias: (s := products(q, k)).masked_fill(~(causal(s) & there(keys)), -1e9).softmax(-1) @ v,
    "added, causal, weak": lambda q, k, v, keys, mask, bias: (
        ((s := products(q, k)) + (1.0 - (causal(s) & there(keys)).to(q.dtype)) * -1e4).softmax(-1) @ v
    ),
    "filled, bias": lambda q, k, v, keys, mask, bias: (products(q, k) + bias).masked_fill(~there(keys), -1e9).softmax(-1) @ v,
    "filled, causal, bias": lambda q, k, v, keys, mask, bias: ((s := products(q, k)) + bias).masked_fill(~(causal(s) & there(keys)), -1e9).softmax(-1) @ v,
    "filled, any mask, bias": lambda q, k, v, keys, mask, bias: (products(q, k) + bias).masked_fill(mask | ~there(keys), -1e9).softmax(-1) @ v,
    "added, bias": lambda q, k, v, keys, mask, bias: (products(q, k) + bias + additive(there(keys))).softmax(-1) @ v,
    "added, weak, bias": lambda q, k, v, keys, mask, bias: (products(q, k) + bias + (1.0 - there(keys).to(q.dtype)) * -1e4).softmax(-1) @ v,
    "added, causal, bias": lambda q, k, v, keys, mask, bias: ((s := products(q, k)) + additive(causal(s) & there(keys)) + bias).softmax(-1) @ v,
    "in the place of a bias": lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, torch.where(there(keys), bias, -1e38)),
    "in the place of a bias, by -inf": lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(
        q, k, v, torch.where(there(keys), bias, float("-inf"))
    ),
    "in the place of a bias, causal": lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(
        q, k, v, torch.where(causal(bias) & there(keys), bias, -1e38)
    ),
    "in the place of a bias, weak": lambda q, k, v, keys, mask, bias: (products(q, k) + torch.where(there(keys), bias, -1e4)).softmax(-1) @ v,
    "any mask in the place of a bias": lambda q, k, v, keys, mask, bias: (products(q, k) + torch.where(mask | ~there(keys), -1e38, bias)).softmax(-1) @ v,
    "any mask, there, in the place of a bias": lambda q, k, v, keys, mask, bias: (
        (products(q, k) + torch.where(~mask & there(keys), bias, -1e38)).softmax(-1) @ v
    ),
    "added twice": lambda q, k, v, keys, mask, bias: ((s := products(q, k)) + additive(causal(s)) + (1.0 - there(keys).to(q.dtype)) * -1e4).softmax(-1) @ v,
    "added, causal": lambda q, k, v, keys, mask, bias: ((s := products(q, k)) + additive(causal(s) & there(keys))).softmax(-1) @ v,
}


@pytest.mark.parametrize("name", NOTHING_SEEN)
def test_queries_that_see_nothing(name: str, tmp_path: Path):
    """Of a sample without keys, and the first of one that is padded on the left."""
    keys = padding()
    keys[1] = 0
    ops = export_of(NOTHING_SEEN[name], tmp_path, keys).coverage.ops
    assert (ops.get("attention", 0), ops.get("softmax", 0)) == (1, 0)


@pytest.mark.parametrize("name, bias", [("key padding, added", " bias=true"), ("key padding, sdpa", "key_bias=true")])
def test_keys_that_are_there_in_part(name: str, bias: str, tmp_path: Path):
    """An added mask hides them in part, unless it asks only whether they are 0."""
    export_of(FUSED[name][0], tmp_path, keys_of_texts() * torch.linspace(0.25, 1, LENGTH))
    assert bias in attention_in(tmp_path)


class Encoder(nn.Module):
    """PyTorch's own layers for texts of any length."""

    def __init__(self, needs_weights: bool, is_said: bool):
        super().__init__()
        self.is_said = is_said
        self.attention, self.needs_weights = nn.MultiheadAttention(HEADS * WIDTH, HEADS, batch_first=True), needs_weights
        self.layer = nn.TransformerEncoderLayer(HEADS * WIDTH, HEADS, 16, dropout=0.0, batch_first=True)

    def forward(self, x, keys):
        is_padding = keys if self.is_said else keys == 0
        h, _ = self.attention(x, x, x, key_padding_mask=is_padding, need_weights=self.needs_weights)
        out = self.layer(h, src_key_padding_mask=is_padding)
        return {"loss": out.square().mean(), "out": out}


@pytest.mark.parametrize("is_said", [False, True], ids=["of tokens", "of the batch"])
@pytest.mark.parametrize("needs_weights", [False, True])
def test_padding_of_pytorchs_own_layers(needs_weights: bool, is_said: bool, tmp_path: Path):
    keys = keys_of_texts() == 0 if is_said else keys_of_texts()
    model = TorchModel(filled(Encoder(needs_weights, is_said)), {"x": torch.randn(BATCH, LENGTH, HEADS * WIDTH), "keys": keys})
    exported = tacc.export_model(model.module, model.batch, tmp_path)
    check_against_torch(exported, model, EXACT)
    assert exported.any_batch
    lines = [line for line in (tmp_path / "model.graph").read_text().splitlines() if " = attention %" in line]
    assert len(lines) == 2 and all("key_bias=true" in line for line in lines)


def test_dropout_of_pytorchs_own_attention(tmp_path: Path):
    model = filled(nn.MultiheadAttention(HEADS * WIDTH, HEADS, dropout=0.1, batch_first=True))

    class Attended(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = model

        def forward(self, x):
            return {"loss": self.attention(x, x, x)[0].square().mean()}

    tacc.export_model(Attended(), {"x": torch.randn(BATCH, LENGTH, HEADS * WIDTH)}, tmp_path)
    line = attention_in(tmp_path)
    assert "dropout=0.1" in line


@pytest.mark.parametrize("drop", [F.dropout, lambda p, rate: torch.native_dropout(p, rate, True)[0]], ids=["dropout", "native"])
def test_dropout_of_probabilities_is_the_ops(drop, tmp_path: Path):
    model = Attends(lambda q, k, v, keys, mask, bias: drop(products(q, k).softmax(-1), 0.1) @ v)
    batch = {"x": torch.randn(BATCH, LENGTH, 6), "keys": keys_of_texts(), "mask": torch.zeros(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool)}
    tacc.export_model(filled(model), batch, tmp_path)
    line = attention_in(tmp_path)
    assert "dropout=0.1" in line


@pytest.mark.parametrize("rows", ["queries", "keys"])
def test_a_row_of_no_sample_is_no_padding(rows: str, tmp_path: Path):
    """An input [1,S], whatever it says of queries or keys."""

    def spelling(q, k, v, keys, mask, bias):
        seen = (keys != 0)[:, None, :, None] if rows == "queries" else (keys.flip(1) != 0)[:, None, None]
        return F.scaled_dot_product_attention(q, k, v, seen.expand(-1, -1, q.shape[2], q.shape[2]))

    keys = torch.ones(1, LENGTH, dtype=torch.int64)
    keys[0, 6:] = 0
    export_of(spelling, tmp_path, keys)
    assert " bias=true" in attention_in(tmp_path) and "key_bias" not in attention_in(tmp_path)


def test_a_window_is_seen_behind_it(tmp_path: Path):
    """It is longer than short sequences, and no longer than one that shows no window."""

    class Windowed(Attends):
        def forward(self, x):
            q, k, v = (layer(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for layer in (self.q, self.k, self.v))
            distance = distances(q)
            out = F.scaled_dot_product_attention(q, k, v, (distance >= 0) & (distance < 16))
            return {"loss": out.square().mean(), "out": out}

    model = TorchModel(filled(Windowed(FUSED["plain"][0])), {"x": torch.randn(BATCH, 40, 6)})
    exported = tacc.export_model(model.module, model.batch, tmp_path)
    assert " window=16 " in (tmp_path / "model.graph").read_text()
    check_against_torch(exported, model, EXACT)


BLOCKS: dict[str, Callable[[Tensor], Tensor]] = {
    "two back": lambda q: blocks(q, 16).abs() <= 2,
    "shifted": lambda q: torch.arange(q.shape[2])[:, None] >> 5 == torch.arange(q.shape[2]) >> 5,
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_show_in_longer_texts(name: str, tmp_path: Path):
    class Blocks(Attends):
        def forward(self, x):
            q, k, v = (layer(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for layer in (self.q, self.k, self.v))
            out = F.scaled_dot_product_attention(q, k, v, BLOCKS[name](q) & causal(q @ k.mT))
            return {"loss": out.square().mean(), "out": out}

    module = filled(Blocks(FUSED["plain"][0]))
    model = TorchModel(module, {"x": torch.randn(BATCH, 80, 6)})
    exported = tacc.export_model(module, model.batch, tmp_path)
    assert " bias=true" in attention_in(tmp_path)
    check_against_torch(exported, model, EXACT)


class LearnedQueries(nn.Module):
    """Its queries are the same for all samples; only the keys that count are those of one."""

    def __init__(self):
        super().__init__()
        self.queries, self.keys, self.value = nn.Parameter(torch.zeros(1, HEADS, 3, WIDTH)), nn.Parameter(torch.zeros(1, HEADS, LENGTH, WIDTH)), nn.Linear(6, WIDTH)

    def forward(self, x, keys):
        v = self.value(x)[:, None].expand(-1, HEADS, -1, -1)
        out = torch.where(there(keys), products(self.queries, self.keys), -1e9).softmax(-1) @ v
        return {"loss": out.square().mean(), "out": out}


def test_queries_and_keys_of_no_sample(tmp_path: Path):
    model = TorchModel(filled(LearnedQueries()), {"x": torch.randn(BATCH, LENGTH, 6), "keys": keys_of_texts()})
    exported = tacc.export_model(model.module, model.batch, tmp_path)
    check_against_torch(exported, model, EXACT)
    assert exported.coverage.ops.get("attention") == 1


def test_dropout_of_padded_texts_is_the_ops(tmp_path: Path):
    model = Attends(lambda q, k, v, keys, mask, bias: F.scaled_dot_product_attention(q, k, v, there(keys), dropout_p=0.1))
    batch = {"x": torch.randn(BATCH, LENGTH, 6), "keys": keys_of_texts(), "mask": torch.zeros(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool)}
    exported = tacc.export_model(filled(model), batch, tmp_path)
    line = attention_in(tmp_path)
    assert "dropout=0.1" in line and "key_bias=true" in line
    assert "dropout" not in exported.coverage.ops and "softmax" not in exported.coverage.ops


@pytest.mark.parametrize("name", BIASED)
def test_has_a_bias_of_scores(name: str, tmp_path: Path):
    ops = export_of(BIASED[name], tmp_path).coverage.ops
    assert (ops.get("attention", 0), ops.get("softmax", 0), ops.get("aten", 0)) == (1, 0, 0)
    assert " bias=true" in attention_in(tmp_path)


def test_dropout_beside_a_bias_is_the_ops(tmp_path: Path):
    model = Attends(lambda q, k, v, keys, mask, bias: F.dropout((products(q, k) + bias).softmax(-1), 0.1) @ v)
    batch = {"x": torch.randn(BATCH, LENGTH, 6), "keys": keys_of_texts(), "mask": torch.zeros(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool)}
    tacc.export_model(filled(model), batch, tmp_path)
    assert "dropout=0.1" in attention_in(tmp_path) and " bias=true" in attention_in(tmp_path)


@pytest.mark.parametrize("name", LOOK_ALIKE)
def test_computes_what_it_did(name: str, tmp_path: Path):
    export_of(LOOK_ALIKE[name], tmp_path)


def test_scores_that_are_divided_by_0(tmp_path: Path):
    model = filled(Attends(lambda q, k, v, keys, mask, bias: (q @ k.mT / 0.0).softmax(-1) @ v))
    batch = {"x": torch.randn(BATCH, LENGTH, 6), "keys": keys_of_texts(), "mask": torch.zeros(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool)}
    tacc.export_model(model, batch, tmp_path)  # the loss is NaN, as the model's own


# Scores times what a model has learned, or found, for each head.
TEMPERATURES: dict[str, Spelling] = {
    "of each head": lambda q, k, v, keys, mask, bias: (q @ k.mT * bias[:, :1, :1].exp()).softmax(-1) @ v,
    "of all": lambda q, k, v, keys, mask, bias: (bias[0, 0, 0].exp() * (q @ k.mT) / 3).softmax(-1) @ v,
    "by which they are divided": lambda q, k, v, keys, mask, bias: ((q @ k.mT) / (1 + bias[:, :1, :1].square())).masked_fill(mask, -torch.inf).softmax(-1) @ v,
    "of each sample": lambda q, k, v, keys, mask, bias: (q @ k.mT * q.mean((-2, -1), keepdim=True).exp() + bias).softmax(-1) @ v,
    "by einsum": lambda q, k, v, keys, mask, bias: torch.einsum("bhqk,bhkd->bhqd", (torch.einsum("bhqd,bhkd->bhqk", q, k) * bias[:, :1, :1].exp()).softmax(-1), v),
    "of unit vectors": lambda q, k, v, keys, mask, bias: (
        (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * bias[:, :1, :1].clamp(max=4.6).exp() + 16 * bias.sigmoid()).softmax(-1) @ v
    ),
}


@pytest.mark.parametrize("name", TEMPERATURES)
def test_temperatures(name: str, tmp_path: Path):
    exported = export_of(TEMPERATURES[name], tmp_path)
    assert attention_in(tmp_path) and "softmax" not in exported.coverage.ops


@pytest.mark.parametrize("name", IN_GROUPS)
def test_heads_in_groups(name: str, tmp_path: Path):
    attends, said = IN_GROUPS[name]
    exported = export_of(in_groups(attends), tmp_path)
    line = attention_in(tmp_path)
    assert said in line and f",{HEADS},{WIDTH}], f32[B," in line
    assert "softmax" not in exported.coverage.ops


class Windows(nn.Module):
    """Of four tokens each, with a bias of the heads and, if told so, a mask of the windows."""

    def __init__(self, mask: str):
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 3 * HEADS * WIDTH), nn.Linear(HEADS * WIDTH, 3)
        self.bias, self.mask, self.rate = nn.Parameter(torch.zeros(HEADS, 4, 4)), mask, 0.0

    def forward(self, x):
        windows = self.qkv(x).unflatten(1, (-1, 4)).flatten(0, 1)
        q, k, v = windows.unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4).unbind(0)
        s = products(q, k) + (self.bias if self.mask == "heads" else self.bias[:1] if self.mask == "one" else self.bias + q[..., :1])
        out = F.dropout(s.softmax(-1), self.rate) @ v
        out = self.out(out.transpose(1, 2).flatten(2)).unflatten(0, (x.shape[0], -1)).flatten(1, 2)
        return {"loss": out.square().mean(), "out": out}


@pytest.mark.parametrize("mask", ["heads", "one", "samples"])
def test_windows_are_heads_of_a_sample_where_they_drop(mask: str, tmp_path: Path):
    model = TorchModel(filled(Windows(mask)), {"x": torch.randn(BATCH, 12, 6)})
    check_against_torch(tacc.export_model(model.module, model.batch, tmp_path / "plain"), model, EXACT)
    assert f"f32[3*B,4,{HEADS},{WIDTH}]" in attention_in(tmp_path / "plain") and " bias=true" in attention_in(tmp_path / "plain")
    model.module.rate = 1e-12  # drops nothing
    exported = tacc.export_model(model.module, model.batch, tmp_path / "dropped")
    assert f"f32[B,4,{3 * HEADS},{WIDTH}]" in attention_in(tmp_path / "dropped") and "dropout=" in attention_in(tmp_path / "dropped")
    assert exported.coverage.ops.get("softmax", 0) == 0


# Masks [3,4,4] of the windows of a sample, added to scores [B*3,H,4,4] that have a bias.
OF_WINDOWS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "of the scores in five dims": lambda s, mask: (s.unflatten(0, (-1, 3)) + mask[None, :, None]).flatten(0, 1),
    "by views": lambda s, mask: (s.view(-1, 3, *s.shape[1:]) + mask[:, None]).view(s.shape),
    "the mask first": lambda s, mask: (mask[:, None] + s.view(-1, 3, *s.shape[1:])).reshape(s.shape),
    "of each head": lambda s, mask: (s.view(-1, 3, *s.shape[1:]) + mask[:, None] * torch.arange(HEADS)[:, None, None]).view(s.shape),
    "repeated": lambda s, mask: s + mask.view(1, 3, 1, 4, 4).expand(s.shape[0] // 3, -1, HEADS, -1, -1).reshape(-1, HEADS, 4, 4),
    "repeated for all heads": lambda s, mask: s + mask.view(1, 3, 1, 4, 4).expand(s.shape[0] // 3, -1, -1, -1, -1).reshape(-1, 1, 4, 4),
    "two": lambda s, mask: (s.view(-1, 3, *s.shape[1:]) + mask[:, None] + 2 * mask[None, :, None]).view(s.shape),
    "two, one after the other": lambda s, mask: OF_WINDOWS["by views"](OF_WINDOWS["by views"](s, mask), 2 * mask),
}


class MaskedWindows(nn.Module):
    def __init__(self, name: str, rate: float = 0.0, kv_heads: int = HEADS):
        super().__init__()
        self.kv_heads = kv_heads
        self.qkv, self.out = nn.Linear(6, 3 * HEADS * WIDTH), nn.Linear(HEADS * WIDTH, 3)
        self.bias, self.masked, self.rate = nn.Parameter(torch.zeros(HEADS, 4, 4)), OF_WINDOWS[name], rate
        self.register_buffer("mask", torch.where(torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(4)) < 0.4, -100.0, 0.0), persistent=False)

    def forward(self, x):
        windows = self.qkv(x).unflatten(1, (3, 4)).flatten(0, 1)
        q, k, v = windows.unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4).unbind(0)
        k, v = (x[:, : self.kv_heads].repeat_interleave(HEADS // self.kv_heads, dim=1) for x in (k, v))
        out = F.dropout(self.masked(products(q, k) + self.bias, self.mask).softmax(-1), self.rate) @ v
        out = self.out(out.transpose(1, 2).flatten(2)).unflatten(0, (x.shape[0], -1)).flatten(1, 2)
        return {"loss": out.square().mean(), "out": out}


@pytest.mark.parametrize("name, kv_heads", [*((name, HEADS) for name in OF_WINDOWS), ("by views", KV_HEADS)])
def test_masks_of_windows(name: str, kv_heads: int, tmp_path: Path):
    model = TorchModel(filled(MaskedWindows(name, kv_heads=kv_heads)), {"x": torch.randn(BATCH, 12, 6)})
    exported = tacc.export_model(model.module, model.batch, tmp_path)
    check_against_torch(exported, model, EXACT)
    assert f"f32[B,4,{3 * HEADS},{WIDTH}]" in attention_in(tmp_path) and " bias=true" in attention_in(tmp_path)
    assert "softmax" not in exported.coverage.ops


def test_masks_of_windows_where_they_drop(tmp_path: Path):
    model = TorchModel(filled(MaskedWindows("by views", 1e-12)), {"x": torch.randn(BATCH, 12, 6)})  # drops nothing
    tacc.export_model(model.module, model.batch, tmp_path)
    assert f"f32[B,4,{3 * HEADS},{WIDTH}]" in attention_in(tmp_path) and "dropout=" in attention_in(tmp_path)


@pytest.mark.parametrize("name", SPELLED_OUT)
def test_is_spelled_out(name: str, tmp_path: Path):
    ops = export_of(SPELLED_OUT[name], tmp_path).coverage.ops
    assert (ops["softmax"], ops.get("attention", 0), ops.get("aten", 0)) == (1, 0, 0)
