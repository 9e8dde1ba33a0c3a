#include "graph/import/mixtures.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/import/config_parts.h"
#include "graph/import/llama_like.h"

namespace tacc::graph {
namespace {

constexpr int64_t kMaxExperts = int64_t{1} << 16;

// What absent keys mean.
struct ExpertDefaults {
  int64_t num_experts, experts_per_token;
  double aux_loss_coef;
};

// num_experts_per_tok, and the load-balancing loss, which is part of the loss only with output_router_logits.
ExpertsSpec ReadExpertsOf(ConfigReader& config, int64_t num_experts, const ExpertDefaults& defaults) {
  ExpertsSpec experts;
  experts.num_experts = num_experts;
  experts.experts_per_token = config.Int("num_experts_per_tok", 1, kMaxExperts, defaults.experts_per_token);
  if (experts.experts_per_token > experts.num_experts) {
    config.Fail("num_experts_per_tok", absl::StrCat(experts.experts_per_token, " experts of a token are more than the ",
                                                    experts.num_experts, " that there are"));
  }
  const double coef = config.Float("router_aux_loss_coef", 0, 1e6, defaults.aux_loss_coef);
  if (config.Bool("output_router_logits", false)) experts.aux_loss_coef = coef;
  return experts;
}

// With num_experts (or num_local_experts) too.
ExpertsSpec ReadExperts(ConfigReader& config, const ExpertDefaults& defaults) {
  const int64_t num_experts =
      ReadRenamed(config, "num_experts", "num_local_experts", kMaxExperts, defaults.num_experts);
  return ReadExpertsOf(config, num_experts, defaults);
}

}  // namespace

void ReadMixtral(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  LlamaLikeDefaults defaults = {32000, 4096, 14336, 32, 32, /*num_kv_heads=*/8};
  defaults.max_positions = 131072;
  defaults.rope_theta = 1e6;
  ReadLlamaLike(config, seq_len, defaults, spec);
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1e-5);
  ReadWindow(config, kMaxLength, AllLayersSlide(spec), seq_len, spec);
  config.RefuseUnless("router_jitter_noise", 0.0, "noise on the router's input is not supported");
  spec.experts = ReadExperts(config, {8, 2, 0.001});
  spec.experts->intermediate_size = spec.intermediate_size;
  spec.experts->weights = ExpertsSpec::kNormalized;
}

namespace {

// moe_intermediate_size, norm_topk_prob, and which layers have experts.
void ReadQwenExperts(ConfigReader& config, int64_t default_intermediate, DecoderSpec& spec) {
  spec.experts->intermediate_size = config.Int("moe_intermediate_size", 1, kMaxWidth, default_intermediate);
  if (config.Bool("norm_topk_prob", false)) spec.experts->weights = ExpertsSpec::kNormalized;
  const int64_t sparse_step = config.Int("decoder_sparse_step", 1, kMaxLayers, 1);
  for (int64_t layer : config.Ints("mlp_only_layers", 0, kMaxLayers)) spec.experts->dense_layers.insert(layer);
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    if ((layer + 1) % sparse_step != 0) spec.experts->dense_layers.insert(layer);
  }
}

}  // namespace

void ReadQwen2Moe(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  LlamaLikeDefaults defaults = {151936, 2048, 5632, 24, 16, /*num_kv_heads=*/16};
  defaults.max_positions = 32768;
  ReadLlamaLike(config, seq_len, defaults, spec);
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1e-6);
  spec.qkv_bias = ReadBias(config, "qkv_bias", Bias::kPresent);
  ReadWindowsOfQwen(config, seq_len, spec, QwenWindows::kEvenLayersBelow);
  spec.experts = ReadExperts(config, {60, 4, 0.001});
  ReadQwenExperts(config, 1408, spec);
  spec.experts->shared_intermediate_size = config.Int("shared_expert_intermediate_size", 1, kMaxWidth, 5632);
  spec.experts->has_shared_weight = true;
}

void ReadQwen3Moe(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  LlamaLikeDefaults defaults = {151936, 2048, 6144, 24, 32, /*num_kv_heads=*/4};
  defaults.max_positions = 32768;
  ReadLlamaLike(config, seq_len, defaults, spec);
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1e-6);
  spec.qk_norm = spec.norm;
  spec.qk_norm_over = DecoderSpec::kHeadDim;
  spec.qkv_bias = spec.attention_out_bias = ReadBias(config, "attention_bias", Bias::kNone);
  // Written by published models, and read by no code of this family.
  config.RefuseUnless("qkv_bias", false, "this family's biases are attention_bias");
  config.RefuseUnless("use_qk_norm", true, "this family normalizes queries and keys always");
  config.RefuseUnless("shared_expert_intermediate_size", 0, "experts that all tokens share are not supported");
  ReadWindowsOfQwen(config, seq_len, spec);
  spec.experts = ReadExperts(config, {128, 8, 0.001});
  ReadQwenExperts(config, 768, spec);
}

void ReadOlmoe(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  LlamaLikeDefaults defaults = {50304, 2048, 2048, 16, 16};
  defaults.max_positions = 4096;
  ReadLlamaLike(config, seq_len, defaults, spec);
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1e-5);
  spec.qk_norm = spec.norm;
  spec.qk_norm_over = DecoderSpec::kAllHeads;
  spec.qkv_bias = spec.attention_out_bias = ReadBias(config, "attention_bias", Bias::kNone);
  spec.clip_qkv = config.OptionalFloat("clip_qkv", 1e-30, 1e30);
  spec.clip_place = DecoderSpec::kAfterNorm;
  spec.experts = ReadExperts(config, {64, 8, 0.01});
  spec.experts->intermediate_size = spec.intermediate_size;
  if (config.Bool("norm_topk_prob", false)) spec.experts->weights = ExpertsSpec::kNormalized;
}

void ReadGraniteMoe(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadLlamaLike(config, seq_len, {32000, 4096, 11008, 32, 32}, spec);
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1e-6);
  spec.qkv_bias = spec.attention_out_bias = ReadBias(config, "attention_bias", Bias::kNone);
  ReadGraniteFactors(config, spec);
  const ExpertDefaults defaults = {8, 2, 0.001};
  const int64_t num_experts = config.Int("num_local_experts", 1, kMaxExperts, defaults.num_experts);
  spec.experts = ReadExpertsOf(config, num_experts, defaults);
  spec.experts->intermediate_size = spec.intermediate_size;
  spec.experts->weights = ExpertsSpec::kNormalized;
  spec.experts->stored = ExpertsSpec::kGateUp;
}

DecoderNames GraniteMoeNames() {
  DecoderNames names;
  names.mlp = "block_sparse_moe";
  names.router = "block_sparse_moe.router.layer";
  names.expert_gate = "block_sparse_moe.input_linear";
  names.expert_down = "block_sparse_moe.output_linear";
  return names;
}

DecoderNames MixtralNames() {
  DecoderNames names;
  names.mlp = "block_sparse_moe";
  names.router = "block_sparse_moe.gate";
  names.expert_gate = "block_sparse_moe.experts.*.w1";
  names.expert_up = "block_sparse_moe.experts.*.w3";
  names.expert_down = "block_sparse_moe.experts.*.w2";
  return names;
}

}  // namespace tacc::graph
