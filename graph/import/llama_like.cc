#include "graph/import/llama_like.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/import/config_parts.h"
#include "graph/import/rope.h"

namespace tacc::graph {

void ReadLlamaLike(ConfigReader& config, int64_t seq_len, const LlamaLikeDefaults& defaults, DecoderSpec& spec) {
  ReadTransformersInit(config, spec);
  spec.vocab_rows = config.Int("vocab_size", 1, kMaxVocabulary, defaults.vocab_size);
  spec.hidden_size = config.Int("hidden_size", 1, kMaxWidth, defaults.hidden_size);
  spec.num_layers = config.Int("num_hidden_layers", 1, kMaxLayers, defaults.num_layers);
  spec.num_heads = config.Int("num_attention_heads", 1, kMaxWidth, defaults.num_heads);
  const bool as_heads = defaults.num_kv_heads == 0 || config.Present("num_key_value_heads");
  const int64_t num_kv_heads =
      config.Int("num_key_value_heads", 1, kMaxWidth, as_heads ? spec.num_heads : defaults.num_kv_heads);
  SetKvHeads(config, "num_key_value_heads", "num_attention_heads", num_kv_heads, spec);
  ReadHeadDim(config, "head_dim", "num_attention_heads", defaults.head_dim, spec);
  ReadGatedMlp(config, defaults.intermediate_size, spec);
  spec.max_seq_len =
      ReadRenamed(config, "max_position_embeddings", "max_sequence_length", kMaxLength, defaults.max_positions);
  if (!defaults.partial_rotary_factor.has_value()) CheckEvenHeads(config, "num_attention_heads", spec.head_dim);
  RotaryModel model;
  model.head_dim = spec.head_dim;
  model.seq_len = seq_len;
  model.max_position_embeddings = spec.max_seq_len;
  model.partial_factor = defaults.partial_rotary_factor;
  model.default_theta = defaults.rope_theta;
  spec.rotary = ReadRotary(config, model);
  if (spec.rotary->any_length) {
    spec.max_seq_len = 0;
  } else {
    CheckLength(config, "max_position_embeddings", seq_len, spec);
  }
  NoteAttentionDropout(config, 0.0, spec);
  ReadTiedHead(config, false, spec);
}

void RefuseSmallWindow(ConfigReader& config, const std::string& layers, int64_t fallback, int64_t seq_len) {
  const int64_t absent = config.Present("sliding_window") ? kMaxLength : fallback;
  const int64_t window = config.Int("sliding_window", 1, kMaxLength, absent);
  if (window >= seq_len) return;
  config.Fail("sliding_window", absl::StrCat(layers, " attend over a window of ", window,
                                             " tokens, which is supported only where it holds a whole sample, and "
                                             "samples have data.seq_len = ",
                                             seq_len));
}

void RefuseSmallWindowsOfQwen(ConfigReader& config, int64_t seq_len, const DecoderSpec& spec, QwenWindows windows) {
  const std::vector<std::string> layer_types = config.Strings("layer_types");
  bool any_sliding = false;
  for (const std::string& type : layer_types) {
    any_sliding |= type == "sliding_attention";
    if (type == "full_attention" || type == "sliding_attention") continue;
    config.Fail("layer_types", absl::StrCat("layers of type \"", type, "\" are not supported"));
    return;
  }
  if (!layer_types.empty() && static_cast<int64_t>(layer_types.size()) != spec.num_layers) {
    config.Fail("layer_types",
                absl::StrCat("has ", layer_types.size(), " entries for num_hidden_layers = ", spec.num_layers));
  }
  if (!config.Bool("use_sliding_window", false)) {
    config.Harmless({"sliding_window", "max_window_layers"});
    if (any_sliding) config.Fail("layer_types", "\"sliding_attention\" needs use_sliding_window = true");
    return;
  }
  const int64_t first = config.Int("max_window_layers", 0, kMaxLayers, 28);
  const bool from_there_on = windows == QwenWindows::kFromLayer;
  if (layer_types.empty() && (from_there_on ? first < spec.num_layers : first > 0)) {
    RefuseSmallWindow(config,
                      absl::StrCat("with use_sliding_window ",
                                   from_there_on ? "the layers from max_window_layers = "
                                                 : "every second layer below max_window_layers = ",
                                   first, from_there_on ? " on" : ""),
                      4096, seq_len);
  } else if (any_sliding) {
    RefuseSmallWindow(config, "with use_sliding_window the layers that are so in layer_types", 4096, seq_len);
  } else {
    config.Harmless({"sliding_window"});
  }
}

namespace {

void ReadAttentionBias(ConfigReader& config, Bias fallback, DecoderSpec& spec) {
  spec.qkv_bias = spec.attention_out_bias = ReadBias(config, "attention_bias", fallback);
}

}  // namespace

void ReadLlama(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadLlamaLike(config, seq_len, {32000, 4096, 11008, 32, 32}, spec);
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1e-6);
  ReadAttentionBias(config, Bias::kNone, spec);
  spec.mlp_bias = ReadBias(config, "mlp_bias", Bias::kNone);
  config.RefuseUnless("rope_interleaved", false, "the weights are for rotary embeddings of neighbouring pairs");
}

void ReadMistral(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadLlamaLike(config, seq_len,
                {32000, 4096, 14336, 32, 32, /*num_kv_heads=*/8, /*head_dim=*/0, /*max_positions=*/131072}, spec);
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1e-6);
  RefuseSmallWindow(config, "all layers", 4096, seq_len);
}

void ReadQwen2(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadLlamaLike(config, seq_len,
                {151936, 4096, 22016, 32, 32, /*num_kv_heads=*/32, /*head_dim=*/0, /*max_positions=*/32768}, spec);
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1e-6);
  spec.qkv_bias = Bias::kPresent;
  config.RefuseUnless("use_mrope", false, "rotary embeddings of several sections are not supported");
  RefuseSmallWindowsOfQwen(config, seq_len, spec);
}

void ReadQwen3(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadLlamaLike(config, seq_len,
                {151936, 4096, 22016, 32, 32, /*num_kv_heads=*/32, /*head_dim=*/128, /*max_positions=*/32768}, spec);
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1e-6);
  spec.qk_norm = spec.norm;
  spec.qk_norm_over = DecoderSpec::kHeadDim;
  ReadAttentionBias(config, Bias::kNone, spec);
  RefuseSmallWindowsOfQwen(config, seq_len, spec);
}

void ReadOlmo(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadLlamaLike(config, seq_len, {50304, 4096, 11008, 32, 32}, spec);
  spec.norm = {NormSpec::kLayer, Affine::kNone, 1e-5};
  ReadAttentionBias(config, Bias::kNone, spec);
  spec.clip_qkv = config.OptionalFloat("clip_qkv", 1e-30, 1e30);
}

void ReadOlmo2(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadLlamaLike(config, seq_len, {50304, 4096, 11008, 32, 32}, spec);
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1e-5);
  spec.qk_norm = spec.norm;
  spec.qk_norm_over = DecoderSpec::kAllHeads;
  ReadAttentionBias(config, Bias::kNone, spec);
}

void ReadGraniteFactors(ConfigReader& config, DecoderSpec& spec) {
  spec.embedding_scale = config.Float("embedding_multiplier", -1e6, 1e6, 1.0);
  spec.residual_scale = config.Float("residual_multiplier", -1e6, 1e6, 1.0);
  spec.attention_scale = config.Float("attention_multiplier", -1e6, 1e6, 1.0);
  spec.logit_scale = 1 / config.Float("logits_scaling", 1e-6, 1e6, 1.0);
}

void ReadGranite(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadLlamaLike(config, seq_len, {32000, 4096, 11008, 32, 32}, spec);
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1e-6);
  ReadAttentionBias(config, Bias::kNone, spec);
  spec.mlp_bias = ReadBias(config, "mlp_bias", Bias::kNone);
  ReadGraniteFactors(config, spec);
}

void ReadGlm(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadLlamaLike(config, seq_len,
                {151552, 4096, 13696, 40, 32, /*num_kv_heads=*/2, /*head_dim=*/128, /*max_positions=*/131072,
                 /*partial_rotary_factor=*/0.5},
                spec);
  spec.rotary->pairs = Rotary::kNeighbours;
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1.5625e-7);
  spec.qkv_bias = ReadBias(config, "attention_bias", Bias::kPresent);
  spec.mlp_kind = DecoderSpec::kGateUp;
}

DecoderNames Qwen3Names() {
  DecoderNames names;
  names.q_norm = "self_attn.q_norm";
  names.k_norm = "self_attn.k_norm";
  return names;
}

DecoderNames Olmo2Names() {
  DecoderNames names = Qwen3Names();
  names.attention_norm = names.mlp_norm = "";
  names.attention_post_norm = "post_attention_layernorm";
  names.mlp_post_norm = "post_feedforward_layernorm";
  return names;
}

DecoderNames GlmNames() {
  DecoderNames names;
  names.fused_mlp = "mlp.gate_up_proj";
  return names;
}

DecoderNames Glm4Names() {
  DecoderNames names = GlmNames();
  names.attention_post_norm = "post_self_attn_layernorm";
  names.mlp_post_norm = "post_mlp_layernorm";
  return names;
}

}  // namespace tacc::graph
