#include "graph/import/bloom.h"

#include "graph/import/config_parts.h"
#include "graph/import/rope.h"

namespace tacc::graph {

DecoderNames BloomNames() {
  DecoderNames names;
  names.base = "transformer.";
  names.embedding = "transformer.word_embeddings";
  names.embedding_norm = "transformer.word_embeddings_layernorm";
  names.layer = "transformer.h.{layer}";
  names.final_norm = "transformer.ln_f";
  names.attention = "self_attention";
  names.qkv = "self_attention.query_key_value";
  names.attention_out = "self_attention.dense";
  names.up = "mlp.dense_h_to_4h";
  names.down = "mlp.dense_4h_to_h";
  return names;
}

std::set<std::string> BloomHarmlessKeys() {
  // Choices of kernels in Megatron; pretraining_tp, slow_but_exact: order of the same sums; seq_length: the length it
  // was trained at, which ALiBi does not limit.
  return {"attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi", "skip_bias_add",
          "skip_bias_add_qkv",         "pretraining_tp",      "slow_but_exact",        "seq_length",   "unk_token_id"};
}

void ReadBloom(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadTransformersInit(config, spec);
  spec.vocab_rows = config.Int("vocab_size", 1, kMaxVocabulary, 250880);
  spec.hidden_size = ReadRenamed(config, "hidden_size", "n_embed", kMaxWidth, 64);
  spec.num_layers = ReadRenamed(config, "n_layer", "num_hidden_layers", kMaxLayers, 2);
  spec.num_heads = spec.num_kv_heads = ReadRenamed(config, "n_head", "num_attention_heads", kMaxWidth, 8);
  SetHeadDim(config, "n_head", spec);
  spec.alibi_slopes = AlibiSlopes(spec.num_heads);
  const double eps = ReadNormEps(config, "layer_norm_epsilon", 1e-5);
  spec.norm = {NormSpec::kLayer, Affine::kWeightBias, eps};
  spec.embedding_norm = spec.norm;
  if (config.Bool("apply_residual_connection_post_layernorm", false)) spec.residual_from = DecoderSpec::kFromNorm;
  spec.qkv_layout = DecoderSpec::kInterleaved;
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = Bias::kPresent;
  spec.mlp_kind = DecoderSpec::kPlain;
  spec.activation = DecoderSpec::kGeluTanh;
  spec.intermediate_size = 4 * spec.hidden_size;
  config.RefuseUnless("n_inner", spec.intermediate_size, "the inner size of Bloom is always 4 x hidden_size");
  spec.residual_dropout = ReadDropout(config, "hidden_dropout", 0.0);
  spec.attention_dropout = ReadDropout(config, "attention_dropout", 0.0);
  ReadTiedHead(config, true, spec);
}

}  // namespace tacc::graph
