#include "graph/import/chatglm.h"

#include "absl/strings/str_cat.h"
#include "graph/import/config_parts.h"
#include "graph/import/rope.h"

namespace tacc::graph {

DecoderNames ChatGlmNames() {
  DecoderNames names;
  names.base = "transformer.";
  names.embedding = "transformer.embedding.word_embeddings";
  names.layer = "transformer.encoder.layers.{layer}";
  names.final_norm = "transformer.encoder.final_layernorm";
  names.head = "transformer.output_layer";
  names.attention = "self_attention";
  names.qkv = "self_attention.query_key_value";
  names.attention_out = "self_attention.dense";
  names.fused_mlp = "mlp.dense_h_to_4h";
  names.down = "mlp.dense_4h_to_h";
  return names;
}

std::set<std::string> ChatGlmHarmlessKeys() {
  // Choices of kernels in Megatron; apply_query_key_layer_scaling: divides scores and multiplies them again;
  // fp32_residual_connection: residuals are always fp32 here; vocab_size: padded_vocab_size again; classifier_dropout:
  // of another task; prefix_projection: nothing without pre_seq_len.
  return {"apply_query_key_layer_scaling",
          "attention_softmax_in_fp32",
          "bias_dropout_fusion",
          "fp32_residual_connection",
          "vocab_size",
          "classifier_dropout",
          "prefix_projection"};
}

void ReadChatGlm(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  // The published code leaves weights as PyTorch draws them; these are transformers' for the same models.
  const std::string init = NormalInit(0.02);
  spec.init = {init, init, init, init, [init](int64_t) { return init; }, [init](int64_t) { return init; }};
  spec.vocab_rows = config.Int("padded_vocab_size", 1, kMaxVocabulary, 65024);
  spec.hidden_size = config.Int("hidden_size", 1, kMaxWidth, 4096);
  spec.num_layers = ReadRenamed(config, "num_layers", "num_hidden_layers", kMaxLayers, 28);
  spec.num_heads = config.Int("num_attention_heads", 1, kMaxWidth, 32);
  ReadHeadDim(config, "kv_channels", "num_attention_heads", config.Present("kv_channels") ? 0 : 128, spec);
  const int64_t groups = config.Int("multi_query_group_num", 1, kMaxWidth, 1);
  if (config.Bool("multi_query_attention", false)) {
    SetKvHeads(config, "multi_query_group_num", "num_attention_heads", groups, spec);
    spec.qkv_layout = DecoderSpec::kStacked;
  } else {
    spec.num_kv_heads = spec.num_heads;
    spec.qkv_layout = DecoderSpec::kInterleaved;
  }
  const Bias bias = ReadBias(config, "add_bias_linear", Bias::kNone);
  spec.attention_out_bias = spec.mlp_bias = bias;
  spec.qkv_bias = ReadBias(config, "add_qkv_bias", Bias::kNone) == Bias::kPresent ? Bias::kPresent : bias;

  // Half of each head is rotated.
  const double ratio = config.Float("rope_ratio", 1e-6, 1e6, 1.0);
  if (spec.head_dim % 4 != 0) {
    config.Fail("kv_channels",
                absl::StrCat("rotary embeddings of half heads need a multiple of 4, got ", spec.head_dim));
  }
  spec.rotary = PlainRotary(10000.0 * ratio, spec.head_dim / 2);
  spec.rotary->pairs = Rotary::kNeighbours;
  config.RefuseUnless("original_rope", true, "other rotary embeddings are not supported");
  ReadMaxLength(config, "seq_length", 2048, seq_len, spec);

  const double eps = ReadNormEps(config, "layernorm_epsilon", 1e-5);
  const bool is_rms = config.Bool("rmsnorm", true);
  spec.norm =
      is_rms ? NormSpec{NormSpec::kRms, Affine::kWeight, eps} : NormSpec{NormSpec::kLayer, Affine::kWeightBias, eps};
  if (config.Bool("apply_residual_connection_post_layernorm", false)) spec.residual_from = DecoderSpec::kFromNorm;
  config.RefuseUnless("post_layer_norm", true, "models without the last norm are not supported");

  spec.intermediate_size = config.Int("ffn_hidden_size", 1, kMaxWidth, 13696);
  spec.mlp_kind = DecoderSpec::kGateUp;
  spec.residual_dropout = ReadDropout(config, "hidden_dropout", 0.0);
  spec.attention_dropout = ReadDropout(config, "attention_dropout", 0.0);
  config.RefuseUnless("tie_word_embeddings", false, "ChatGLM has a head of its own");
  config.RefuseUnless("quantization_bit", 0, "quantized models are not supported");
  config.RefuseUnless("pre_seq_len", 0, "prefix tuning is not supported");
}

}  // namespace tacc::graph
