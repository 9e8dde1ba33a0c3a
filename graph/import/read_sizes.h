#ifndef TACC_GRAPH_IMPORT_READ_SIZES_H_
#define TACC_GRAPH_IMPORT_READ_SIZES_H_

#include <cstdint>
#include <string>

#include "graph/import/config_reader.h"
#include "graph/import/decoder.h"

namespace tacc::graph {

// Limits that keep products of sizes inside int64 and ids inside int32.
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxVocabulary = int64_t{1} << 28;
inline constexpr int64_t kMaxLayers = 10000;
inline constexpr int64_t kMaxLength = int64_t{1} << 30;

struct HeadKeys {
  std::string heads, kv_heads, head_dim;
};

// Reads heads, key-value heads and head size; kv_heads defaults to heads, head_dim to hidden size / heads (or
// spec.head_dim when set).
void ReadHeads(ConfigReader& config, const HeadKeys& keys, int64_t default_heads, DecoderSpec& spec);
// head_dim = hidden_size / num_heads, which must divide.
void SetHeadDim(ConfigReader& config, const std::string& heads_key, DecoderSpec& spec);

// A size that goes by two names. Both at once must agree.
int64_t ReadRenamed(ConfigReader& config, const std::string& key, const std::string& other, int64_t max,
                    int64_t fallback);
Bias ReadBias(ConfigReader& config, const std::string& key, Bias fallback);
double ReadDropout(ConfigReader& config, const std::string& key, double fallback);
// Dropout inside attention is refused, by name.
void RefuseAttentionDropout(ConfigReader& config, double fallback);
DecoderSpec::Activation ReadActivation(ConfigReader& config, const std::string& key, const std::string& fallback);

// "normal(STD)".
std::string NormalInit(double std);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_READ_SIZES_H_
