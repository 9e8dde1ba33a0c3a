#include "graph/import/gpt.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "graph/import/config_parts.h"
#include "graph/import/rope.h"

namespace tacc::graph {

DecoderNames Gpt2Names() {
  DecoderNames names;
  names.base = "transformer.";
  names.embedding = "transformer.wte";
  names.positions = "transformer.wpe";
  names.layer = "transformer.h.{layer}";
  names.final_norm = "transformer.ln_f";
  names.attention = "attn";
  names.attention_norm = "ln_1";
  names.qkv = "attn.c_attn";
  names.attention_out = "attn.c_proj";
  names.mlp_norm = "ln_2";
  names.up = "mlp.c_fc";
  names.down = "mlp.c_proj";
  return names;
}

std::set<std::string> Gpt2HarmlessKeys() {
  // summary_*: of another task's head; n_ctx: n_positions again; reorder_and_upcast_attn: order of the same products,
  // and their precision, which is the job's.
  return {"summary_type",           "summary_use_proj",      "summary_activation",
          "summary_proj_to_labels", "summary_first_dropout", "n_ctx",
          "reorder_and_upcast_attn"};
}

void ReadGpt2(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  spec.vocab_rows = config.Int("vocab_size", 1, kMaxVocabulary, 50257);
  spec.hidden_size = ReadRenamed(config, "n_embd", "hidden_size", kMaxWidth, 768);
  spec.num_layers = ReadRenamed(config, "n_layer", "num_hidden_layers", kMaxLayers, 12);
  spec.num_heads = spec.num_kv_heads = ReadRenamed(config, "n_head", "num_attention_heads", kMaxWidth, 12);
  SetHeadDim(config, "n_head", spec);
  spec.intermediate_size = config.OptionalInt("n_inner", 1, kMaxWidth).value_or(4 * spec.hidden_size);
  spec.max_seq_len = ReadRenamed(config, "n_positions", "max_position_embeddings", kMaxLength, 1024);
  CheckLength(config, "n_positions", seq_len, spec);
  spec.learned_positions = spec.max_seq_len;
  spec.norm = {NormSpec::kLayer, Affine::kWeightBias, ReadNormEps(config, "layer_norm_epsilon", 1e-5)};
  spec.qkv_layout = DecoderSpec::kStacked;
  spec.transposed_matrices = true;
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = Bias::kPresent;
  spec.mlp_kind = DecoderSpec::kPlain;
  spec.activation = ReadActivation(config, "activation_function", "gelu_new");
  if (!config.Bool("scale_attn_weights", true)) spec.attention_scale = 1.0;
  spec.scaled_by_layer = config.Bool("scale_attn_by_inverse_layer_idx", false);
  spec.attention_dropout = ReadDropout(config, "attn_pdrop", 0.1);
  spec.residual_dropout = ReadDropout(config, "resid_pdrop", 0.1);
  spec.embedding_dropout = ReadDropout(config, "embd_pdrop", 0.1);
  const double std = config.Float("initializer_range", 0.0, 1.0, 0.02);
  const std::string init = NormalInit(std),
                    out = NormalInit(std / std::sqrt(2.0 * static_cast<double>(spec.num_layers)));
  spec.init = {init, init, init, init, [out](int64_t) { return out; }, [out](int64_t) { return out; }};
  spec.init.key = "initializer_range";
  ReadTiedHead(config, true, spec);
}

DecoderNames GptNeoXNames() {
  DecoderNames names;
  names.base = "gpt_neox.";
  names.embedding = "gpt_neox.embed_in";
  names.layer = "gpt_neox.layers.{layer}";
  names.final_norm = "gpt_neox.final_layer_norm";
  names.head = "embed_out";
  names.attention = "attention";
  names.qkv = "attention.query_key_value";
  names.attention_out = "attention.dense";
  names.up = "mlp.dense_h_to_4h";
  names.down = "mlp.dense_4h_to_h";
  return names;
}

void ReadGptNeoX(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadTransformersInit(config, spec);
  spec.vocab_rows = config.Int("vocab_size", 1, kMaxVocabulary, 50432);
  spec.hidden_size = config.Int("hidden_size", 1, kMaxWidth, 6144);
  spec.num_layers = config.Int("num_hidden_layers", 1, kMaxLayers, 44);
  spec.num_heads = spec.num_kv_heads = config.Int("num_attention_heads", 1, kMaxWidth, 64);
  SetHeadDim(config, "num_attention_heads", spec);
  spec.intermediate_size = config.Int("intermediate_size", 1, kMaxWidth, 24576);
  spec.activation = ReadActivation(config, "hidden_act", "gelu");
  spec.mlp_kind = DecoderSpec::kPlain;
  spec.max_seq_len = config.Int("max_position_embeddings", 1, kMaxLength, 2048);
  RotaryModel model;
  model.head_dim = spec.head_dim;
  model.seq_len = seq_len;
  model.max_position_embeddings = spec.max_seq_len;
  model.theta_key = "rotary_emb_base";
  model.partial_key = "rotary_pct";
  model.partial_factor = 0.25;
  ReadOneRotary(config, model, spec);
  spec.norm = {NormSpec::kLayer, Affine::kWeightBias, ReadNormEps(config, "layer_norm_eps", 1e-5)};
  if (config.Bool("use_parallel_residual", true)) spec.branches = DecoderSpec::kParallel;
  spec.qkv_layout = DecoderSpec::kInterleaved;
  spec.qkv_bias = spec.attention_out_bias = ReadBias(config, "attention_bias", Bias::kPresent);
  spec.mlp_bias = Bias::kPresent;
  spec.attention_dropout = ReadDropout(config, "attention_dropout", 0.0);
  spec.embedding_dropout = spec.residual_dropout = ReadDropout(config, "hidden_dropout", 0.0);
  ReadTiedHead(config, false, spec);
}

DecoderNames FalconNames() {
  DecoderNames names;
  names.base = "transformer.";
  names.embedding = "transformer.word_embeddings";
  names.layer = "transformer.h.{layer}";
  names.final_norm = "transformer.ln_f";
  names.attention = "self_attention";
  names.qkv = "self_attention.query_key_value";
  names.attention_out = "self_attention.dense";
  names.up = "mlp.dense_h_to_4h";
  names.down = "mlp.dense_4h_to_h";
  return names;
}

namespace {

// How the branches of a layer stand to each other, their norms and dropout, and how q, k and v lie in the files.
void ReadFalconArchitecture(ConfigReader& config, DecoderSpec& spec) {
  const bool is_new = config.Bool("new_decoder_architecture", false);
  const bool is_parallel = config.Bool("parallel_attn", true);
  const int64_t num_norms = config.Int("num_ln_in_parallel_attn", 1, 2, is_new ? 2 : 1);
  if (is_new) {
    config.Harmless({"multi_query"});
    const int64_t kv_heads = config.Int("num_kv_heads", 1, kMaxWidth, spec.num_heads);
    SetKvHeads(config, "num_kv_heads", "num_attention_heads", kv_heads, spec);
    spec.qkv_layout = DecoderSpec::kGrouped;
    if (!is_parallel) config.Fail("parallel_attn", "the new architecture is always parallel");
  } else {
    config.Harmless({"num_kv_heads"});  // 1 or all, whatever it says
    const bool is_multi_query = config.Bool("multi_query", true);
    spec.num_kv_heads = is_multi_query ? 1 : spec.num_heads;
    spec.qkv_layout = is_multi_query ? DecoderSpec::kStacked : DecoderSpec::kInterleaved;
    if (num_norms == 2) config.Fail("num_ln_in_parallel_attn", "two norms are of new_decoder_architecture = true");
  }
  const double dropout = config.Float("attention_dropout", 0.0, 1.0, 0.0);
  spec.residual_dropout = ReadDropout(config, "hidden_dropout", 0.0);
  if (!is_parallel) {
    if (dropout != spec.residual_dropout)
      config.Fail("attention_dropout",
                  "is applied to what attention adds, and supported as high as hidden_dropout only");
    return;
  }
  if (dropout != 0)
    config.Fail("attention_dropout",
                "transformers drops nothing by it where attention and MLP are parallel; set it to 0");
  spec.branches = DecoderSpec::kParallelSum;
  spec.names.mlp_norm = "";
  if (num_norms == 2) {
    spec.names.attention_norm = "ln_attn";
    spec.names.mlp_norm = "ln_mlp";
  }
}

}  // namespace

void ReadFalcon(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadTransformersInit(config, spec);
  spec.vocab_rows = config.Int("vocab_size", 1, kMaxVocabulary, 65024);
  spec.hidden_size = ReadRenamed(config, "hidden_size", "n_embed", kMaxWidth, 4544);
  spec.num_layers = config.Int("num_hidden_layers", 1, kMaxLayers, 32);
  spec.num_heads = config.Int("num_attention_heads", 1, kMaxWidth, 71);
  SetHeadDim(config, "num_attention_heads", spec);
  spec.intermediate_size = config.OptionalInt("ffn_hidden_size", 1, kMaxWidth).value_or(4 * spec.hidden_size);
  spec.activation = ReadActivation(config, "activation", "gelu");
  spec.mlp_kind = DecoderSpec::kPlain;
  spec.norm = {NormSpec::kLayer, Affine::kWeightBias, ReadNormEps(config, "layer_norm_epsilon", 1e-5)};
  ReadFalconArchitecture(config, spec);
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = ReadBias(config, "bias", Bias::kNone);
  config.RefuseUnless(
      "alibi", false,
      "transformers rounds Falcon's ALiBi to bf16, whatever the model's dtype, so that no slopes say it");
  config.RefuseUnless("apply_residual_connection_post_layernorm", false, "read by no code of this family");
  spec.max_seq_len = config.Int("max_position_embeddings", 1, kMaxLength, 2048);
  CheckEvenHeads(config, "num_attention_heads", spec.head_dim);
  RotaryModel model;
  model.head_dim = spec.head_dim;
  model.seq_len = seq_len;
  model.max_position_embeddings = spec.max_seq_len;
  ReadOneRotary(config, model, spec);
  ReadTiedHead(config, true, spec);
}

}  // namespace tacc::graph
