#ifndef TACC_GRAPH_IMPORT_MIXTURES_H_
#define TACC_GRAPH_IMPORT_MIXTURES_H_

#include <cstdint>
#include <set>
#include <string>

#include "graph/import/config_reader.h"
#include "graph/import/decoder/decoder.h"

namespace tacc::graph {

// Mixtures of experts of transformers: LLaMA-like, with experts in place of the MLP of all or some layers.

void ReadMixtral(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadQwen2Moe(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadQwen3Moe(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadOlmoe(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadGraniteMoe(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadDeepseekV2(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadDeepseekV3(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadGptOss(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);

std::set<std::string> DeepseekHarmlessKeys();

DecoderNames DeepseekNames();
DecoderNames MixtralNames();
DecoderNames GraniteMoeNames();
DecoderNames GptOssNames();

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_MIXTURES_H_
