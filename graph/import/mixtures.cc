#include "graph/import/mixtures.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/import/config_parts.h"
#include "graph/import/llama_like.h"

namespace tacc::graph {
namespace {

constexpr int64_t kMaxExperts = int64_t{1} << 16;
constexpr int64_t kMaxGroups = 32;  // what top_k takes

// What absent keys mean.
struct ExpertDefaults {
  int64_t num_experts, experts_per_token;
  double aux_loss_coef;
};

void CheckExpertsOfToken(ConfigReader& config, const ExpertsSpec& experts) {
  if (experts.experts_per_token <= experts.num_experts) return;
  config.Fail("num_experts_per_tok", absl::StrCat(experts.experts_per_token, " experts of a token are more than the ",
                                                  experts.num_experts, " that there are"));
}

// num_experts_per_tok, and the load-balancing loss, which is part of the loss only with output_router_logits.
ExpertsSpec ReadExpertsOf(ConfigReader& config, int64_t num_experts, const ExpertDefaults& defaults) {
  ExpertsSpec experts;
  experts.num_experts = num_experts;
  experts.experts_per_token = config.Int("num_experts_per_tok", 1, kMaxExperts, defaults.experts_per_token);
  CheckExpertsOfToken(config, experts);
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
  ReadWindowsOfQwen(config, seq_len, spec, QwenWindows::kAllLayers);
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

namespace {

// What absent keys mean, in DeepSeek V2 or V3.
struct DeepseekDefaults {
  int64_t vocab_size, hidden_size, intermediate_size, num_layers, num_heads, max_positions;
  int64_t shared_experts, num_experts, experts_per_token, moe_intermediate, first_dense;
  double routed_scaling_factor;
};

// Sizes of latent attention, its rotary embedding and its scale.
void ReadLatentAttention(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  LatentSpec& latent = spec.latent.emplace();
  const int64_t absent = config.Present("q_lora_rank") ? 0 : 1536;
  latent.q_rank = config.OptionalInt("q_lora_rank", 1, kMaxWidth).value_or(absent);
  latent.kv_rank = config.Int("kv_lora_rank", 1, kMaxWidth, 512);
  latent.nope = config.Int("qk_nope_head_dim", 1, kMaxWidth, 128);
  latent.rope = config.Int("qk_rope_head_dim", 1, kMaxWidth, 64);
  latent.value = config.Int("v_head_dim", 1, kMaxWidth, 128);
  // Their norms do not ask for rms_norm_eps.
  latent.norm = {NormSpec::kRms, Affine::kWeight, 1e-6};
  spec.head_dim = latent.nope + latent.rope;
  if (spec.num_heads * std::max(spec.head_dim, latent.nope + latent.value) > kMaxWidth) {
    config.Fail("qk_nope_head_dim", absl::StrCat(spec.num_heads, " heads of ", spec.head_dim, " and of ",
                                                 latent.nope + latent.value, " are wider than ", kMaxWidth));
  }
  CheckEvenHeads(config, "qk_rope_head_dim", latent.rope);
  RotaryModel model;
  model.head_dim = latent.rope;
  model.seq_len = seq_len;
  model.max_position_embeddings = spec.max_seq_len;
  ReadOneRotary(config, model, spec);
  if (spec.rotary->score_scale != 1)
    spec.attention_scale = spec.rotary->score_scale / std::sqrt(static_cast<double>(spec.head_dim));
}

// The groups of experts of which a token takes some.
void ReadGroups(ConfigReader& config, int64_t fallback_groups, int64_t fallback_kept, DecoderSpec& spec) {
  ExpertsSpec& experts = *spec.experts;
  experts.num_groups = config.Int("n_group", 1, kMaxGroups, fallback_groups);
  experts.kept_groups = config.Int("topk_group", 1, kMaxGroups, fallback_kept);
  if (experts.num_experts % experts.num_groups != 0) {
    return config.Fail(
        "n_group", absl::StrCat(experts.num_groups, " groups do not divide n_routed_experts = ", experts.num_experts));
  }
  if (experts.kept_groups > experts.num_groups) {
    return config.Fail("topk_group", absl::StrCat(experts.kept_groups,
                                                  " groups of a token are more than n_group = ", experts.num_groups));
  }
  const int64_t in_group = experts.num_experts / experts.num_groups;
  if (experts.experts_per_token > in_group * experts.kept_groups) {
    return config.Fail("topk_group", absl::StrCat("the ", in_group * experts.kept_groups,
                                                  " experts of a token's groups are fewer than num_experts_per_tok = ",
                                                  experts.experts_per_token));
  }
  if (in_group < experts.summed)
    config.Fail("n_group", absl::StrCat("groups of ", in_group, "; wanted at least ", experts.summed, " experts each"));
}

// What V2 and V3 share: all but how experts are chosen.
void ReadDeepseek(ConfigReader& config, int64_t seq_len, const DeepseekDefaults& defaults, DecoderSpec& spec) {
  ReadTransformersInit(config, spec);
  spec.vocab_rows = config.Int("vocab_size", 1, kMaxVocabulary, defaults.vocab_size);
  spec.hidden_size = config.Int("hidden_size", 1, kMaxWidth, defaults.hidden_size);
  spec.num_layers = config.Int("num_hidden_layers", 1, kMaxLayers, defaults.num_layers);
  spec.num_heads = spec.num_kv_heads = config.Int("num_attention_heads", 1, kMaxWidth, defaults.num_heads);
  const int64_t kv_heads = config.OptionalInt("num_key_value_heads", 1, kMaxWidth).value_or(spec.num_heads);
  if (kv_heads != spec.num_heads) {
    config.Fail("num_key_value_heads",
                absl::StrCat("each of the ", spec.num_heads,
                             " heads makes its own keys of the latent; wanted as many, or none"));
  }
  ReadGatedMlp(config, defaults.intermediate_size, spec);
  spec.max_seq_len = config.Int("max_position_embeddings", 1, kMaxLength, defaults.max_positions);
  ReadLatentAttention(config, seq_len, spec);
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1e-6);
  spec.qkv_bias = spec.attention_out_bias = ReadBias(config, "attention_bias", Bias::kNone);
  spec.attention_dropout = ReadDropout(config, "attention_dropout", 0.0);
  ReadTiedHead(config, false, spec);

  ExpertsSpec& experts = spec.experts.emplace();
  experts.num_experts = config.Int("n_routed_experts", 1, kMaxExperts, defaults.num_experts);
  experts.experts_per_token = config.Int("num_experts_per_tok", 1, kMaxExperts, defaults.experts_per_token);
  CheckExpertsOfToken(config, experts);
  experts.intermediate_size = config.Int("moe_intermediate_size", 1, kMaxWidth, defaults.moe_intermediate);
  experts.shared_intermediate_size =
      experts.intermediate_size * config.Int("n_shared_experts", 1, kMaxExperts, defaults.shared_experts);
  experts.weight_factor = config.Float("routed_scaling_factor", -1e6, 1e6, defaults.routed_scaling_factor);
  experts.has_wide_logits = true;
  const int64_t first = config.Int("first_k_dense_replace", 0, kMaxLayers, defaults.first_dense);
  for (int64_t layer = 0; layer < std::min(first, spec.num_layers); ++layer) experts.dense_layers.insert(layer);
  config.RefuseUnless("moe_layer_freq", 1, "layers from first_k_dense_replace on all have experts");
}

}  // namespace

void ReadDeepseekV2(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadDeepseek(config, seq_len, {102400, 4096, 11008, 32, 32, 2048, 2, 64, 6, 1407, 0, 1.0}, spec);
  spec.rotary->pairs = Rotary::kNeighbours;
  spec.mlp_bias = ReadBias(config, "mlp_bias", Bias::kNone);
  config.RefuseUnless("scoring_func", "softmax", "this family's scores are a softmax");
  config.RefuseUnless("norm_topk_prob", false, "transformers does not divide this family's weights by their sum");
  enum Method { kGreedy, kLimited };
  const auto method =
      config.Choice<Method>("topk_method", {{"greedy", kGreedy}, {"group_limited_greedy", kLimited}}, "greedy");
  if (method == kLimited) {
    ReadGroups(config, 1, 1, spec);
  } else {
    config.Harmless({"n_group", "topk_group"});
  }
}

void ReadDeepseekV3(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadDeepseek(config, seq_len, {129280, 7168, 18432, 61, 128, 4096, 1, 256, 8, 2048, 3, 2.5}, spec);
  if (config.Bool("rope_interleave", true)) spec.rotary->pairs = Rotary::kNeighbours;
  config.RefuseUnless("scoring_func", "sigmoid", "this family's scores are sigmoids");
  config.RefuseUnless("topk_method", "noaux_tc", "this family chooses by scores and a bias");
  ExpertsSpec& experts = *spec.experts;
  experts.scores = ExpertsSpec::kSigmoid;
  experts.has_choice_bias = true;
  experts.summed = 2;
  if (config.Bool("norm_topk_prob", true)) experts.weights = ExpertsSpec::kNormalized;
  ReadGroups(config, 8, 4, spec);
}

void ReadGptOss(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  LlamaLikeDefaults defaults = {201088, 2880, 2880, 36, 64, /*num_kv_heads=*/8, /*head_dim=*/64};
  defaults.max_positions = 131072;
  defaults.rope_theta = 150000;
  defaults.rotary_model.absent = {{"rope_type", "yarn"}, {"factor", 32.0},
                                  {"beta_fast", 32.0},   {"beta_slow", 1.0},
                                  {"truncate", false},   {"original_max_position_embeddings", 4096}};
  ReadLlamaLike(config, seq_len, defaults, spec);
  if (spec.activation != DecoderSpec::kSilu)
    config.Fail("hidden_act", "this family's experts have one activation; wanted silu");
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1e-5);
  spec.qkv_bias = spec.attention_out_bias = ReadBias(config, "attention_bias", Bias::kPresent);
  spec.has_sinks = true;
  const SlidingLayers sliding = ReadLayerTypes(config, spec, [](int64_t layer) { return layer % 2 == 0; });
  ReadWindow(config, 128, sliding, seq_len, spec);
  const ExpertDefaults of_experts = {128, 4, 0.001};
  const int64_t num_experts =
      ReadRenamed(config, "num_local_experts", "num_experts", kMaxExperts, of_experts.num_experts);
  spec.experts = ReadExpertsOf(config, num_experts, of_experts);
  ExpertsSpec& experts = *spec.experts;
  // The older name of num_experts_per_tok, which published models write beside it.
  config.RefuseUnless("experts_per_token", experts.experts_per_token, "num_experts_per_tok says another number");
  experts.intermediate_size = spec.intermediate_size;
  experts.weights = ExpertsSpec::kNormalized;  // a softmax over the chosen ones
  experts.stored = ExpertsSpec::kTurns;
  experts.bias = Bias::kPresent;
  ExpertsSpec::ClampedGate& clamped = experts.clamped_gate.emplace();
  clamped.alpha = config.Float("swiglu_alpha", 1e-6, 1e6, 1.702);
  clamped.limit = config.Float("swiglu_limit", 1e-6, 1e6, 7.0);
}

std::set<std::string> DeepseekHarmlessKeys() {
  return {// Computed from others.
          "head_dim", "qk_head_dim",
          // Ways of computing the same.
          "pretraining_tp", "ep_size",
          // Of a load-balancing loss that transformers' classes do not add.
          "aux_loss_alpha", "seq_aux", "output_router_logits", "router_aux_loss_coef",
          // Of layers behind the model that guess further tokens; transformers trains without them.
          "num_nextn_predict_layers", "num_mtp_layers"};
}

DecoderNames DeepseekNames() {
  DecoderNames names;
  names.shared_gate = "mlp.shared_experts.gate_proj";
  names.shared_up = "mlp.shared_experts.up_proj";
  names.shared_down = "mlp.shared_experts.down_proj";
  return names;
}

DecoderNames GraniteMoeNames() {
  DecoderNames names;
  names.mlp = "block_sparse_moe";
  names.router = "block_sparse_moe.router.layer";
  names.expert_gate = "block_sparse_moe.input_linear";
  names.expert_down = "block_sparse_moe.output_linear";
  return names;
}

DecoderNames GptOssNames() {
  DecoderNames names;
  names.router = "mlp.router";
  names.expert_gate = "mlp.experts.gate_up_proj";
  names.expert_down = "mlp.experts.down_proj";
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
