"""The models of the parity tests: small ones of each family, in many shapes, odd where the family allows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass
class Case:
    family: str
    name: str
    config: dict  # config.json
    batch: int
    seq_len: int
    # Draws of the weights over which bf16 deviations are judged. One says little: of six draws of one model, losses were
    # 0.96 to 1.48 times as far away as the reference's. More where a clip makes the gradient jump where rounding crosses
    # its bound.
    bf16_draws: int = 3
    scale: float = 1.0  # of the random matrices

    @property
    def has_experts(self) -> bool:
        return self.family in _MIXTURES or self.family.startswith("deepseek")

    @property
    def vocab_size(self) -> int:
        return self.config.get("vocab_size") or self.config["padded_vocab_size"]


def _sizes(vocab: int, hidden: int, inner: int, layers: int, heads: int) -> dict:
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }


def _rotary(
    family: str, name: str, sizes: dict, kv_heads: int, batch: int, seq_len: int, draws: int = 3, **more
) -> Case:
    """The families of transformers with LLaMA's keys."""
    config = {"model_type": family, "architectures": [f"{family.capitalize()}ForCausalLM"], **sizes}
    config |= {"num_key_value_heads": kv_heads}
    config |= {"max_position_embeddings": 64, "pad_token_id": None, "eos_token_id": 0}
    return Case(family, name, config | more, batch, seq_len, draws)


_MIXTURES = {
    "mixtral": "Mixtral",
    "qwen2_moe": "Qwen2Moe",
    "qwen3_moe": "Qwen3Moe",
    "olmoe": "Olmoe",
    "granitemoe": "GraniteMoe",
    "gpt_oss": "GptOss",
}


def _mixture(
    family: str, name: str, sizes: dict, kv_heads: int, experts: tuple, batch: int, seq_len: int, draws: int = 5, **more
) -> Case:
    """`experts`: how many, and how many a token takes. bf16 sends some tokens to other experts, so more draws."""
    config = {"architectures": [f"{_MIXTURES[family]}ForCausalLM"], "output_router_logits": True}
    config |= {"num_local_experts" if family in ("mixtral", "granitemoe", "gpt_oss") else "num_experts": experts[0]}
    config |= {"num_experts_per_tok": experts[1], "router_aux_loss_coef": 0.05}
    case = _rotary("llama", name, sizes, kv_heads, batch, seq_len, draws, **config | more)
    case.family = case.config["model_type"] = family
    return case


def _deepseek(
    version: int, name: str, sizes: dict, ranks: tuple, dims: tuple, experts: tuple, batch: int, seq_len: int, **more
) -> Case:
    """`ranks`: of the latents of queries and keys; `dims`: of a head's parts without and with positions, and its values.
    transformers rotates V2's as complex numbers where they lie, so all that lies before them is even."""
    config = {"model_type": f"deepseek_v{version}", "architectures": [f"DeepseekV{version}ForCausalLM"], **sizes}
    config |= dict(zip(("q_lora_rank", "kv_lora_rank"), ranks))
    config |= dict(zip(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), dims))
    config |= dict(zip(("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"), experts))
    config |= {"max_position_embeddings": 64, "pad_token_id": None, "eos_token_id": 0}
    return Case(config["model_type"], name, config | more, batch, seq_len, bf16_draws=5)


def _native_olmo(
    name: str, rows: int | None, sizes: tuple, batch: int, seq_len: int, draws: int = 3, **more
) -> Case:
    vocab, width, layers, heads = sizes
    config = {"model_type": "hf_olmo", "architectures": ["OLMoForCausalLM"]}
    config |= {"vocab_size": vocab, "embedding_size": rows, "d_model": width, "n_layers": layers, "n_heads": heads}
    config |= {"max_sequence_length": 48, "attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0}
    return Case("hf_olmo", name, config | more, batch, seq_len, draws)


def _bloom(name: str, sizes: tuple, batch: int, seq_len: int, **more) -> Case:
    vocab, hidden, layers, heads = sizes
    config = {"model_type": "bloom", "architectures": ["BloomForCausalLM"]}
    config |= {"vocab_size": vocab, "hidden_size": hidden, "n_layer": layers, "n_head": heads}
    return Case("bloom", name, config | more, batch, seq_len)


def _chatglm(name: str, sizes: tuple, groups: int | None, batch: int, seq_len: int, draws: int = 3, **more) -> Case:
    vocab, hidden, inner, layers, heads = sizes
    config = {"model_type": "chatglm", "architectures": ["ChatGLMModel"], "padded_vocab_size": vocab}
    config |= {"hidden_size": hidden, "ffn_hidden_size": inner, "num_layers": layers, "num_attention_heads": heads}
    if groups is not None:
        config |= {"multi_query_attention": True, "multi_query_group_num": groups}
    return Case("chatglm", name, config | {"seq_length": 64} | more, batch, seq_len, draws)


_ARCHITECTURES = {
    "smollm3": "SmolLM3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "falcon": "FalconForCausalLM",
}


def _like_llama(family: str, *args, **more) -> Case:
    """As _rotary, for families whose class has another name."""
    return _rotary(family, *args, architectures=[_ARCHITECTURES[family]], **more)


def _gpt(family: str, name: str, sizes: dict, batch: int, seq_len: int, draws: int = 3, **more) -> Case:
    config = {"model_type": family, "architectures": [_ARCHITECTURES[family]], **sizes}
    return Case(family, name, config | {"max_position_embeddings": 64} | more, batch, seq_len, draws)


def _gpt2(name: str, sizes: tuple, batch: int, seq_len: int, draws: int = 3, **more) -> Case:
    vocab, width, layers, heads = sizes
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": vocab, "n_embd": width}
    config |= {"n_layer": layers, "n_head": heads, "n_positions": 48}
    config |= {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    return Case("gpt2", name, config | more, batch, seq_len, draws)


def _falcon(name: str, sizes: tuple, batch: int, seq_len: int, draws: int = 3, **more) -> Case:
    vocab, hidden, layers, heads = sizes
    config = {"vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return _gpt("falcon", name, config, batch, seq_len, draws, **more)


def _longrope(original_length: int, pairs: int, **more) -> dict:
    return {
        "rope_type": "longrope",
        "short_factor": [1 + 0.2 * i for i in range(pairs)],
        "long_factor": [1.5 + 0.7 * i * i for i in range(pairs)],
        "original_max_position_embeddings": original_length,
        **more,
    }


def _baichuan(name: str, sizes: dict, batch: int, seq_len: int, **more) -> Case:
    config = {"model_type": "baichuan", "architectures": ["BaichuanForCausalLM"], "rms_norm_eps": 1e-6}
    return Case("baichuan", name, config | sizes | more, batch, seq_len)


def _llama3_rope(factor: float, original_length: int) -> dict:
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original_length,
    }


def _yarn_rope(factor: float, original_length: int, **more) -> dict:
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original_length, **more}


# Three of each family, for training.
TRAINING_CASES = [
    _rotary(
        "llama", "grouped heads, llama3 rope", _sizes(97, 36, 51, 2, 6), 2, 3, 17,
        rope_theta=500.0, rope_scaling=_llama3_rope(8.0, 32),
    ),
    _rotary(
        "llama", "biases, own head size, tied", _sizes(61, 50, 43, 3, 5), 5, 2, 23, draws=5,
        head_dim=14, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, rms_norm_eps=1e-5,
    ),
    _rotary(
        "llama", "one kv head, linear rope", _sizes(131, 42, 77, 2, 7), 1, 3, 11,
        rope_parameters={"rope_type": "linear", "factor": 2.5, "rope_theta": 3000.0},
    ),
    _rotary("qwen3", "grouped heads", _sizes(101, 33, 57, 2, 3), 1, 3, 19, head_dim=10),
    _rotary("qwen3", "tied", _sizes(73, 40, 45, 2, 4), 2, 2, 13, head_dim=14, tie_word_embeddings=True),
    _rotary(
        "qwen3", "biases, yarn", _sizes(89, 35, 63, 3, 5), 5, 3, 21, draws=5,
        head_dim=8, attention_bias=True, rope_parameters=_yarn_rope(4.0, 16, rope_theta=900.0),
    ),
    _rotary("olmo", "plain", _sizes(103, 36, 55, 2, 6), 6, 3, 17),
    _rotary("olmo", "clipped, grouped heads", _sizes(67, 54, 41, 3, 3), 1, 2, 29, draws=5, clip_qkv=0.4),
    _rotary(
        "olmo", "tied, biases", _sizes(79, 70, 65, 2, 7), 7, 3, 9, draws=5,
        tie_word_embeddings=True, attention_bias=True,
    ),
    _rotary("mistral", "grouped heads, wide window", _sizes(91, 48, 53, 2, 6), 3, 3, 17, sliding_window=17),
    _rotary("mistral", "own head size", _sizes(85, 35, 49, 2, 5), 1, 2, 23, head_dim=12, sliding_window=None),
    _rotary("mistral", "tied", _sizes(63, 54, 37, 3, 3), 3, 3, 13, tie_word_embeddings=True, rope_theta=700.0),
    _rotary("qwen2", "grouped heads", _sizes(81, 60, 57, 2, 6), 2, 3, 15, draws=3),
    _rotary("qwen2", "tied", _sizes(69, 50, 45, 3, 5), 1, 2, 27, draws=3, tie_word_embeddings=True),
    _rotary(
        "qwen2", "yarn, window of no layer", _sizes(87, 42, 65, 2, 3), 3, 3, 19, draws=3,
        rope_scaling=_yarn_rope(4.0, 16), use_sliding_window=True, sliding_window=4, max_window_layers=2,
    ),
    _rotary("olmo2", "plain", _sizes(93, 36, 55, 2, 6), 6, 3, 17),
    _rotary("olmo2", "grouped heads, tied", _sizes(75, 50, 41, 3, 5), 1, 2, 21, tie_word_embeddings=True),
    _rotary("olmo2", "biases", _sizes(117, 42, 67, 2, 3), 3, 3, 11, draws=3, attention_bias=True, rms_norm_eps=1e-6),
    _rotary(
        "granite", "all multipliers", _sizes(99, 36, 53, 2, 6), 2, 3, 17,
        embedding_multiplier=7.0, residual_multiplier=0.45, attention_multiplier=0.3, logits_scaling=0.6,
    ),
    _rotary(
        "granite", "biases, tied", _sizes(65, 50, 47, 3, 5), 5, 2, 19, draws=3,
        attention_bias=True, mlp_bias=True, tie_word_embeddings=True, embedding_multiplier=3.0, attention_multiplier=0.2,
    ),
    _rotary(
        "granite", "branches subtracted", _sizes(121, 42, 39, 2, 7), 1, 3, 13,
        residual_multiplier=-0.7, attention_multiplier=0.8, logits_scaling=0.9,
    ),
    _rotary("glm", "grouped heads", _sizes(95, 39, 51, 2, 6), 2, 3, 17, draws=3, head_dim=12),
    _rotary(
        "glm", "no biases, a quarter rotated, tied", _sizes(71, 33, 43, 3, 3), 1, 2, 25,
        head_dim=16, attention_bias=False, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 900.0, "partial_rotary_factor": 0.25},
    ),
    _rotary(
        "glm", "an odd share rotated", _sizes(105, 45, 57, 2, 5), 5, 3, 11, draws=3,
        head_dim=10, partial_rotary_factor=0.7, hidden_act="gelu",
    ),
    _rotary("glm4", "grouped heads", _sizes(97, 39, 49, 2, 6), 3, 3, 15, draws=3, head_dim=12),
    _rotary(
        "glm4", "no biases, tied", _sizes(73, 35, 45, 3, 5), 1, 2, 23,
        head_dim=8, attention_bias=False, tie_word_embeddings=True,
    ),
    _rotary(
        "glm4", "whole heads, linear rope", _sizes(109, 33, 61, 2, 3), 3, 3, 13, draws=3,
        head_dim=14, partial_rotary_factor=1.0, rope_scaling={"rope_type": "linear", "factor": 2.0},
    ),
    _rotary("starcoder2", "grouped heads, window", _sizes(93, 48, 67, 2, 6), 2, 3, 17, sliding_window=6),
    _rotary(
        "starcoder2", "no biases, own head", _sizes(71, 50, 45, 3, 5), 1, 2, 23, use_bias=False, tie_word_embeddings=False
    ),
    _rotary(
        "starcoder2", "own keys, linear rope", _sizes(107, 42, 61, 2, 3), 3, 3, 11, draws=3,
        rope_parameters={"rope_type": "linear", "factor": 2.5, "rope_theta": 3000.0},
    ),
    _like_llama(
        "smollm3", "every second layer without positions", _sizes(95, 60, 51, 2, 6), 2, 3, 17, draws=3,
        no_rope_layer_interval=2,
    ),
    _like_llama(
        "smollm3", "windows without positions, own head", _sizes(71, 50, 43, 3, 5), 1, 2, 21,
        no_rope_layers=[1, 0, 1], use_sliding_window=True, sliding_window=7, tie_word_embeddings=False,
    ),
    _like_llama(
        "smollm3", "biases, yarn", _sizes(107, 42, 57, 2, 3), 3, 3, 13, draws=3,
        attention_bias=True, mlp_bias=True, rope_parameters=_yarn_rope(4.0, 16, rope_theta=900.0),
    ),
    _rotary(
        "phi3", "longrope of short samples", _sizes(93, 48, 53, 2, 6), 2, 3, 17,
        original_max_position_embeddings=32, rope_parameters=_longrope(32, 4, rope_theta=500.0),
    ),
    _rotary(
        "phi3", "longrope of long samples, window", _sizes(69, 50, 45, 3, 5), 5, 2, 23,
        original_max_position_embeddings=16, rope_scaling=_longrope(16, 5), sliding_window=9, tie_word_embeddings=True,
    ),
    _rotary(
        "phi3", "three quarters rotated", _sizes(105, 48, 65, 2, 3), 1, 3, 13, draws=3, partial_rotary_factor=0.75
    ),
    _rotary(
        "olmo3", "windows, yarn in full layers", _sizes(93, 36, 55, 4, 6), 6, 3, 17, draws=5, sliding_window=5,
        rope_parameters={
            "full_attention": _yarn_rope(4.0, 16, rope_theta=900.0),
            "sliding_attention": {"rope_type": "default", "rope_theta": 900.0},
        },
    ),
    _rotary(
        "olmo3", "grouped heads, tied", _sizes(75, 50, 41, 3, 5), 1, 2, 21,
        tie_word_embeddings=True, sliding_window=8, layer_types=["full_attention", "sliding_attention", "full_attention"],
    ),
    _rotary("olmo3", "biases, wide window", _sizes(117, 42, 67, 2, 3), 3, 3, 11, draws=3, attention_bias=True),
    _rotary(
        "gemma2", "windows and soft caps", _sizes(91, 36, 53, 2, 6), 2, 3, 17, head_dim=10,
        sliding_window=5, query_pre_attn_scalar=24, attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
    ),
    _rotary(
        "gemma2", "biases, own head", _sizes(67, 50, 43, 3, 5), 1, 2, 23, draws=3, head_dim=14, sliding_window=7,
        attention_bias=True, tie_word_embeddings=False, query_pre_attn_scalar=14, attn_logit_softcapping=1.0,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
    ),
    _rotary(
        "gemma2", "no caps", _sizes(109, 42, 61, 2, 3), 3, 3, 13, draws=3, head_dim=8,
        attn_logit_softcapping=None, final_logit_softcapping=None, hidden_activation="gelu",
    ),
    _like_llama(
        "gemma3_text", "windows of every second layer", _sizes(97, 36, 51, 4, 6), 2, 3, 17, draws=5, head_dim=10,
        sliding_window=5, sliding_window_pattern=2, rope_local_base_freq=300.0, rope_theta=5000.0, query_pre_attn_scalar=10,
    ),
    _like_llama(
        "gemma3_text", "linear rope in full layers, soft cap", _sizes(71, 50, 45, 3, 5), 1, 2, 21, draws=3, head_dim=14,
        sliding_window=6, layer_types=["sliding_attention", "full_attention", "full_attention"],
        rope_scaling={"rope_type": "linear", "factor": 3.0}, final_logit_softcapping=3.0, query_pre_attn_scalar=20,
    ),
    _like_llama(
        "gemma3_text", "biases, own head, wide window", _sizes(113, 42, 57, 2, 3), 3, 3, 13, draws=3, head_dim=8,
        attention_bias=True, tie_word_embeddings=False, sliding_window=64, query_pre_attn_scalar=8,
    ),
    _gpt2("plain GPT-2", (97, 36, 2, 6), 3, 17, draws=3),
    _gpt2(
        "own head, scores scaled by layer", (71, 50, 3, 5), 2, 21,
        n_inner=47, scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False,
    ),
    _gpt2("scores not scaled, relu", (109, 42, 2, 3), 3, 13, draws=3, scale_attn_weights=False, activation_function="relu"),
    _gpt("gpt_neox", "in parallel, a quarter rotated", _sizes(95, 48, 67, 2, 3), 3, 17),
    _gpt(
        "gpt_neox", "in turn, no biases, tied", _sizes(73, 50, 45, 3, 5), 2, 23, draws=3,
        use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True, rotary_pct=0.4, rotary_emb_base=500,
    ),
    _gpt(
        "gpt_neox", "whole heads, linear rope", _sizes(107, 42, 61, 2, 7), 3, 11, draws=3,
        rotary_pct=1.0, rope_scaling={"type": "linear", "factor": 2.0},
    ),
    _falcon("multi-query, in parallel", (95, 36, 2, 6), 3, 17),
    _falcon(
        "new architecture, grouped heads, biases", (73, 60, 3, 6), 2, 21, draws=3,
        new_decoder_architecture=True, num_kv_heads=2, bias=True, rope_theta=700.0,
    ),
    _falcon(
        "in turn, own keys, own head", (107, 42, 2, 7), 3, 13, draws=3,
        parallel_attn=False, multi_query=False, bias=True, ffn_hidden_size=47, tie_word_embeddings=False,
    ),
    _mixture("mixtral", "grouped heads", _sizes(91, 36, 29, 2, 6), 2, (5, 2), 3, 17),
    _mixture("mixtral", "one expert a token, tied", _sizes(67, 42, 37, 2, 3), 1, (3, 1), 2, 23, tie_word_embeddings=True),
    _mixture("mixtral", "seven experts", _sizes(103, 40, 21, 3, 5), 5, (7, 3), 3, 11, router_aux_loss_coef=0.2),
    _mixture(
        "qwen2_moe", "grouped heads", _sizes(63, 60, 41, 2, 6), 3, (6, 2), 3, 17,
        moe_intermediate_size=19, shared_expert_intermediate_size=27,
    ),
    _mixture(
        "qwen2_moe", "normalized, no biases, tied", _sizes(75, 40, 51, 3, 4), 4, (5, 3), 2, 21,
        moe_intermediate_size=17, shared_expert_intermediate_size=33, norm_topk_prob=True, qkv_bias=False,
        mlp_only_layers=[1], tie_word_embeddings=True,
    ),
    _mixture(
        "qwen2_moe", "every second layer, wide window", _sizes(57, 66, 37, 2, 3), 1, (4, 1), 3, 13,
        moe_intermediate_size=23, shared_expert_intermediate_size=15, decoder_sparse_step=2,
        use_sliding_window=True, sliding_window=13, max_window_layers=2,
    ),
    _mixture(
        "qwen3_moe", "grouped heads, normalized", _sizes(95, 33, 45, 2, 3), 1, (6, 3), 3, 19,
        head_dim=10, moe_intermediate_size=23, norm_topk_prob=True,
    ),
    _mixture(
        "qwen3_moe", "one dense layer", _sizes(73, 40, 51, 3, 4), 2, (5, 2), 2, 21,
        head_dim=14, moe_intermediate_size=17, mlp_only_layers=[1],
    ),
    _mixture(
        "qwen3_moe", "every second layer, biases", _sizes(85, 35, 43, 2, 5), 5, (4, 2), 3, 13,
        head_dim=8, moe_intermediate_size=19, decoder_sparse_step=2, attention_bias=True, norm_topk_prob=True,
    ),
    _mixture("olmoe", "plain", _sizes(97, 36, 25, 2, 6), 6, (6, 3), 3, 17),
    _mixture("olmoe", "clipped, grouped heads", _sizes(71, 42, 31, 2, 3), 1, (5, 2), 2, 25, clip_qkv=1.2),
    _mixture(
        "olmoe", "tied, normalized, no auxiliary loss", _sizes(107, 50, 27, 2, 5), 5, (7, 4), 3, 11,
        tie_word_embeddings=True, norm_topk_prob=True, output_router_logits=False,
    ),
    _mixture(
        "granitemoe", "all multipliers", _sizes(89, 36, 29, 2, 6), 2, (5, 2), 3, 17,
        embedding_multiplier=7.0, residual_multiplier=0.45, attention_multiplier=0.3, logits_scaling=0.6,
    ),
    _mixture(
        "granitemoe", "one expert a token, biases, tied", _sizes(67, 50, 37, 3, 5), 5, (3, 1), 2, 19,
        attention_bias=True, tie_word_embeddings=True, embedding_multiplier=3.0, attention_multiplier=0.2,
    ),
    _mixture(
        "granitemoe", "seven experts, one kv head", _sizes(103, 42, 23, 2, 7), 1, (7, 3), 3, 13,
        residual_multiplier=-0.7, attention_multiplier=0.8, logits_scaling=0.9, router_aux_loss_coef=0.2,
    ),
    _mixture(
        "gpt_oss", "alternating windows, yarn", _sizes(87, 36, 29, 3, 6), 2, (5, 2), 3, 17,
        head_dim=8, sliding_window=5, rope_scaling=_yarn_rope(4.0, 16, beta_fast=8.0, truncate=False),
    ),
    _mixture(
        "gpt_oss", "low limit, one kv head", _sizes(69, 60, 47, 3, 5), 1, (7, 3), 2, 21,
        head_dim=10, sliding_window=7, swiglu_limit=0.3, swiglu_alpha=1.1, layer_types=["full_attention", "sliding_attention", "full_attention"],
    ),
    _mixture(
        "gpt_oss", "one expert a token, tied", _sizes(101, 50, 23, 2, 5), 5, (3, 1), 3, 13,
        head_dim=6, sliding_window=3, attention_bias=False, tie_word_embeddings=True, output_router_logits=False,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
    ),
    _deepseek(
        2, "queries of the token", _sizes(71, 48, 57, 3, 6), (None, 14), (8, 6, 9), (6, 3, 19), 3, 17,
        n_shared_experts=2, first_k_dense_replace=1,
    ),
    _deepseek(
        2, "groups, yarn with mscale", _sizes(63, 50, 43, 2, 5), (17, 12), (6, 8, 10), (6, 2, 23), 2, 21,
        n_shared_experts=1, topk_method="group_limited_greedy", n_group=3, topk_group=2, routed_scaling_factor=1.7,
        rope_scaling=_yarn_rope(4.0, 16, mscale=0.707, mscale_all_dim=0.5),
    ),
    _deepseek(
        2, "biases, tied, large values", _sizes(57, 45, 41, 3, 3), (13, 10), (6, 4, 15), (5, 2, 17), 3, 13,
        n_shared_experts=3, first_k_dense_replace=2, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
    ),
    _deepseek(
        3, "groups", _sizes(69, 48, 53, 3, 6), (15, 12), (6, 4, 9), (8, 3, 21), 3, 17,
        n_shared_experts=1, first_k_dense_replace=1, n_group=4, topk_group=2,
    ),
    _deepseek(
        3, "queries of the token, halves, tied", _sizes(61, 50, 43, 2, 5), (None, 14), (7, 6, 5), (6, 2, 25), 2, 21,
        n_shared_experts=2, first_k_dense_replace=0, n_group=1, topk_group=1, norm_topk_prob=False,
        routed_scaling_factor=1.0, rope_interleave=False, tie_word_embeddings=True,
    ),
    _deepseek(
        3, "biases, yarn with mscale", _sizes(59, 45, 47, 3, 3), (11, 10), (5, 8, 13), (6, 2, 19), 3, 13,
        n_shared_experts=1, first_k_dense_replace=1, n_group=3, topk_group=1, attention_bias=True,
        rope_scaling=_yarn_rope(8.0, 8, mscale=1.0, mscale_all_dim=0.8),
    ),
    _native_olmo(
        "as OLMo-1B", 101, (99, 36, 2, 6), 3, 17,
        mlp_ratio=8, weight_tying=True, rope=True, include_bias=False, layer_norm_with_affine=False,
    ),
    _native_olmo(
        "grouped heads, rms, clipped, own head", None, (83, 50, 2, 5), 2, 15, draws=5,
        n_kv_heads=1, mlp_hidden_size=54, weight_tying=False, rope=True, layer_norm_type="rms", clip_qkv=0.5,
        attention_layer_norm=True,
    ),
    _native_olmo(
        "ALiBi, gelu, norm after, biases", 73, (71, 33, 3, 3), 3, 13, draws=5,
        alibi=True, activation_type="gelu", mlp_hidden_size=47, norm_after=True, embedding_layer_norm=True,
        weight_tying=True,
    ),
    _chatglm("as ChatGLM3", (75, 57, 51, 2, 6), 2, 3, 17, draws=3, kv_channels=12, add_qkv_bias=True),
    _chatglm(
        "one query group, biases, stretched rope", (67, 55, 47, 3, 5), 1, 2, 23, draws=3,
        kv_channels=8, add_bias_linear=True, rope_ratio=50,
    ),
    _chatglm(
        "own keys and values, layer norm, residual after norm", (113, 33, 63, 2, 3), None, 3, 11, draws=3,
        kv_channels=16, rmsnorm=False, apply_residual_connection_post_layernorm=True,
    ),
    _bloom("eight heads", (107, 64, 2, 8), 3, 17),
    _bloom("five heads, own head", (71, 45, 3, 5), 2, 21, tie_word_embeddings=False),
    _bloom(
        "residual after norm", (83, 51, 2, 3), 3, 9,
        apply_residual_connection_post_layernorm=True, layer_norm_epsilon=1e-6,
    ),
    _baichuan("7B", _sizes(95, 36, 51, 2, 6), 3, 17, max_position_embeddings=64),
    _baichuan("13B, NormHead", _sizes(77, 35, 47, 2, 5), 2, 19, model_max_length=64, norm_head=True),
    _baichuan(
        "7B, NormHead", _sizes(113, 30, 63, 3, 3), 3, 11,
        max_position_embeddings=64, model_max_length=64, norm_head=True,
    ),
]

# For f16: weights and activations of a few hundredths. A token takes all of the experts, so that rounding changes no
# routing.
SMALL_IN_FP16 = [
    dataclasses.replace(_rotary("olmo2", "small", _sizes(97, 36, 25, 2, 6), 6, 3, 17), scale=0.25),
    dataclasses.replace(
        _mixture("olmoe", "all of 16 experts", _sizes(97, 36, 25, 2, 6), 6, (16, 16), 3, 17), scale=0.25
    ),
    dataclasses.replace(
        _mixture("mixtral", "all of 8 experts", _sizes(91, 36, 29, 2, 6), 2, (8, 8), 3, 17), scale=0.25
    ),
]

_SMALL = _sizes(51, 24, 31, 2, 4)
_SMALL_OLMO = (71, 36, 2, 3)
STRETCHED = "dynamic rope, stretched"

# More features, for which the graph alone is compared.
GRAPH_CASES = TRAINING_CASES + [
    _rotary(
        "llama", STRETCHED, _SMALL, 2, 2, 21,
        rope_scaling={"type": "dynamic", "factor": 3.0}, max_position_embeddings=8,
    ),
    _rotary("llama", "dynamic rope, not stretched", _SMALL, 2, 2, 21, rope_scaling={"type": "dynamic", "factor": 3.0}),
    _rotary(
        "llama", "yarn with mscale", _sizes(51, 24, 31, 1, 2), 1, 2, 30,
        rope_scaling=_yarn_rope(8.0, 8, mscale=0.7, mscale_all_dim=0.5, beta_fast=16.0, beta_slow=2.0, truncate=False),
    ),
    _rotary(
        "llama", "yarn with attention factor", _sizes(51, 48, 31, 1, 2), 1, 2, 30,
        rope_scaling=_yarn_rope(2.0, 32, attention_factor=1.25),
    ),
    _rotary(
        "llama", "llama3 rope, head size 64", _sizes(51, 128, 31, 1, 2), 1, 1, 40,
        rope_theta=500000.0, rope_scaling=_llama3_rope(32.0, 16),
    ),
    _rotary("llama", "gelu", _SMALL, 4, 2, 9, hidden_act="gelu"),
    _rotary("llama", "gelu tanh", _SMALL, 4, 2, 9, hidden_act="gelu_pytorch_tanh"),
    _rotary("llama", "relu", _SMALL, 4, 2, 9, hidden_act="relu"),
    _native_olmo(
        "learned positions, relu", None, (71, 33, 2, 3), 3, 13, activation_type="relu", mlp_hidden_size=47
    ),
    _native_olmo(
        "block groups, low precision norm", None, (71, 36, 4, 3), 2, 13,
        rope=True, block_group_size=2, layer_norm_type="low_precision", bias_for_layer_norm=False,
    ),
    _native_olmo(
        "multi-query, q and k norms without weights", None, _SMALL_OLMO, 2, 13,
        rope=True, multi_query_attention=True, rope_theta=500, attention_layer_norm=True,
        attention_layer_norm_with_affine=False,
    ),
    _native_olmo(
        "rms without weights", None, _SMALL_OLMO, 2, 13,
        rope=True, layer_norm_type="rms", layer_norm_with_affine=False, layer_norm_eps=1e-6,
    ),
    _native_olmo("scaled logits", None, _SMALL_OLMO, 2, 13, rope=True, scale_logits=True),
    _native_olmo("ALiBi of another size", None, (71, 40, 2, 5), 2, 13, alibi=True, alibi_bias_max=6.0),
    _bloom("twelve heads", (107, 48, 1, 12), 2, 31),
    _rotary("mistral", "short window", _SMALL, 2, 2, 21, sliding_window=5),
    _rotary("mistral", "window of one token", _SMALL, 2, 2, 9, sliding_window=1),
    _rotary(
        "qwen2", "windows from a layer on", _sizes(51, 24, 31, 3, 4), 2, 2, 21,
        use_sliding_window=True, sliding_window=4, max_window_layers=1,
    ),
    _rotary(
        "qwen3", "windows by type", _sizes(51, 24, 31, 3, 4), 2, 2, 21, head_dim=6, use_sliding_window=True,
        sliding_window=4, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    _rotary("llama", "longrope", _SMALL, 2, 2, 21, rope_scaling=_longrope(64, 3, factor=4.0)),
    _rotary(
        "llama", "longrope, stretched, with attention factor", _SMALL, 2, 2, 30,
        rope_scaling=_longrope(16, 3, attention_factor=1.25),
    ),
    _mixture("mixtral", "short window", _SMALL, 2, (4, 2), 2, 21, sliding_window=5),
    _mixture(
        "qwen2_moe", "windows of even layers", _sizes(51, 24, 31, 3, 4), 2, (4, 2), 2, 21, moe_intermediate_size=13,
        shared_expert_intermediate_size=17, use_sliding_window=True, sliding_window=5, max_window_layers=2,
    ),
    _mixture(
        "qwen3_moe", "windows of all layers", _SMALL, 2, (4, 2), 2, 21, moe_intermediate_size=13,
        use_sliding_window=True, sliding_window=5, max_window_layers=1,
    ),
    _mixture(
        "qwen2_moe", "windows of even layers below one", _sizes(51, 24, 31, 4, 4), 2, (4, 2), 2, 21,
        moe_intermediate_size=17, shared_expert_intermediate_size=13,
        use_sliding_window=True, sliding_window=5, max_window_layers=2,
    ),
    _falcon(
        "new architecture, one norm", (51, 24, 2, 4), 2, 13,
        new_decoder_architecture=True, num_kv_heads=4, num_ln_in_parallel_attn=1,
    ),
]
