#ifndef TACC_GRAPH_IMPORT_GEMMA_H_
#define TACC_GRAPH_IMPORT_GEMMA_H_

#include <cstdint>
#include <set>
#include <string>

#include "graph/import/config_reader.h"
#include "graph/import/decoder/decoder.h"

namespace tacc::graph {

// Gemma 2 and the text model of Gemma 3: norms by 1 + their weight before and after each branch, an embedding scaled by
// the root of the width, layers of which some see a window, soft caps.
void ReadGemma2(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
void ReadGemma3(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);

DecoderNames Gemma2Names();
DecoderNames Gemma3Names();
std::set<std::string> GemmaHarmlessKeys();

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_GEMMA_H_
