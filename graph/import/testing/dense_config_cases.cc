#include "graph/import/testing/config_cases.h"

namespace tacc::graph {
namespace {

using nlohmann::json;

const json kSlides = {{"use_sliding_window", true}, {"sliding_window", 7}};
const json kLongrope = {{"type", "longrope"},
                        {"short_factor", {1.0, 1.5, 2.0}},
                        {"long_factor", {2.0, 3.0, 5.0}},
                        {"original_max_position_embeddings", 16}};

json Longrope(const json& changes) { return {{"rope_scaling", With(kLongrope, changes)}}; }

json ByType(const json& full, const json& sliding) {
  return {{"full_attention", full}, {"sliding_attention", sliding}};
}

const json kDefault = {{"rope_type", "default"}};
const json kLinear = {{"rope_type", "linear"}, {"factor", 2.0}};

std::vector<FamilyFlips> AllDenseFlips() {
  return {{{"llama"},
           {{"rope_scaling", kLongrope},
            {"rope_scaling", Longrope({{"attention_factor", 1.5}})["rope_scaling"], Longrope({})},
            {"rope_scaling", Longrope({{"factor", 4.0}})["rope_scaling"], Longrope({})},
            {"rope_scaling", Longrope({{"original_max_position_embeddings", 4}})["rope_scaling"], Longrope({})},
            {"rope_scaling", Longrope({{"short_factor", {1.0, 1.5, 2.5}}})["rope_scaling"], Longrope({})},
            {"rope_scaling", Longrope({{"short_factor", {1.0, 1.5}}})["rope_scaling"], Longrope({})},
            {"rope_scaling", Longrope({{"long_factor", {1.0, "2"}}})["rope_scaling"], Longrope({})}}},
          {{"smollm3"},
           {{"mlp_bias", true},
            {"no_rope_layers", {1, 0}},
            {"no_rope_layers", {1}},
            {"no_rope_layers", {2, 0}},
            {"no_rope_layer_interval", 2},
            {"use_sliding_window", true, {{"sliding_window", 7}, {"no_rope_layers", {1, 0}}}},
            {"sliding_window", 6, With(kSlides, {{"no_rope_layers", {1, 0}}})},
            {"layer_types", {"sliding_attention", "full_attention"}},
            {"layer_types", {"sliding_attention", "full_attention"}, kSlides},
            {"layer_types", {"full_attention"}, kSlides}}},
          {{"phi3"},
           {{"original_max_position_embeddings", 4, Longrope({})},
            {"original_max_position_embeddings", 24, Longrope({})},
            {"rope_scaling", kLongrope},
            {"rope_scaling", Longrope({{"type", "su"}, {"attention_factor", 1.5}})["rope_scaling"], Longrope({})},
            {"rope_scaling", kLinear},
            {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 77.0}}},
            {"resid_pdrop", 0.1},
            {"mlp_bias", true},
            {"lm_head_bias", true},
            {"full_attn_mod", 2},
            {"interpolate_factor", 2},
            {"sliding_window", 7}}},
          {{"starcoder2"},
           {{"norm_epsilon", 1e-3},
            {"norm_epsilon", 0},
            {"use_bias", false},
            {"residual_dropout", 0.1},
            {"embedding_dropout", 0.1},
            {"norm_type", "rms_norm"},
            {"mlp_type", "gated"},
            {"sliding_window", 7}}},
          {{"olmo3", "gemma2", "gemma3_text"},
           {{"sliding_window", 7},
            {"sliding_window", 0},
            {"layer_types", {"full_attention", "full_attention"}, {{"sliding_window", 7}}},
            {"layer_types", {"full_attention"}},
            {"layer_types", {"full_attention", "chunked_attention"}}}},
          {{"olmo3", "gemma3_text"},
           {{"rope_parameters", ByType(kLinear, kDefault)},
            {"rope_parameters", ByType(kDefault, kLinear)},
            {"rope_parameters", ByType({{"rope_type", "default"}, {"rope_theta", 77.0}}, nullptr)},
            {"rope_parameters", {{"full_attention", kDefault}, {"chunked_attention", kDefault}}},
            {"rope_scaling", kLinear}}},
          {{"gemma2", "gemma3_text"},
           {{"hidden_activation", "relu"},
            {"query_pre_attn_scalar", 36},
            {"query_pre_attn_scalar", 0},
            {"use_bidirectional_attention", true},
            {"attn_logit_softcapping", 20.0},
            {"final_logit_softcapping", 20.0},
            {"final_logit_softcapping", 0}}},
          {{"gemma2"}, {{"attn_logit_softcapping", nullptr}, {"final_logit_softcapping", nullptr}}},
          {{"gemma3_text"},
           {{"sliding_window_pattern", 1, {{"sliding_window", 7}}},
            {"_sliding_window_pattern", 3},
            {"rope_local_base_freq", 500.0}}},
          {{"gpt2"},
           {{"vocab_size", 49},
            {"n_embd", 32},
            {"hidden_size", 32},
            {"n_layer", 3},
            {"num_hidden_layers", 3},
            {"n_head", 2},
            {"n_head", 5},
            {"num_attention_heads", 2},
            {"n_inner", 5},
            {"n_positions", 7},
            {"n_positions", 33},
            {"max_position_embeddings", 31},
            {"layer_norm_epsilon", 1e-6},
            {"layer_norm_epsilon", 0},
            {"activation_function", "relu"},
            {"scale_attn_weights", false},
            {"scale_attn_by_inverse_layer_idx", true},
            {"attn_pdrop", 0.2},
            {"resid_pdrop", 0.2},
            {"embd_pdrop", 0.2},
            {"initializer_range", 0.1},
            {"tie_word_embeddings", false}}},
          {{"gpt_neox"},
           {{"vocab_size", 49},
            {"hidden_size", 32},
            {"num_hidden_layers", 3},
            {"num_attention_heads", 4},
            {"intermediate_size", 21},
            {"hidden_act", "relu"},
            {"max_position_embeddings", 7},
            {"rotary_emb_base", 500.0},
            {"rotary_pct", 0.5},
            {"rotary_pct", 0},
            {"rope_scaling", kLinear},
            {"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.75}}},
            {"layer_norm_eps", 1e-6},
            {"layer_norm_eps", 0},
            {"use_parallel_residual", false},
            {"attention_bias", false},
            {"attention_dropout", 0.1},
            {"hidden_dropout", 0.1},
            {"initializer_range", 0.1},
            {"tie_word_embeddings", true}}},
          {{"falcon"},
           {{"vocab_size", 49},
            {"hidden_size", 32},
            {"n_embed", 32},
            {"num_hidden_layers", 3},
            {"num_attention_heads", 2},
            {"num_attention_heads", 8},
            {"ffn_hidden_size", 21},
            {"activation", "relu"},
            {"layer_norm_epsilon", 1e-6},
            {"layer_norm_epsilon", 0},
            {"new_decoder_architecture", true},
            {"num_kv_heads", 2, {{"new_decoder_architecture", true}}},
            {"num_kv_heads", 3, {{"new_decoder_architecture", true}}},
            {"num_ln_in_parallel_attn", 1, {{"new_decoder_architecture", true}}},
            {"num_ln_in_parallel_attn", 2},
            {"parallel_attn", false},
            {"parallel_attn", false, {{"new_decoder_architecture", true}}},
            {"multi_query", false},
            {"attention_dropout", 0.1},
            {"attention_dropout", 0.1, {{"parallel_attn", false}}},
            {"hidden_dropout", 0.1},
            {"bias", true},
            {"alibi", true},
            {"apply_residual_connection_post_layernorm", true},
            {"max_position_embeddings", 7},
            {"partial_rotary_factor", 0.5},
            {"rope_theta", 500.0},
            {"rope_scaling", kLinear},
            {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 77.0}}},
            {"initializer_range", 0.1},
            {"tie_word_embeddings", false}}}};
}

}  // namespace

json BaseOfGpt(const std::string& family) {
  if (family == "gpt2") {
    return {{"model_type", "gpt2"}, {"vocab_size", 50},  {"n_embd", 24},       {"n_layer", 2},     {"n_head", 4},
            {"n_positions", 32},    {"attn_pdrop", 0.0}, {"resid_pdrop", 0.0}, {"embd_pdrop", 0.0}};
  }
  if (family != "gpt_neox" && family != "falcon") return nullptr;
  json config = {{"model_type", family},   {"vocab_size", 50},         {"hidden_size", 24},
                 {"num_hidden_layers", 2}, {"num_attention_heads", 4}, {"max_position_embeddings", 32}};
  // A quarter of 12 dims is a pair and half of one.
  if (family == "gpt_neox") config.update({{"intermediate_size", 20}, {"num_attention_heads", 2}});
  return config;
}

json MoreOfBase(const std::string& family) {
  if (family == "gemma3_text") return {{"sliding_window_pattern", 2}};
  if (family == "olmo3") return {{"layer_types", {"sliding_attention", "full_attention"}}};
  return json::object();
}

bool IsOfOtherKey(const std::string& family, const Flip& flip) {
  const bool is_gemma = family == "gemma2" || family == "gemma3_text";
  if (flip.key == "hidden_act") return is_gemma;
  if (flip.key == "tie_word_embeddings") return is_gemma || family == "smollm3" || family == "starcoder2";
  // Its embeddings are said by type of layer, or of fewer kinds: DenseFlips.
  return flip.key == "rope_parameters" && (family == "olmo3" || family == "gemma3_text" || family == "phi3");
}

std::vector<Flip> DenseFlips(const std::string& family) {
  std::vector<Flip> flips;
  for (const FamilyFlips& more : AllDenseFlips()) {
    if (more.families.count(family) > 0) flips.insert(flips.end(), more.flips.begin(), more.flips.end());
  }
  for (const char* tied : {"gemma2", "gemma3_text", "smollm3", "starcoder2"}) {
    if (family == tied) flips.push_back({"tie_word_embeddings", false});
  }
  return flips;
}

}  // namespace tacc::graph
