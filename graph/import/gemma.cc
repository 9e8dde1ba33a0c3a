#include "graph/import/gemma.h"

#include <cmath>

#include "graph/import/config_parts.h"
#include "graph/import/llama_like.h"
#include "graph/import/rope.h"

namespace tacc::graph {
namespace {

LlamaLikeDefaults GemmaDefaults(int64_t vocab_size, int64_t max_positions) {
  LlamaLikeDefaults defaults = {vocab_size, 2304, 9216, 26, 8, /*num_kv_heads=*/4, /*head_dim=*/256, max_positions};
  defaults.tied = true;
  defaults.activation_key = "hidden_activation";
  defaults.activation = "gelu_pytorch_tanh";
  return defaults;
}

void ReadGemma(ConfigReader& config, DecoderSpec& spec) {
  spec.norm = {NormSpec::kRms, Affine::kOnePlusWeight, ReadNormEps(config, "rms_norm_eps", 1e-6)};
  spec.qkv_bias = spec.attention_out_bias = ReadBias(config, "attention_bias", Bias::kNone);
  spec.attention_scale = 1 / std::sqrt(config.Float("query_pre_attn_scalar", 1e-6, 1e30, 256));
  // transformers holds it in an fp32 number.
  spec.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(spec.hidden_size)));
  config.RefuseUnless("use_bidirectional_attention", false, "a language model is causal");
}

}  // namespace

void ReadGemma2(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadLlamaLike(config, seq_len, GemmaDefaults(256000, 8192), spec);
  ReadGemma(config, spec);
  spec.attention_softcap = ReadSoftcap(config, "attn_logit_softcapping", 50.0);
  spec.logit_softcap = ReadSoftcap(config, "final_logit_softcapping", 30.0);
  ReadWindow(config, 4096, ReadLayerTypes(config, spec, [](int64_t layer) { return layer % 2 == 0; }), seq_len, spec);
}

void ReadGemma3(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  LlamaLikeDefaults defaults = GemmaDefaults(262208, 131072);
  defaults.rotary = LlamaLikeDefaults::kByType;
  ReadLlamaLike(config, seq_len, defaults, spec);
  ReadGemma(config, spec);
  spec.qk_norm = spec.norm;
  spec.logit_softcap = ReadSoftcap(config, "final_logit_softcapping", std::nullopt);
  config.RefuseUnless("attn_logit_softcapping", nullptr, "transformers bends no scores of this family by it");
  const int64_t pattern = ReadRenamed(config, "sliding_window_pattern", "_sliding_window_pattern", kMaxLayers, 6);
  const SlidingLayers sliding =
      ReadLayerTypes(config, spec, [pattern](int64_t layer) { return (layer + 1) % pattern != 0; });
  ReadWindow(config, 4096, sliding, seq_len, spec);
  const double full = config.Float("rope_theta", 1e-6, 1e30, 1000000.0);
  const double local = config.Float("rope_local_base_freq", 1e-6, 1e30, 10000.0);
  ReadRotariesByType(config, RotaryModelOf(seq_len, defaults, spec), full, local, sliding, spec);
}

DecoderNames Gemma2Names() {
  DecoderNames names;
  names.attention_post_norm = "post_attention_layernorm";
  names.mlp_norm = "pre_feedforward_layernorm";
  names.mlp_post_norm = "post_feedforward_layernorm";
  return names;
}

DecoderNames Gemma3Names() {
  DecoderNames names = Gemma2Names();
  names.q_norm = "self_attn.q_norm";
  names.k_norm = "self_attn.k_norm";
  return names;
}

std::set<std::string> GemmaHarmlessKeys() {
  // cache_implementation: of generation; hidden_act, sliding_window_size: older names that transformers writes beside
  // hidden_activation and sliding_window, which it reads.
  return {"cache_implementation", "hidden_act", "sliding_window_size"};
}

}  // namespace tacc::graph
