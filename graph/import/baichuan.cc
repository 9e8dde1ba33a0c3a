#include "graph/import/baichuan.h"

#include "graph/import/config_parts.h"
#include "graph/import/rope.h"

namespace tacc::graph {

DecoderNames BaichuanNames() {
  DecoderNames names;
  names.qkv = "self_attn.W_pack";
  return names;
}

// 7B has max_position_embeddings and rotary embeddings; 13B has only model_max_length, and ALiBi. NormHead came with
// Baichuan 2, which no key tells from Baichuan 1: known by its vocabulary, or by a key of our own, norm_head.
void ReadBaichuan(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  constexpr int64_t kBaichuan2Vocabulary = 125696;
  ReadTransformersInit(config, spec);
  spec.vocab_rows = config.Int("vocab_size", 1, kMaxVocabulary, 64000);
  spec.hidden_size = config.Int("hidden_size", 1, kMaxWidth, 4096);
  spec.num_layers = config.Int("num_hidden_layers", 1, kMaxLayers, 32);
  spec.num_heads = spec.num_kv_heads = config.Int("num_attention_heads", 1, kMaxWidth, 32);
  SetHeadDim(config, "num_attention_heads", spec);
  ReadGatedMlp(config, 11008, spec);
  spec.norm = ReadRmsNorm(config, "rms_norm_eps", 1e-6);
  spec.qkv_layout = DecoderSpec::kStacked;
  if (config.Has("max_position_embeddings")) {
    ReadMaxLength(config, "max_position_embeddings", 4096, seq_len, spec);
    spec.rotary = PlainRotary(10000.0, spec.head_dim);
    CheckEvenHeads(config, "num_attention_heads", spec.head_dim);
    config.Harmless({"model_max_length"});
  } else {
    ReadMaxLength(config, "model_max_length", 4096, seq_len, spec);
    spec.alibi_slopes = AlibiSlopes(spec.num_heads);
  }
  config.RefuseUnless("tie_word_embeddings", false, "Baichuan has a head of its own");
  config.RefuseUnless("z_loss_weight", 0, "the z-loss is not supported");
  if (config.Bool("norm_head", spec.vocab_rows == kBaichuan2Vocabulary)) spec.head = DecoderSpec::kNormalizedHead;
}

}  // namespace tacc::graph
