#ifndef TACC_GRAPH_IMPORT_OLMO_NATIVE_H_
#define TACC_GRAPH_IMPORT_OLMO_NATIVE_H_

#include <cstdint>
#include <set>
#include <string>

#include "graph/import/config_reader.h"
#include "graph/import/decoder/decoder.h"

namespace tacc::graph {

// The format of allenai/OLMo-1B (model_type hf_olmo), defined by the package ai2-olmo.
DecoderNames NativeOlmoNames();
std::set<std::string> NativeOlmoHarmlessKeys();
void ReadNativeOlmo(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_OLMO_NATIVE_H_
