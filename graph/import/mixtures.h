#ifndef TACC_GRAPH_IMPORT_MIXTURES_H_
#define TACC_GRAPH_IMPORT_MIXTURES_H_

#include <cstdint>

#include "graph/import/config_reader.h"
#include "graph/import/decoder/decoder.h"

namespace tacc::graph {

// Mixtures of experts of transformers: LLaMA-like, with experts in place of the MLP of all or some layers.

void ReadMixtral(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadQwen2Moe(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadQwen3Moe(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadOlmoe(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadGraniteMoe(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);

DecoderNames MixtralNames();
DecoderNames GraniteMoeNames();

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_MIXTURES_H_
