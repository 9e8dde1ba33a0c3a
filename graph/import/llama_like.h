#ifndef TACC_GRAPH_IMPORT_LLAMA_LIKE_H_
#define TACC_GRAPH_IMPORT_LLAMA_LIKE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "graph/import/config_reader.h"
#include "graph/import/decoder/decoder.h"
#include "graph/import/rope.h"

namespace tacc::graph {

// The families of transformers whose config.json has LLaMA's keys: rotary embeddings, a gated MLP, and layers that
// differ in norms, biases and factors.

// What absent keys mean.
struct LlamaLikeDefaults {
  int64_t vocab_size, hidden_size, intermediate_size, num_layers, num_heads;
  int64_t num_kv_heads = 0;  // 0: as many as heads, which null means in any case
  int64_t head_dim = 0;      // 0: hidden size / heads
  int64_t max_positions = 2048;
  std::optional<double> partial_rotary_factor = std::nullopt;  // see RotaryModel
  double rope_theta = 10000.0;
  bool tied = false;
  double initializer_range = 0.02;
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  // Whose rotary embedding is read: one of all layers, or the family reads those of its types of layers.
  enum RotaryOf { kOfAllLayers, kByType } rotary = kOfAllLayers;
  RotaryModel rotary_model;  // what of it these defaults and the sizes do not say
};

// Reads what they share: all but norms, biases and the family's own keys. Sizes come first, so that the rest of a
// family's reader may use them.
void ReadLlamaLike(ConfigReader& config, int64_t seq_len, const LlamaLikeDefaults& defaults, DecoderSpec& spec);

// What a reader of rotary embeddings needs to know, once the sizes are read.
RotaryModel RotaryModelOf(int64_t seq_len, const LlamaLikeDefaults& defaults, const DecoderSpec& spec);

void ReadLlama(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadMistral(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadQwen2(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadQwen3(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadOlmo(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadOlmo2(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadGranite(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadGlm(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);  // glm and glm4

void ReadStarcoder2(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadSmolLm3(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadPhi3(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadOlmo3(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);

DecoderNames Qwen3Names();
DecoderNames Olmo2Names();
DecoderNames GlmNames();
DecoderNames Glm4Names();
DecoderNames Starcoder2Names();
DecoderNames Phi3Names();

// The factors on embeddings, branches, scores and logits that Granite's families have.
void ReadGraniteFactors(ConfigReader& config, DecoderSpec& spec);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_LLAMA_LIKE_H_
