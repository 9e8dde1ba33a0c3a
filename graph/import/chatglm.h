#ifndef TACC_GRAPH_IMPORT_CHATGLM_H_
#define TACC_GRAPH_IMPORT_CHATGLM_H_

#include <cstdint>
#include <set>
#include <string>

#include "graph/import/config_reader.h"
#include "graph/import/decoder/decoder.h"

namespace tacc::graph {

// The format of ChatGLM2, ChatGLM3 and GLM-4 (model_type chatglm), defined by the code beside their weights.
DecoderNames ChatGlmNames();
std::set<std::string> ChatGlmHarmlessKeys();
void ReadChatGlm(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_CHATGLM_H_
