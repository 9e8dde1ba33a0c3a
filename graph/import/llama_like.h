#ifndef TACC_GRAPH_IMPORT_LLAMA_LIKE_H_
#define TACC_GRAPH_IMPORT_LLAMA_LIKE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "graph/import/config_reader.h"
#include "graph/import/decoder/decoder.h"

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
};

// Reads what they share: all but norms, biases and the family's own keys. Sizes come first, so that the rest of a
// family's reader may use them.
void ReadLlamaLike(ConfigReader& config, int64_t seq_len, const LlamaLikeDefaults& defaults, DecoderSpec& spec);

void ReadLlama(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadMistral(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadQwen2(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadQwen3(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadOlmo(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadOlmo2(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadGranite(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadGlm(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);  // glm and glm4

DecoderNames Qwen3Names();
DecoderNames Olmo2Names();
DecoderNames GlmNames();
DecoderNames Glm4Names();

// The factors on embeddings, branches, scores and logits that Granite's families have.
void ReadGraniteFactors(ConfigReader& config, DecoderSpec& spec);

// Refuses, by name, a sliding_window that would leave tokens of a sample out. `layers` begins the message: "all
// layers". An absent key means `fallback`, null no window.
void RefuseSmallWindow(ConfigReader& config, const std::string& layers, int64_t fallback, int64_t seq_len);
// The same for the layers that use_sliding_window, max_window_layers and layer_types choose, as Qwen has them: without
// layer_types those from max_window_layers on, or of Qwen 2 MoE layers 0, 2, ... below it.
enum class QwenWindows { kFromLayer, kEvenLayersBelow };
void RefuseSmallWindowsOfQwen(ConfigReader& config, int64_t seq_len, const DecoderSpec& spec,
                              QwenWindows windows = QwenWindows::kFromLayer);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_LLAMA_LIKE_H_
