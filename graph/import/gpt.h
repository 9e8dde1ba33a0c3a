#ifndef TACC_GRAPH_IMPORT_GPT_H_
#define TACC_GRAPH_IMPORT_GPT_H_

#include <cstdint>
#include <set>
#include <string>

#include "graph/import/config_reader.h"
#include "graph/import/decoder/decoder.h"

namespace tacc::graph {

// The families of GPT: layer norms and MLPs that are not gated.

// GPT-2 (`GPT2LMHeadModel`), whose matrices lie transposed in the files.
void ReadGpt2(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
DecoderNames Gpt2Names();
std::set<std::string> Gpt2HarmlessKeys();

// GPT-NeoX and Pythia (`GPTNeoXForCausalLM`).
void ReadGptNeoX(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
DecoderNames GptNeoXNames();

// Falcon (`FalconForCausalLM`), of the old and of the new architecture.
void ReadFalcon(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
DecoderNames FalconNames();

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_GPT_H_
