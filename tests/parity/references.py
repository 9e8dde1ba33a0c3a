"""The reference models of the parity tests, with random weights that no initialisation hides behind: norm weights are
not one, biases not zero."""

from __future__ import annotations

import copy
import json
import math
import sys
import types
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from baichuan_reference import Baichuan, BaichuanShape
from cases import Case
from chatglm_reference import ChatGlm
from chatglm_reference import inv_freq as chatglm_inv_freq
from safetensors.torch import save_file
from torch import nn
from torch.overrides import TorchFunctionMode

torch.set_num_threads(1)  # the models are tiny, and tests run beside each other


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
        attention = "eager" if config["model_type"] in ("bloom", "gemma2", "gpt_oss") else "sdpa"
        hf_config = AutoConfig.for_model(config.pop("model_type"), **config)
        kernels = {"experts_implementation": "eager"} if hasattr(hf_config, "num_experts_per_tok") else {}
        self.inner = AutoModelForCausalLM.from_config(hf_config, attn_implementation=attention, **kernels)
        self.aux_loss = 0.0  # of the last forward, weighted

    def forward(self, tokens):
        out = self.inner(tokens, use_cache=False)
        if getattr(self.inner.config, "output_router_logits", False):
            loss = out.aux_loss
            if out.logits.dtype == torch.float64:
                loss = load_balancing_loss(out.router_logits, self.inner.config.num_experts_per_tok)
                assert torch.isclose(loss, out.aux_loss.double(), rtol=1e-5)
            self.aux_loss = self.inner.config.router_aux_loss_coef * loss
        return out.logits


def load_balancing_loss(router_logits: tuple[torch.Tensor, ...], top_k: int) -> torch.Tensor:
    """transformers' load_balancing_loss_func, but for its fp32 tables, which a float64 run must not have."""
    probabilities = torch.cat(router_logits).softmax(-1)
    num_experts = probabilities.shape[-1]
    chosen = F.one_hot(probabilities.topk(top_k, dim=-1).indices, num_experts).sum(1)
    return num_experts * (chosen.to(probabilities.dtype).mean(0) * probabilities.mean(0)).sum()


def _make(case: Case) -> nn.Module:
    if case.family == "hf_olmo":
        return NativeOlmo(case.config)
    if case.family == "chatglm":
        return ChatGlm(case.config)
    if case.family == "baichuan":
        c = case.config
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        kinds = {"alibi": "max_position_embeddings" not in c, "norm_head": c.get("norm_head", False)}
        return Baichuan(BaichuanShape(**{key: c[key] for key in sizes}, rms_norm_eps=c["rms_norm_eps"], **kinds))
    return TransformersModel(case.config)


def build(case: Case, seed: int) -> nn.Module:
    """The reference in fp32, in training mode. (No case has dropout.)"""
    generator = torch.Generator().manual_seed(seed)
    module = _make(case)
    for parameter in module.parameters():
        if parameter.dim() >= 2:
            value = torch.randn(parameter.shape, generator=generator) * (0.5 * case.scale / math.sqrt(parameter.shape[-1]))
        else:
            value = torch.randn(parameter.shape, generator=generator) * 0.1
        with torch.no_grad():
            parameter.copy_(value if parameter.dim() >= 2 else parameter * 0 + value + _centre(module, parameter))
    for buffer in _stored_buffers(module).values():
        buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.1)
    return module.train()


def _stored_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """What is no parameter, and yet in the files."""
    return {name: buffer for name, buffer in module.named_buffers() if name.endswith("e_score_correction_bias")}


def _centre(module: nn.Module, parameter: nn.Parameter) -> float:
    """Norms multiply by around one, biases lie around zero."""
    name = next(n for n, p in module.named_parameters() if p is parameter)
    adds_one = isinstance(module, TransformersModel) and module.inner.config.model_type in ("gemma2", "gemma3_text")
    return 1.0 if name.endswith("weight") and not adds_one else 0.0


def stored(
    module: nn.Module, of: Callable[[nn.Parameter], torch.Tensor] = torch.Tensor.detach
) -> dict[str, torch.Tensor]:
    """What `of` makes of each parameter, if anything, under its name in safetensors; a tied head is not stored."""
    prefix = "inner." if isinstance(module, TransformersModel) else ""
    made = {name.removeprefix(prefix): of(parameter) for name, parameter in module.named_parameters()}
    tensors = {name: tensor for name, tensor in made.items() if tensor is not None}
    family = module.inner.config.model_type if prefix else ""
    if family == "gpt_neox" and "lm_head.weight" in tensors:
        tensors["embed_out.weight"] = tensors.pop("lm_head.weight")  # as transformers' files call it
    return {stored_name: part for name, t in tensors.items() for stored_name, part in _as_stored(name, t, family)}


# transformers' names of what Granite's files call otherwise.
_GRANITE_MOE = {
    "experts.gate_up_proj": "input_linear.weight",
    "experts.down_proj": "output_linear.weight",
    "router.weight": "router.layer.weight",
}


def _as_stored(name: str, tensor: torch.Tensor, family: str) -> list[tuple[str, torch.Tensor]]:
    """transformers keeps a layer's experts in one tensor, with gate and up in one; its files have one for each matrix."""
    if family == "gpt_oss":
        return [(name, tensor)]  # whose files have them so too
    if family == "granitemoe":
        block, _, rest = name.partition(".block_sparse_moe.")
        return [(f"{block}.block_sparse_moe.{_GRANITE_MOE[rest]}" if rest else name, tensor)]
    mixtral = family == "mixtral"
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    name = name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name
    base, _, last = name.rpartition(".")
    if not base.endswith(".experts"):
        return [(name, tensor)]
    parts = {gate: tensor.chunk(2, 1)[0], up: tensor.chunk(2, 1)[1]} if last == "gate_up_proj" else {down: tensor}
    return [(f"{base}.{e}.{part}.weight", t[e]) for part, t in parts.items() for e in range(tensor.shape[0])]


def stored_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Under their names in safetensors."""
    return {name.removeprefix("inner."): buffer for name, buffer in _stored_buffers(module).items()}


def save(case: Case, module: nn.Module, folder: Path) -> None:
    """A Hugging Face folder that `tacc` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(case.config, indent=2))
    tensors = {name: tensor.contiguous() for name, tensor in (stored(module) | stored_buffers(module)).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


class KeepDouble(TorchFunctionMode):
    """In a float64 run, passes over the models' own casts to float32, so that it is float64 throughout."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64:
            wanted = list(args[1:]) + list(kwargs.values())
            casts = (torch.Tensor.to, torch.Tensor.type)
            if func is torch.Tensor.float or (func in casts and torch.float32 in wanted):
                return args[0]
            if kwargs.get("dtype") is torch.float32:
                kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def in_double(case: Case, module: nn.Module) -> nn.Module:
    """A float64 copy; run it under KeepDouble. Tables that models hold in fp32 outside their buffers are made anew."""
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
        tokens = torch.randint(0, case.vocab_size, (case.batch, case.seq_len), generator=generator)
        targets = torch.full_like(tokens, -1)
        targets[:, :-1] = tokens[:, 1:]
        result.append((tokens, targets))
    return result


def loss_of(module: nn.Module, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over the targets, in the dtype of the logits or fp32, whichever is wider, and what else the model has."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    loss = F.cross_entropy(logits.to(wide).flatten(0, 1), targets.flatten(), ignore_index=-1)
    return loss + getattr(module, "aux_loss", 0.0)


def bloom_slopes_in_double() -> Callable[[], None]:
    """transformers computes ALiBi's products in fp32; makes them float64 and returns what undoes it."""
    from transformers.models.bloom import modeling_bloom

    original = modeling_bloom._get_alibi_slopes
    modeling_bloom._get_alibi_slopes = lambda heads, device: original(heads, device).double()

    def undo():
        modeling_bloom._get_alibi_slopes = original

    return undo


def inv_freqs_of(case: Case, module: nn.Module) -> list[torch.Tensor]:
    """The frequencies of the reference's rotary embeddings, in float64, those of layers that see all keys first."""
    if isinstance(module, TransformersModel):
        rotary = getattr(module.inner.base_model, "rotary_emb", None)
        if rotary is None:
            return []
        names = [f"{kind}_inv_freq" for kind in ("full_attention", "sliding_attention")]
        found = [getattr(rotary, name) for name in names if hasattr(rotary, name)] or [rotary.inv_freq]
        return [f.double() for f in (found[:1] if len(found) > 1 and torch.equal(*found) else found)]
    inv_freq = _own_inv_freq(case)
    return [] if inv_freq is None else [inv_freq]


def _own_inv_freq(case: Case) -> torch.Tensor | None:
    config = case.config
    if case.family == "chatglm":
        return chatglm_inv_freq(config).double()
    if config.get("rope", False):
        dim = config["d_model"] // config["n_heads"]
    elif case.family == "baichuan" and "max_position_embeddings" in config:
        dim = config["hidden_size"] // config["num_attention_heads"]
    else:
        return None
    return (1.0 / config.get("rope_theta", 10000.0) ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)).double()
