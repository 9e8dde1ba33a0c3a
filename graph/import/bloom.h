#ifndef TACC_GRAPH_IMPORT_BLOOM_H_
#define TACC_GRAPH_IMPORT_BLOOM_H_

#include <cstdint>
#include <set>
#include <string>

#include "graph/import/config_reader.h"
#include "graph/import/decoder/decoder.h"

namespace tacc::graph {

// Bloom, as transformers has it.
DecoderNames BloomNames();
std::set<std::string> BloomHarmlessKeys();
void ReadBloom(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_BLOOM_H_
