#ifndef TACC_GRAPH_IMPORT_BAICHUAN_H_
#define TACC_GRAPH_IMPORT_BAICHUAN_H_

#include <cstdint>

#include "graph/import/config_reader.h"
#include "graph/import/decoder/decoder.h"

namespace tacc::graph {

// The format of baichuan-inc's models, 1 and 2, defined by the code beside their weights.
DecoderNames BaichuanNames();
void ReadBaichuan(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_BAICHUAN_H_
