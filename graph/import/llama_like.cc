#include "graph/import/llama_like.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/import/config_parts.h"
#include "graph/import/rope.h"

namespace tacc::graph {

RotaryModel RotaryModelOf(int64_t seq_len, const LlamaLikeDefaults& defaults, const DecoderSpec& spec) {
  RotaryModel model = defaults.rotary_model;
  model.head_dim = spec.head_dim;
  model.seq_len = seq_len;
  model.max_position_embeddings = spec.max_seq_len;
  model.partial_factor = defaults.partial_rotary_factor;
  model.default_theta = defaults.rope_theta;
  return model;
}

void ReadLlamaLike(ConfigReader& config, int64_t seq_len, const LlamaLikeDefaults& defaults, DecoderSpec& spec) {
  ReadTransformersInit(config, spec, defaults.initializer_range);
  spec.vocab_rows = config.Int("vocab_size", 1, kMaxVocabulary, defaults.vocab_size);
  spec.hidden_size = config.Int("hidden_size", 1, kMaxWidth, defaults.hidden_size);
  spec.num_layers = config.Int("num_hidden_layers", 1, kMaxLayers, defaults.num_layers);
  spec.num_heads = config.Int("num_attention_heads", 1, kMaxWidth, defaults.num_heads);
  const bool as_heads = defaults.num_kv_heads == 0 || config.Present("num_key_value_heads");
  const int64_t num_kv_heads =
      config.Int("num_key_value_heads", 1, kMaxWidth, as_heads ? spec.num_heads : defaults.num_kv_heads);
  SetKvHeads(config, "num_key_value_heads", "num_attention_heads", num_kv_heads, spec);
  ReadHeadDim(config, "head_dim", "num_attention_heads", defaults.head_dim, spec);
  spec.intermediate_size = config.Int("intermediate_size", 1, kMaxWidth, defaults.intermediate_size);
  spec.activation = ReadActivation(config, defaults.activation_key, defaults.activation);
  spec.max_seq_len =
      ReadRenamed(config, "max_position_embeddings", "max_sequence_length", kMaxLength, defaults.max_positions);
  if (!defaults.partial_rotary_factor.has_value()) CheckEvenHeads(config, "num_attention_heads", spec.head_dim);
  const RotaryModel model = RotaryModelOf(seq_len, defaults, spec);
  if (defaults.rotary == LlamaLikeDefaults::kOfAllLayers) ReadOneRotary(config, model, spec);
  spec.attention_dropout = ReadDropout(config, "attention_dropout", 0.0);
  ReadTiedHead(config, defaults.tied, spec);
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
  ReadWindow(config, 4096, AllLayersSlide(spec), seq_len, spec);
}

void ReadQwen2(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadLlamaLike(config, seq_len,
                {151936, 4096, 22016, 32, 32, /*num_kv_heads=*/32, /*head_dim=*/0, /*max_positions=*/32768}, spec);
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1e-6);
  spec.qkv_bias = Bias::kPresent;
  config.RefuseUnless("use_mrope", false, "rotary embeddings of several sections are not supported");
  ReadWindowsOfQwen(config, seq_len, spec);
}

void ReadQwen3(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadLlamaLike(config, seq_len,
                {151936, 4096, 22016, 32, 32, /*num_kv_heads=*/32, /*head_dim=*/128, /*max_positions=*/32768}, spec);
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1e-6);
  spec.qk_norm = spec.norm;
  spec.qk_norm_over = DecoderSpec::kHeadDim;
  ReadAttentionBias(config, Bias::kNone, spec);
  ReadWindowsOfQwen(config, seq_len, spec);
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

void ReadStarcoder2(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  LlamaLikeDefaults defaults = {49152, 3072, 12288, 30, 24, /*num_kv_heads=*/2, /*head_dim=*/0, /*max_positions=*/4096};
  defaults.tied = true;
  defaults.initializer_range = 0.018042;
  defaults.activation = "gelu_pytorch_tanh";
  ReadLlamaLike(config, seq_len, defaults, spec);
  spec.norm = {NormSpec::kLayer, Affine::kWeightBias, ReadNormEps(config, "norm_epsilon", 1e-5)};
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = ReadBias(config, "use_bias", Bias::kPresent);
  spec.mlp_kind = DecoderSpec::kPlain;
  spec.residual_dropout = ReadDropout(config, "residual_dropout", 0.0);
  spec.embedding_dropout = ReadDropout(config, "embedding_dropout", 0.0);
  // Written by published models, and read by no code of this family.
  config.RefuseUnless("norm_type", "layer_norm", "this family's norms are layer_norm");
  config.RefuseUnless("mlp_type", "default", "this family has one kind of MLP");
  ReadWindow(config, kMaxLength, AllLayersSlide(spec), seq_len, spec);
}

void ReadSmolLm3(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  LlamaLikeDefaults defaults = {128256,
                                2048,
                                11008,
                                36,
                                16,
                                /*num_kv_heads=*/4,
                                /*head_dim=*/0,
                                /*max_positions=*/32768};
  defaults.tied = true;
  defaults.rope_theta = 2000000.0;
  ReadLlamaLike(config, seq_len, defaults, spec);
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1e-6);
  ReadAttentionBias(config, Bias::kNone, spec);
  spec.mlp_bias = ReadBias(config, "mlp_bias", Bias::kNone);
  // 1: the layer has rotary embeddings; 0: it has no positions.
  std::vector<int64_t> rotated = config.Ints("no_rope_layers", 0, 1);
  if (rotated.empty()) {
    const int64_t interval = config.Int("no_rope_layer_interval", 1, kMaxLayers, 4);
    for (int64_t layer = 0; layer < spec.num_layers; ++layer) rotated.push_back((layer + 1) % interval != 0 ? 1 : 0);
  } else {
    config.Harmless({"no_rope_layer_interval"});
  }
  if (static_cast<int64_t>(rotated.size()) < spec.num_layers) {
    config.Fail("no_rope_layers",
                absl::StrCat("has ", rotated.size(), " entries for num_hidden_layers = ", spec.num_layers));
    return;
  }
  const bool slides = config.Bool("use_sliding_window", false);
  const SlidingLayers sliding =
      ReadLayerTypes(config, spec, [&](int64_t layer) { return slides && rotated[layer] == 0; });
  if (!slides && std::count(sliding.begin(), sliding.end(), 1) > 0)
    config.Fail("layer_types", "\"sliding_attention\" needs use_sliding_window = true");
  ReadWindow(config, kMaxLength, slides ? sliding : SlidingLayers(), seq_len, spec);
  spec.layers.resize(static_cast<size_t>(spec.num_layers));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (rotated[i] == 0) spec.layers[i].positions = DecoderSpec::Layer::kNoRotary;
  }
}

void ReadPhi3(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  LlamaLikeDefaults defaults = {32064,
                                3072,
                                8192,
                                32,
                                32,
                                /*num_kv_heads=*/0,
                                /*head_dim=*/0,
                                /*max_positions=*/4096,
                                /*partial_rotary_factor=*/1.0};
  defaults.rotary_model.kinds = RotaryModel::kLong;
  defaults.rotary_model.original_length = config.Int("original_max_position_embeddings", 1, kMaxLength, 4096);
  ReadLlamaLike(config, seq_len, defaults, spec);
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1e-5);
  // Written by published models, and read by no code of this family.
  for (const char* key : {"attention_bias", "mlp_bias", "lm_head_bias"})
    config.RefuseUnless(key, false, "this family has no biases");
  for (const char* key : {"full_attn_mod", "interpolate_factor"})
    config.RefuseUnless(key, 1, "this family has no such feature");
  spec.qkv_layout = DecoderSpec::kStacked;
  spec.mlp_kind = DecoderSpec::kGateUp;
  spec.residual_dropout = ReadDropout(config, "resid_pdrop", 0.0);
  ReadWindow(config, kMaxLength, AllLayersSlide(spec), seq_len, spec);
}

void ReadOlmo3(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  LlamaLikeDefaults defaults = {50304, 4096, 11008, 32, 32};
  defaults.rotary = LlamaLikeDefaults::kByType;
  ReadLlamaLike(config, seq_len, defaults, spec);
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1e-5);
  spec.qk_norm = spec.norm;
  spec.qk_norm_over = DecoderSpec::kAllHeads;
  ReadAttentionBias(config, Bias::kNone, spec);
  const SlidingLayers sliding = ReadLayerTypes(config, spec, [](int64_t layer) { return (layer + 1) % 4 != 0; });
  ReadWindow(config, 4096, sliding, seq_len, spec);
  constexpr double kTheta = 500000.0;
  config.RefuseUnless(
      "rope_theta", kTheta,
      "transformers 4 takes it for all layers, transformers 5 for those of full_attention alone; say it "
      "in rope_parameters, for full_attention and sliding_attention");
  ReadRotariesByType(config, RotaryModelOf(seq_len, defaults, spec), kTheta, kTheta, sliding, spec);
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

DecoderNames Starcoder2Names() {
  DecoderNames names;
  names.up = "mlp.c_fc";
  names.down = "mlp.c_proj";
  return names;
}

DecoderNames Phi3Names() {
  DecoderNames names;
  names.qkv = "self_attn.qkv_proj";
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
