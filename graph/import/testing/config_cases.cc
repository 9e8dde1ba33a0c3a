#include "graph/import/testing/config_cases.h"

#include <cstdint>
#include <map>
#include <set>

namespace tacc::graph {
namespace {

using nlohmann::json;

json Rope(const json& parameters) { return {{"rope_parameters", parameters}}; }

std::vector<Flip> CommonFlips() {
  return {{"model_type", "t5"},
          {"architectures", {"LlamaForSequenceClassification"}},
          {"dtype", "int8"},
          {"dtype", "float64"},
          {"torch_dtype", "float8"},
          {"quantization_config", {{"bits", 4}}},
          {"pruned_heads", {{"0", {1}}}},
          {"is_encoder_decoder", true},
          {"is_decoder", true},
          {"add_cross_attention", true},
          {"cross_attention_hidden_size", 8},
          {"use_bfloat16", true},
          {"chunk_size_feed_forward", 2},
          {"tf_legacy_loss", true},
          {"tie_encoder_decoder", true}};
}

std::vector<Flip> RotaryFlips(const json& partial_factor) {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 16}};
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 100}};
  std::vector<Flip> flips = {
      {"max_position_embeddings", 7},
      {"rope_theta", 500.0},
      {"partial_rotary_factor", partial_factor},
      {"partial_rotary_factor", 0},
      {"partial_rotary_factor", 1.5},
      {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}},
      {"rope_scaling",
       {{"type", "dynamic"}, {"factor", 3.0}},
       {{"max_position_embeddings", 4}, {"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}}},
      {"rope_scaling", {{"type", "longrope"}}},
      {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}, Rope({{"rope_type", "default"}})},
      {"rope_scaling", {{"type", "linear"}, {"rope_type", "dynamic"}, {"factor", 2.0}}},
      {"rope_scaling", {{"type", "linear"}}},
      {"rope_scaling", "linear"},
      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 77.0}}},
      {"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", partial_factor}}},
      {"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0}}},
      {"rope_parameters", With(llama3, {{"low_freq_factor", 4.0}}), Rope(llama3)},
      {"rope_parameters", With(yarn, {{"rope_theta", 1.0}}), Rope(yarn)},
      {"rope_parameters", {{"rope_type", "default"}, {"surprise", 1}}}};
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    flips.push_back({"rope_parameters", With(llama3, {{key, 3}}), Rope(llama3)});
  }
  for (const auto& [key, value] : std::map<std::string, json>{{"factor", 5.0},
                                                              {"attention_factor", 1.5},
                                                              {"beta_fast", 5.0},
                                                              {"beta_slow", 3.0},
                                                              {"original_max_position_embeddings", 300},
                                                              {"truncate", false},
                                                              {"finetuned", false},
                                                              {"mscale", 0.5},
                                                              {"mscale_all_dim", 0.7}}) {
    json base = yarn;
    if (key == "mscale") base["mscale_all_dim"] = 0.9;
    if (key == "mscale_all_dim") base["mscale"] = 0.9;
    flips.push_back({"rope_parameters", With(base, {{key, value}}), With(Rope(base), {{"head_dim", 64}})});
  }
  return flips;
}

std::vector<Flip> LlamaLikeFlips(const json& partial_factor) {
  std::vector<Flip> flips = RotaryFlips(partial_factor);
  for (const Flip& flip : std::vector<Flip>{{"vocab_size", 49},
                                            {"hidden_size", 32},
                                            {"intermediate_size", 21},
                                            {"num_hidden_layers", 3},
                                            {"num_attention_heads", 2},
                                            {"num_key_value_heads", 2},
                                            {"num_key_value_heads", 3},
                                            {"head_dim", 10},
                                            {"head_dim", 1 << 19},
                                            {"hidden_act", "gelu"},
                                            {"hidden_act", "mish"},
                                            {"initializer_range", 0.1},
                                            {"attention_dropout", 0.1},
                                            {"max_sequence_length", 31},
                                            {"tie_word_embeddings", true}}) {
    flips.push_back(flip);
  }
  return flips;
}

const json kNoRope = {{"rope", false}}, kGatedInits = {{"init_fn", "full_megatron"}};

// Beside those of all families and of all that are like Llama.
const FamilyFlips kFamilyFlips[] = {
    {{"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss"},
     {{"num_experts", 5}, {"num_experts", 1 << 17}, {"num_local_experts", 5, {{"num_experts", nullptr}}}}},
    {{"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "gpt_oss"},
     {{"num_local_experts", 5},
      {"num_experts_per_tok", 3},
      {"num_experts_per_tok", 7},
      {"output_router_logits", true},
      {"router_aux_loss_coef", 0.5, {{"output_router_logits", true}}}}},
    {{"qwen2_moe", "qwen3_moe", "olmoe"}, {{"norm_topk_prob", true}}},
    {{"gpt_oss"},
     {{"experts_per_token", 3},
      {"swiglu_alpha", 1.5},
      {"swiglu_alpha", 0},
      {"swiglu_limit", 5.0},
      {"swiglu_limit", 0},
      {"sliding_window", 7},
      {"layer_types", {"full_attention", "sliding_attention"}, {{"sliding_window", 7}}},
      {"layer_types", {"full_attention"}},
      {"quantization_config", {{"quant_method", "mxfp4"}}}}},
    {{"mixtral"}, {{"router_jitter_noise", 0.1}, {"sliding_window", 7}}},
    {{"qwen2_moe", "qwen3_moe"},
     {{"moe_intermediate_size", 15},
      {"decoder_sparse_step", 3},
      {"shared_expert_intermediate_size", 8},
      {"mlp_only_layers", json::array()},
      {"mlp_only_layers", {"0"}},
      {"mlp_only_layers", {-1}}}},
    {{"qwen2_moe"}, {{"qkv_bias", false}}},
    {{"qwen3_moe"}, {{"qkv_bias", true}, {"use_qk_norm", false}}},
    {{"deepseek_v2", "deepseek_v3"},
     {{"vocab_size", 49},
      {"hidden_size", 32},
      {"intermediate_size", 21},
      {"num_hidden_layers", 3},
      {"num_attention_heads", 2},
      {"num_key_value_heads", 2},
      {"hidden_act", "gelu"},
      {"initializer_range", 0.1},
      {"rms_norm_eps", 1e-3},
      {"rms_norm_eps", 0},
      {"attention_bias", true},
      {"attention_dropout", 0.1},
      {"tie_word_embeddings", true},
      {"q_lora_rank", 9},
      {"q_lora_rank", nullptr},
      {"kv_lora_rank", 9},
      {"qk_nope_head_dim", 5},
      {"qk_nope_head_dim", 1 << 20},
      {"qk_rope_head_dim", 34},
      {"qk_rope_head_dim", 33},
      {"v_head_dim", 7},
      {"n_routed_experts", 9},
      {"n_shared_experts", 2},
      {"num_experts_per_tok", 3},
      {"num_experts_per_tok", 7},
      {"moe_intermediate_size", 15},
      {"first_k_dense_replace", 0},
      {"routed_scaling_factor", 3.5},
      {"moe_layer_freq", 2},
      {"scoring_func", "other"},
      {"norm_topk_prob", true, {{"norm_topk_prob", false}}}}},
    {{"deepseek_v2"},
     {{"mlp_bias", true},
      {"topk_method", "group_limited_greedy", {{"n_group", 3}, {"topk_group", 2}}},
      {"topk_method", "noaux_tc"},
      {"n_group", 2, {{"topk_method", "group_limited_greedy"}, {"n_group", 3}, {"topk_group", 1}}},
      {"n_group", 4, {{"topk_method", "group_limited_greedy"}}},
      {"topk_group", 1, {{"topk_method", "group_limited_greedy"}, {"n_group", 3}, {"topk_group", 2}}},
      {"topk_group", 4, {{"topk_method", "group_limited_greedy"}, {"n_group", 3}}}}},
    {{"deepseek_v3"},
     {{"topk_method", "greedy"},
      {"rope_interleave", false},
      {"n_group", 2},
      {"n_group", 6},
      {"topk_group", 1},
      {"topk_group", 4}}},
    {{"llama", "granite"}, {{"mlp_bias", true}}},
    {{"llama"}, {{"rope_interleaved", true}}},
    {{"olmo", "olmoe"}, {{"clip_qkv", 8.0}}},
    {{"mistral"}, {{"sliding_window", 7}, {"sliding_window", 0}}},
    {{"granite", "granitemoe"},
     {{"embedding_multiplier", 12.0},
      {"residual_multiplier", 0.22},
      {"attention_multiplier", 0.015625},
      {"logits_scaling", 8.0},
      {"logits_scaling", 0}}},
    {{"qwen2"}, {{"use_mrope", true}}},
    {{"qwen2", "qwen2_moe", "qwen3"},
     {{"max_window_layers", 0, {{"use_sliding_window", true}, {"sliding_window", 7}}}}},
    {{"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"},
     {{"use_sliding_window", true, {{"sliding_window", 7}, {"max_window_layers", 1}}},
      {"sliding_window", 7, {{"use_sliding_window", true}, {"max_window_layers", 1}}},
      {"layer_types", {"full_attention"}},
      {"layer_types", {"full_attention", "sliding_attention"}},
      {"layer_types", {"full_attention", "sliding_attention"}, {{"use_sliding_window", true}, {"sliding_window", 7}}},
      {"layer_types", {"full_attention", "chunked_attention"}}}},
    {{"chatglm"},
     {{"padded_vocab_size", 49},
      {"hidden_size", 32},
      {"ffn_hidden_size", 21},
      {"num_layers", 3},
      {"num_hidden_layers", 3},
      {"num_attention_heads", 2},
      {"kv_channels", 16},
      {"kv_channels", 6},
      {"kv_channels", nullptr, {{"hidden_size", 48}}},
      {"multi_query_attention", false},
      {"multi_query_group_num", 1},
      {"multi_query_group_num", 3},
      {"add_bias_linear", true},
      {"add_qkv_bias", true},
      {"rope_ratio", 16},
      {"original_rope", false},
      {"seq_length", 7},
      {"layernorm_epsilon", 1e-3},
      {"layernorm_epsilon", 0},
      {"rmsnorm", false},
      {"apply_residual_connection_post_layernorm", true},
      {"post_layer_norm", false},
      {"hidden_dropout", 0.1},
      {"attention_dropout", 0.1},
      {"tie_word_embeddings", true},
      {"quantization_bit", 4},
      {"pre_seq_len", 128}}},
    {{"bloom"},
     {{"vocab_size", 49},
      {"hidden_size", 32},
      {"n_embed", 32},
      {"n_layer", 3},
      {"num_hidden_layers", 3},
      {"n_head", 2},
      {"num_attention_heads", 2},
      {"n_inner", 5},
      {"layer_norm_epsilon", 1e-6},
      {"layer_norm_epsilon", 0},
      {"initializer_range", 0.1},
      {"apply_residual_connection_post_layernorm", true},
      {"hidden_dropout", 0.1},
      {"attention_dropout", 0.1},
      {"tie_word_embeddings", false}}},
    {{"baichuan"},
     {{"vocab_size", 49},
      {"hidden_size", 32},
      {"intermediate_size", 21},
      {"num_hidden_layers", 3},
      {"num_attention_heads", 2},
      {"hidden_act", "relu"},
      {"initializer_range", 0.1},
      {"rms_norm_eps", 1e-5},
      {"max_position_embeddings", 7},
      {"max_position_embeddings", nullptr},
      {"model_max_length", 7, {{"max_position_embeddings", nullptr}}},
      {"norm_head", true},
      {"tie_word_embeddings", true},
      {"z_loss_weight", 0.001}}},
    {{"hf_olmo"},
     {{"d_model", 32},
      {"n_layers", 3},
      {"n_heads", 2},
      {"n_kv_heads", 2},
      {"multi_query_attention", true},
      {"mlp_ratio", 6},
      {"multi_query_attention", true, {{"n_kv_heads", 4}}},
      {"mlp_hidden_size", 20},
      {"mlp_hidden_size", 21},
      {"activation_type", "gelu"},
      {"activation_type", "geglu"},
      {"block_type", "llama"},
      {"block_group_size", 2},
      {"block_group_size", 3},
      {"alibi", true},
      {"alibi", true, kNoRope},
      {"alibi_bias_max", 4.0, {{"rope", false}, {"alibi", true}}},
      {"rope", false},
      {"rope_theta", 500},
      {"max_sequence_length", 7},
      {"max_sequence_length", 9, kNoRope},
      {"attention_dropout", 0.1},
      {"attention_dropout", nullptr},
      {"residual_dropout", 0.2},
      {"embedding_dropout", 0.2},
      {"embedding_layer_norm", true},
      {"layer_norm_type", "rms"},
      {"layer_norm_type", "amd_compatible"},
      {"layer_norm_with_affine", false},
      {"layer_norm_eps", 1e-6},
      {"layer_norm_eps", 0},
      {"attention_layer_norm", true},
      {"attention_layer_norm_with_affine", false, {{"attention_layer_norm", true}}},
      {"include_bias", false},
      {"bias_for_layer_norm", false},
      {"scale_logits", true},
      {"vocab_size", 53},
      {"vocab_size", 49, {{"embedding_size", nullptr}}},
      {"embedding_size", 60},
      {"weight_tying", false},
      {"init_fn", "mitchell"},
      {"init_fn", "kaiming_normal"},
      {"init_std", 0.1},
      {"init_cutoff_factor", 2.0},
      {"emb_init_std", 0.3},
      {"scale_emb_init", true, kGatedInits},
      {"clip_qkv", 8.0},
      {"norm_after", true}}}};

}  // namespace

bool IsLlamaLike(const std::string& family) {
  static const std::set<std::string> kFamilies = {
      "llama",   "mistral", "qwen2",      "qwen3",     "olmo",        "olmo2",      "olmo3",
      "smollm3", "phi3",    "starcoder2", "gemma2",    "gemma3_text", "granite",    "glm",
      "glm4",    "mixtral", "qwen2_moe",  "qwen3_moe", "olmoe",       "granitemoe", "gpt_oss"};
  return kFamilies.count(family) > 0;
}

bool IsDeepseek(const std::string& family) { return family == "deepseek_v2" || family == "deepseek_v3"; }

bool IsMixture(const std::string& family) {
  static const std::set<std::string> kFamilies = {"mixtral", "qwen2_moe",  "qwen3_moe",
                                                  "olmoe",   "granitemoe", "gpt_oss"};
  return kFamilies.count(family) > 0;
}

json BaseConfig(const std::string& family) {
  if (family == "bloom")
    return {{"model_type", "bloom"}, {"vocab_size", 50}, {"hidden_size", 24}, {"n_layer", 2}, {"n_head", 4}};
  if (family == "hf_olmo") {
    return {{"model_type", "hf_olmo"},
            {"vocab_size", 50},
            {"embedding_size", 52},
            {"d_model", 24},
            {"n_layers", 2},
            {"n_heads", 4},
            {"max_sequence_length", 32},
            {"attention_dropout", 0.0},
            {"rope", true}};
  }
  if (const json dense = BaseOfGpt(family); !dense.is_null()) return dense;
  if (IsDeepseek(family)) {
    json config = {{"model_type", family},          {"vocab_size", 50},          {"hidden_size", 24},
                   {"intermediate_size", 20},       {"num_hidden_layers", 2},    {"num_attention_heads", 4},
                   {"max_position_embeddings", 32}, {"q_lora_rank", 10},         {"kv_lora_rank", 8},
                   {"qk_nope_head_dim", 6},         {"qk_rope_head_dim", 32},    {"v_head_dim", 9},
                   {"n_routed_experts", 6},         {"n_shared_experts", 1},     {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 14},   {"first_k_dense_replace", 1}};
    if (family == "deepseek_v3") config.update({{"n_group", 3}, {"topk_group", 2}});
    return config;
  }
  if (family == "chatglm") {
    return {{"model_type", "chatglm"},
            {"padded_vocab_size", 50},
            {"hidden_size", 24},
            {"ffn_hidden_size", 20},
            {"num_layers", 2},
            {"num_attention_heads", 4},
            {"kv_channels", 8},
            {"multi_query_attention", true},
            {"multi_query_group_num", 2},
            {"seq_length", 32}};
  }
  json config = {{"model_type", family},         {"vocab_size", 50},       {"hidden_size", 24},
                 {"intermediate_size", 20},      {"num_hidden_layers", 2}, {"num_attention_heads", 4},
                 {"max_position_embeddings", 32}};
  if (IsLlamaLike(family)) config["num_key_value_heads"] = 4;
  if (family == "glm" || family == "glm4") config["head_dim"] = 8;
  config.update(MoreOfBase(family));
  if (IsMixture(family)) {
    config[family == "granitemoe" || family == "gpt_oss" ? "num_local_experts" : "num_experts"] = 6;
    config["num_experts_per_tok"] = 2;
  }
  if (family == "qwen2_moe" || family == "qwen3_moe") {
    config["moe_intermediate_size"] = 14;
    config["mlp_only_layers"] = {0};
  }
  if (family == "qwen2_moe") config["shared_expert_intermediate_size"] = 22;
  return config;
}

json With(json config, const json& changes) {
  for (const auto& item : changes.items()) config[item.key()] = item.value();
  return config;
}

std::vector<Flip> FlipsOf(const std::string& family) {
  std::vector<Flip> flips = CommonFlips();
  auto add = [&](const std::vector<Flip>& more) { flips.insert(flips.end(), more.begin(), more.end()); };
  static const std::set<std::string> kBiasless = {"mistral", "qwen2", "mixtral", "qwen2_moe", "starcoder2"};
  const bool is_glm = family == "glm" || family == "glm4";
  if (IsLlamaLike(family)) {
    for (const Flip& flip : LlamaLikeFlips(is_glm ? 0.25 : family == "phi3" ? 0.4 : 0.5)) {
      if (!IsOfOtherKey(family, flip)) flips.push_back(flip);
    }
    if (family != "olmo" && family != "starcoder2") add({{"rms_norm_eps", 1e-3}, {"rms_norm_eps", 0}});
    if (kBiasless.count(family) == 0) add({{"attention_bias", !is_glm && family != "gpt_oss"}});
  }
  if (IsDeepseek(family)) add(RotaryFlips(0.5));
  add(DenseFlips(family));
  for (const FamilyFlips& more : kFamilyFlips) {
    if (more.families.count(family) > 0) add(more.flips);
  }
  return flips;
}

}  // namespace tacc::graph
