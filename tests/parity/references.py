"""The reference models of the parity tests: small, odd-sized ones of each family, with random weights that no initialisation hides
behind (norm weights are not one, biases not zero)."""

from __future__ import annotations

import copy
import json
import math
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.overrides import TorchFunctionMode

from baichuan_reference import Baichuan, BaichuanShape


@dataclass
class Case:
    family: str
    name: str
    config: dict  # config.json
    batch: int
    seq_len: int
    sequence_key: str = "max_position_embeddings"


def _llama(vocab, hidden, inner, layers, heads, kv_heads, **more):
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": inner,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "max_position_embeddings": 64, **more}


def _bloom(vocab, hidden, layers, heads, **more):
    return {"model_type": "bloom", "architectures": ["BloomForCausalLM"], "vocab_size": vocab, "hidden_size": hidden, "n_layer": layers, "n_head": heads, **more}


def _native_olmo(vocab, rows, width, layers, heads, **more):
    return {"model_type": "hf_olmo", "architectures": ["OLMoForCausalLM"], "vocab_size": vocab, "embedding_size": rows, "d_model": width,
            "n_layers": layers, "n_heads": heads, "max_sequence_length": 48, "attention_dropout": 0.0, "residual_dropout": 0.0,
            "embedding_dropout": 0.0, **more}


def _baichuan(vocab, hidden, inner, layers, heads, **more):
    return {"model_type": "baichuan", "architectures": ["BaichuanForCausalLM"], "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": inner,
            "num_hidden_layers": layers, "num_attention_heads": heads, "rms_norm_eps": 1e-6, **more}


# Three shapes a family for training; sizes are odd where the model allows.
TRAINING_CASES = [
    Case("llama", "grouped heads, llama3 rope", _llama(97, 36, 51, 2, 6, 2, rope_theta=500.0, rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}), 3, 17),
    Case("llama", "biases, own head size, tied", _llama(61, 30, 43, 3, 5, 5, head_dim=14, attention_bias=True, mlp_bias=True,
                                                        tie_word_embeddings=True, rms_norm_eps=1e-5), 2, 23),
    Case("llama", "one kv head, linear rope", _llama(131, 42, 77, 2, 7, 1, rope_parameters={
        "rope_type": "linear", "factor": 2.5, "rope_theta": 3000.0}), 3, 11),
    Case("qwen3", "grouped heads", {**_llama(101, 33, 57, 2, 3, 1, head_dim=10), "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, 3, 19),
    Case("qwen3", "tied", {**_llama(73, 40, 45, 2, 4, 2, head_dim=14, tie_word_embeddings=True), "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, 2, 13),
    Case("qwen3", "biases, yarn", {**_llama(89, 35, 63, 3, 5, 5, head_dim=8, attention_bias=True, rope_parameters={
        "rope_type": "yarn", "factor": 4.0, "rope_theta": 900.0, "original_max_position_embeddings": 16}), "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, 3, 21),
    Case("olmo", "plain", {**_llama(103, 36, 55, 2, 6, 6), "model_type": "olmo", "architectures": ["OlmoForCausalLM"], "pad_token_id": None}, 3, 17),
    Case("olmo", "clipped, grouped heads", {**_llama(67, 30, 41, 3, 3, 1, clip_qkv=0.4), "model_type": "olmo", "architectures": ["OlmoForCausalLM"], "pad_token_id": None}, 2, 29),
    Case("olmo", "tied, biases", {**_llama(79, 42, 35, 2, 7, 7, tie_word_embeddings=True, attention_bias=True), "model_type": "olmo",
                                  "architectures": ["OlmoForCausalLM"], "pad_token_id": None}, 3, 9),
    Case("hf_olmo", "as OLMo-1B", _native_olmo(99, 101, 36, 2, 6, mlp_ratio=8, weight_tying=True, rope=True, include_bias=False,
                                               layer_norm_with_affine=False), 3, 17, "max_sequence_length"),
    Case("hf_olmo", "grouped heads, rms, clipped, own head", _native_olmo(83, None, 40, 2, 5, n_kv_heads=1, mlp_hidden_size=54, weight_tying=False,
                                                                          rope=True, layer_norm_type="rms", clip_qkv=0.5, scale_logits=True,
                                                                          attention_layer_norm=True), 2, 15, "max_sequence_length"),
    Case("hf_olmo", "ALiBi, gelu, norm after, biases", _native_olmo(71, 73, 33, 3, 3, alibi=True, activation_type="gelu", mlp_hidden_size=47, norm_after=True,
                                                                    embedding_layer_norm=True, weight_tying=True), 3, 13, "max_sequence_length"),
    Case("bloom", "eight heads", _bloom(107, 40, 2, 8), 3, 17),
    Case("bloom", "five heads, own head", _bloom(71, 35, 3, 5, tie_word_embeddings=False), 2, 21),
    Case("bloom", "residual after norm", _bloom(83, 33, 2, 3, apply_residual_connection_post_layernorm=True, layer_norm_epsilon=1e-6), 3, 9),
    Case("baichuan", "7B", _baichuan(95, 36, 51, 2, 6, max_position_embeddings=64), 3, 17),
    Case("baichuan", "13B, NormHead", _baichuan(77, 35, 47, 2, 5, model_max_length=64, norm_head=True), 2, 19),
    Case("baichuan", "7B, NormHead", _baichuan(113, 30, 63, 3, 3, max_position_embeddings=64, model_max_length=64, norm_head=True), 3, 11),
]

# More features, compared by their logits only.
GRAPH_CASES = TRAINING_CASES + [
    Case("llama", "dynamic rope, stretched", _llama(51, 24, 31, 2, 4, 2, rope_scaling={"type": "dynamic", "factor": 3.0}) | {"max_position_embeddings": 8}, 2, 21),
    Case("llama", "dynamic rope, not stretched", _llama(51, 24, 31, 2, 4, 2, rope_scaling={"type": "dynamic", "factor": 3.0}), 2, 21),
    Case("llama", "yarn with mscale", _llama(51, 24, 31, 1, 2, 1, rope_scaling={
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8, "mscale": 0.7, "mscale_all_dim": 0.5, "beta_fast": 16.0, "beta_slow": 2.0,
        "truncate": False}), 2, 30),
    Case("llama", "yarn with attention factor", _llama(51, 48, 31, 1, 2, 1, rope_scaling={
        "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32, "attention_factor": 1.25}), 2, 30),
    Case("llama", "llama3 rope, head size 64", _llama(51, 128, 31, 1, 2, 1, rope_theta=500000.0, rope_scaling={
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}), 1, 40),
    Case("llama", "gelu", _llama(51, 24, 31, 2, 4, 4, hidden_act="gelu"), 2, 9),
    Case("llama", "gelu tanh", _llama(51, 24, 31, 2, 4, 4, hidden_act="gelu_pytorch_tanh"), 2, 9),
    Case("llama", "relu", _llama(51, 24, 31, 2, 4, 4, hidden_act="relu"), 2, 9),
    Case("hf_olmo", "learned positions, relu", _native_olmo(71, None, 33, 2, 3, activation_type="relu", mlp_hidden_size=47), 3, 13, "max_sequence_length"),
    Case("hf_olmo", "block groups, low precision norm", _native_olmo(71, None, 36, 4, 3, rope=True, block_group_size=2, layer_norm_type="low_precision",
                                                                     bias_for_layer_norm=False), 2, 13, "max_sequence_length"),
    Case("hf_olmo", "multi-query, q and k norms without weights", _native_olmo(71, None, 36, 2, 3, rope=True, multi_query_attention=True, rope_theta=500,
                                                                               attention_layer_norm=True, attention_layer_norm_with_affine=False), 2, 13, "max_sequence_length"),
    Case("hf_olmo", "rms without weights", _native_olmo(71, None, 36, 2, 3, rope=True, layer_norm_type="rms", layer_norm_with_affine=False,
                                                        layer_norm_eps=1e-6), 2, 13, "max_sequence_length"),
    Case("hf_olmo", "ALiBi of another size", _native_olmo(71, None, 40, 2, 5, alibi=True, alibi_bias_max=6.0), 2, 13, "max_sequence_length"),
    Case("bloom", "twelve heads", _bloom(107, 48, 1, 12), 2, 31),
]


def _import_native_olmo():
    """ai2-olmo imports `datasets` for its trainer; the model does not need it."""
    if "datasets" not in sys.modules:
        stand_in = types.ModuleType("datasets")
        stand_in.DatasetDict = stand_in.Dataset = object
        sys.modules["datasets"] = stand_in
    from olmo.config import ModelConfig
    from olmo.model import OLMo

    return ModelConfig, OLMo


class NativeOlmo(nn.Module):
    """ai2-olmo's class under the names that OLMoForCausalLM.save_pretrained writes."""

    def __init__(self, config: dict):
        super().__init__()
        model_config_class, model_class = _import_native_olmo()
        keys = {k: v for k, v in config.items() if k not in ("model_type", "architectures")}
        self.model = model_class(model_config_class(**keys, init_device="cpu"), init_params=False)

    def forward(self, tokens):
        return self.model(tokens).logits


class TransformersModel(nn.Module):
    def __init__(self, config: dict):
        super().__init__()
        from transformers import AutoConfig, AutoModelForCausalLM

        config = copy.deepcopy(config)
        attention = "eager" if config["model_type"] == "bloom" else "sdpa"
        hf_config = AutoConfig.for_model(config.pop("model_type"), **config)
        self.inner = AutoModelForCausalLM.from_config(hf_config, attn_implementation=attention)

    def forward(self, tokens):
        return self.inner(tokens, use_cache=False).logits


def _make(case: Case) -> nn.Module:
    if case.family == "hf_olmo":
        return NativeOlmo(case.config)
    if case.family == "baichuan":
        c = case.config
        return Baichuan(BaichuanShape(c["vocab_size"], c["hidden_size"], c["intermediate_size"], c["num_hidden_layers"], c["num_attention_heads"],
                                      c["rms_norm_eps"], alibi="max_position_embeddings" not in c, norm_head=c.get("norm_head", False)))
    return TransformersModel(case.config)


def build(case: Case, seed: int) -> nn.Module:
    """The reference in fp32, in training mode. (No case has dropout.)"""
    generator = torch.Generator().manual_seed(seed)
    module = _make(case)
    for parameter in module.parameters():
        if parameter.dim() >= 2:
            value = torch.randn(parameter.shape, generator=generator) * (0.5 / math.sqrt(parameter.shape[-1]))
        else:
            value = torch.randn(parameter.shape, generator=generator) * 0.1
        with torch.no_grad():
            parameter.copy_(value if parameter.dim() >= 2 else parameter * 0 + value + _centre(module, parameter))
    return module.train()


def _centre(module: nn.Module, parameter: nn.Parameter) -> float:
    """Norm weights lie around one, biases around zero."""
    name = next(n for n, p in module.named_parameters() if p is parameter)
    return 1.0 if name.endswith("weight") else 0.0


def stored_names(module: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters under their names in safetensors; a tied head is not stored."""
    prefix = "inner." if isinstance(module, TransformersModel) else ""
    return {name.removeprefix(prefix): parameter for name, parameter in module.named_parameters()}


def save(case: Case, module: nn.Module, folder: Path) -> None:
    """A Hugging Face folder that `tacc` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(case.config, indent=2))
    save_file({name: p.detach().contiguous() for name, p in stored_names(module).items()}, folder / "model.safetensors", metadata={"format": "pt"})


class KeepDouble(TorchFunctionMode):
    """In a float64 run, passes over the models' own casts to float32, so that the run is float64 throughout."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64:
            wanted = list(args[1:]) + list(kwargs.values())
            if func is torch.Tensor.float or (func is torch.Tensor.to and torch.float32 in wanted):
                return args[0]
            if kwargs.get("dtype") is torch.float32:
                kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def in_double(case: Case, module: nn.Module) -> nn.Module:
    """A float64 copy; run it under KeepDouble. Tables that the models hold in fp32 outside their buffers are made anew."""
    module = copy.deepcopy(module).double()
    if case.family == "hf_olmo":
        _double_olmo_tables(module.model)
    return module


def _double_olmo_tables(model) -> None:
    config, cache = model.config, model._OLMo__cache
    length = config.max_sequence_length
    if config.rope:
        dim = config.d_model // config.n_heads
        inv_freq = (1.0 / (config.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.float) / dim))).double()
        phase = torch.arange(length, dtype=torch.float64)[:, None] * inv_freq
        phase = torch.cat([phase, phase], dim=-1)[None, None]
        cache["rope_pos_sin"], cache["rope_pos_cos"] = phase.sin(), phase.cos()
        for block in model.modules():
            if hasattr(block, "_RotaryEmbedding__cache"):
                block._RotaryEmbedding__cache.update(cache)
    if config.alibi:
        m = torch.arange(1, config.n_heads + 1, dtype=torch.float)
        m.mul_(config.alibi_bias_max / config.n_heads)
        slopes = (1.0 / (2**m)).double()
        i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]
        cache["alibi_attention_bias"] = -(i - j).abs().double()[None, None] * slopes[None, :, None, None]


def make_tokens(case: Case, seed: int, batches: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(tokens, targets) of each batch: labels shift inside the row, the last has none, and some others are left out."""
    generator = torch.Generator().manual_seed(seed)
    result = []
    for _ in range(batches):
        tokens = torch.randint(0, case.config["vocab_size"], (case.batch, case.seq_len), generator=generator)
        targets = torch.full_like(tokens, -1)
        targets[:, :-1] = tokens[:, 1:]
        result.append((tokens, targets))
    return result


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over the targets, in the dtype of the logits or fp32, whichever is wider."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.to(wide).flatten(0, 1), targets.flatten(), ignore_index=-1)


def bloom_slopes_in_double() -> Callable[[], None]:
    """transformers computes ALiBi's products in fp32; makes them float64 and returns what undoes it."""
    from transformers.models.bloom import modeling_bloom

    original = modeling_bloom._get_alibi_slopes
    modeling_bloom._get_alibi_slopes = lambda heads, device: original(heads, device).double()

    def undo():
        modeling_bloom._get_alibi_slopes = original

    return undo


def inv_freq_of(case: Case, module: nn.Module) -> torch.Tensor | None:
    """The frequencies of the reference's rotary embedding, in float64, or None."""
    if case.family in ("llama", "qwen3", "olmo"):
        return module.inner.model.rotary_emb.inv_freq.double()
    dim = case.config.get("hidden_size", case.config.get("d_model", 0)) // case.config.get("num_attention_heads", case.config.get("n_heads", 1))
    if case.config.get("rope", False) or (case.family == "baichuan" and "max_position_embeddings" in case.config):
        return (1.0 / case.config.get("rope_theta", 10000.0) ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)).double()
    return None
