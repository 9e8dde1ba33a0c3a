#include "graph/import/model_facts.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "graph/ir/text.h"
#include "nlohmann/json.hpp"

namespace tacc::graph {
namespace {

std::string Number(double value) { return Print(Attr(value)); }

std::string KindOf(const NormSpec& norm) {
  const char* learned = norm.affine == Affine::kNone            ? " without weights"
                        : norm.affine == Affine::kWeight        ? ""
                        : norm.affine == Affine::kOnePlusWeight ? " with 1 + weights"
                                                                : " with bias";
  return absl::StrCat(norm.kind == NormSpec::kRms ? "rms" : "layer", learned);
}

std::string TextOf(const NormSpec& norm) { return absl::StrCat(KindOf(norm), ", eps ", Number(norm.eps)); }

// Where a branch has norms. They may have the same names and shapes in either place.
std::string Places(const std::string& before, const std::string& after) {
  if (before.empty()) return after.empty() ? "none" : "after";
  return after.empty() ? "before" : "before and after";
}

std::string NameOf(DecoderSpec::Activation activation) {
  switch (activation) {
    case DecoderSpec::kSilu:
      return "silu";
    case DecoderSpec::kGelu:
      return "gelu";
    case DecoderSpec::kGeluTanh:
      return "gelu_new";
    case DecoderSpec::kRelu:
      return "relu";
  }
  return "";
}

std::string NameOf(DecoderSpec::MlpKind kind) {
  switch (kind) {
    case DecoderSpec::kPlain:
      return "plain";
    case DecoderSpec::kGated:
      return "gated";
    case DecoderSpec::kGateUp:
      return "gated, gate and up in one";
    case DecoderSpec::kUpGate:
      return "gated, up and gate in one";
  }
  return "";
}

std::string NameOf(DecoderSpec::QkvLayout layout) {
  switch (layout) {
    case DecoderSpec::kSeparate:
      return "separate";
    case DecoderSpec::kStacked:
      return "stacked";
    case DecoderSpec::kInterleaved:
      return "interleaved";
    case DecoderSpec::kGrouped:
      return "grouped";
  }
  return "";
}

std::string NameOf(DecoderSpec::Head head) {
  switch (head) {
    case DecoderSpec::kOwnHead:
      return "own";
    case DecoderSpec::kTiedHead:
      return "tied";
    case DecoderSpec::kNormalizedHead:
      return "normalized";
  }
  return "";
}

// What differs by layer.
void AddLayers(const DecoderSpec& spec, std::map<std::string, std::string>& facts) {
  std::vector<int64_t> sliding, local, unrotated;
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    const DecoderSpec::Layer own = spec.LayerAt(layer);
    if (own.window > 0) {
      sliding.push_back(layer);
      facts["sliding_window"] = absl::StrCat(own.window);
    }
    if (own.positions == DecoderSpec::Layer::kLocalRotary) local.push_back(layer);
    if (own.positions == DecoderSpec::Layer::kNoRotary) unrotated.push_back(layer);
  }
  const auto add = [&](const char* name, const std::vector<int64_t>& of) {
    if (!of.empty()) facts[name] = absl::StrJoin(of, ",");
  };
  if (static_cast<int64_t>(sliding.size()) < spec.num_layers) add("sliding_layers", sliding);
  add("nope_layers", unrotated);
  if (local.empty()) return;
  add("local_layers", local);
  for (const auto& [name, value] : spec.local_rotary->facts) facts[absl::StrCat("local_", name)] = value;
}

// Keys that families have for a fact.
std::vector<std::string> KeysOf(const std::string& fact) {
  static const std::map<std::string, std::vector<std::string>> keys = {
      {"norm_eps", {"rms_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "layer_norm_eps"}},
      {"vocab_size", {"padded_vocab_size", "embedding_size"}},
      {"hidden_size", {"d_model", "n_embed"}},
      {"intermediate_size", {"ffn_hidden_size"}},
      {"num_hidden_layers", {"n_layers", "n_layer", "num_layers"}},
      {"num_attention_heads", {"n_heads", "n_head"}},
      {"num_key_value_heads", {"n_kv_heads", "multi_query_group_num"}},
      {"head_dim", {"kv_channels"}},
      {"num_experts", {"num_local_experts", "n_routed_experts"}},
      {"attention_scale", {"attention_multiplier"}},
      {"attention_dropout", {"attn_pdrop"}},
      {"embedding_dropout", {"embd_pdrop"}},
      {"local_rope_theta", {"rope_local_base_freq"}},
      {"residual_dropout", {"hidden_dropout", "resid_pdrop"}}};
  if (const auto found = keys.find(fact); found != keys.end()) return found->second;
  std::vector<std::string> of_rope;
  absl::string_view name = fact;
  if (!absl::ConsumePrefix(&name, "rope_")) return of_rope;
  if (name == "original_length") name = "original_max_position_embeddings";
  for (const char* object : {"rope_scaling.", "rope_parameters."}) {
    of_rope.push_back(absl::StrCat(object, fact));
    of_rope.push_back(absl::StrCat(object, name));
  }
  return of_rope;
}

bool IsGiven(const nlohmann::json& config, const std::string& key) {
  const nlohmann::json* at = &config;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(key, '.'))) {
    if (!at->is_object() || !at->contains(name)) return false;
    at = &(*at)[name];
  }
  return !at->is_null();
}

}  // namespace

std::map<std::string, std::string> ModelFacts(const DecoderSpec& spec) {
  std::map<std::string, std::string> facts;
  const auto add_if = [&](bool is_there, const char* name, const std::string& value) {
    if (is_there) facts[name] = value;
  };
  facts["vocab_size"] = absl::StrCat(spec.vocab_rows);
  facts["hidden_size"] = absl::StrCat(spec.hidden_size);
  facts["num_hidden_layers"] = absl::StrCat(spec.num_layers);
  facts["num_attention_heads"] = absl::StrCat(spec.num_heads);
  facts["num_key_value_heads"] = absl::StrCat(spec.num_kv_heads);
  facts["head_dim"] = absl::StrCat(spec.head_dim);
  facts["hidden_act"] = NameOf(spec.activation);
  facts["mlp"] = NameOf(spec.mlp_kind);
  facts["head"] = NameOf(spec.head);
  add_if(spec.layers_per_group != 1, "block_group_size", absl::StrCat(spec.layers_per_group));

  facts["norm"] = KindOf(spec.norm);
  facts["norm_eps"] = Number(spec.norm.eps);
  facts["attention_norm"] = Places(spec.names.attention_norm, spec.names.attention_post_norm);
  facts["mlp_norm"] = Places(spec.names.mlp_norm, spec.names.mlp_post_norm);
  add_if(spec.residual_from == DecoderSpec::kFromNorm, "residual_from", "norm");
  add_if(spec.branches != DecoderSpec::kInTurn, "branches", "parallel");
  add_if(spec.branches == DecoderSpec::kParallelSum && spec.residual_dropout > 0, "dropout_of", "sum");
  if (spec.embedding_norm.has_value()) facts["embedding_norm"] = TextOf(*spec.embedding_norm);
  if (spec.qk_norm.has_value()) {
    facts["qk_norm"] = absl::StrCat(TextOf(*spec.qk_norm),
                                    spec.qk_norm_over == DecoderSpec::kHeadDim ? ", of a head" : ", of all heads");
  }

  add_if(spec.qkv_layout != DecoderSpec::kSeparate, "qkv_layout", NameOf(spec.qkv_layout));
  add_if(spec.qkv_bias == Bias::kPresent, "qkv_bias", "true");
  add_if(spec.attention_out_bias == Bias::kPresent, "attention_out_bias", "true");
  add_if(spec.mlp_bias == Bias::kPresent, "mlp_bias", "true");
  add_if(spec.head_bias == Bias::kPresent, "head_bias", "true");
  if (spec.latent.has_value()) {
    add_if(spec.latent->q_rank != 0, "q_lora_rank", absl::StrCat(spec.latent->q_rank));
    facts["kv_lora_rank"] = absl::StrCat(spec.latent->kv_rank);
    facts["qk_rope_head_dim"] = absl::StrCat(spec.latent->rope);
    facts["v_head_dim"] = absl::StrCat(spec.latent->value);
  }
  if (spec.clip_qkv.has_value()) {
    facts["clip_qkv"] =
        absl::StrCat(Number(*spec.clip_qkv), spec.clip_place == DecoderSpec::kAfterNorm ? ", after the norm" : "");
  }
  add_if(spec.has_sinks, "attention_sinks", "true");
  if (spec.attention_scale.has_value()) facts["attention_scale"] = Number(*spec.attention_scale);

  add_if(spec.scaled_by_layer, "scale_attn_by_inverse_layer_idx", "true");
  add_if(spec.attention_softcap != 0, "attn_logit_softcapping", Number(spec.attention_softcap));
  add_if(spec.logit_softcap != 0, "final_logit_softcapping", Number(spec.logit_softcap));
  add_if(spec.attention_dropout != 0, "attention_dropout", Number(spec.attention_dropout));
  AddLayers(spec, facts);

  if (spec.rotary.has_value()) {
    facts.insert(spec.rotary->facts.begin(), spec.rotary->facts.end());
    add_if(spec.rotary->pairs == Rotary::kNeighbours, "rope_pairs", "neighbours");
  }
  if (!spec.alibi_slopes.empty()) {
    facts["alibi"] = absl::StrCat(Number(spec.alibi_slopes.front()), " to ", Number(spec.alibi_slopes.back()));
  }
  add_if(spec.learned_positions > 0, "learned_positions", absl::StrCat(spec.learned_positions));

  std::vector<int64_t> dense_layers;
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    if (!spec.experts.has_value() || spec.experts->dense_layers.count(layer) > 0) dense_layers.push_back(layer);
  }
  add_if(!dense_layers.empty(), "intermediate_size", absl::StrCat(spec.intermediate_size));
  if (spec.experts.has_value()) {
    const ExpertsSpec& experts = *spec.experts;
    facts["num_experts"] = absl::StrCat(experts.num_experts);
    facts["num_experts_per_tok"] = absl::StrCat(experts.experts_per_token);
    facts["moe_intermediate_size"] = absl::StrCat(experts.intermediate_size);
    add_if(experts.scores == ExpertsSpec::kSigmoid, "scoring_func", "sigmoid");
    add_if(experts.has_choice_bias, "choice_bias", "true");
    if (experts.kept_groups < experts.num_groups) {
      facts["n_group"] = absl::StrCat(experts.num_groups);
      facts["topk_group"] = absl::StrCat(experts.kept_groups);
      facts["group_scores"] = absl::StrCat("the ", experts.summed, " largest");
    }
    add_if(experts.weight_factor != 1, "routed_scaling_factor", Number(experts.weight_factor));
    add_if(experts.has_wide_logits, "router_logits", "f32");
    add_if(experts.weights == ExpertsSpec::kNormalized, "norm_topk_prob", "true");
    add_if(experts.aux_loss_coef != 0, "router_aux_loss_coef", Number(experts.aux_loss_coef));
    add_if(experts.shared_intermediate_size != 0, "shared_expert_intermediate_size",
           absl::StrCat(experts.shared_intermediate_size));
    add_if(experts.has_shared_weight, "shared_expert_weight", "sigmoid");
    add_if(experts.bias == Bias::kPresent, "expert_bias", "true");
    if (experts.clamped_gate.has_value()) {
      facts["swiglu_alpha"] = Number(experts.clamped_gate->alpha);
      facts["swiglu_limit"] = Number(experts.clamped_gate->limit);
    }
    add_if(!dense_layers.empty(), "mlp_only_layers", absl::StrJoin(dense_layers, ","));
  }

  add_if(spec.embedding_scale != 1, "embedding_multiplier", Number(spec.embedding_scale));
  add_if(spec.residual_scale != 1, "residual_multiplier", Number(spec.residual_scale));
  add_if(spec.logit_scale != 1, "logit_scale", Number(spec.logit_scale));
  add_if(spec.embedding_dropout != 0, "embedding_dropout", Number(spec.embedding_dropout));
  add_if(spec.residual_dropout != 0, "residual_dropout", Number(spec.residual_dropout));
  return facts;
}

std::map<std::string, std::string> FactKeys(const std::map<std::string, std::string>& facts,
                                            const nlohmann::json& config) {
  std::map<std::string, std::string> keys;
  for (const auto& [fact, value] : facts) {
    for (const std::string& key : KeysOf(fact)) {
      if (keys.count(fact) == 0 && IsGiven(config, key)) keys[fact] = key;
    }
  }
  return keys;
}

}  // namespace tacc::graph
