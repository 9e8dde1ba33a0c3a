#ifndef TACC_GRAPH_IMPORT_MODEL_FACTS_H_
#define TACC_GRAPH_IMPORT_MODEL_FACTS_H_

#include <map>
#include <string>

#include "graph/import/decoder/decoder.h"
#include "nlohmann/json_fwd.hpp"

namespace tacc::graph {

// All that the spec says of the model's mathematics, by name, for people and for comparison: two specs compute the same
// if they have the same facts. Initial weights are left out, and the names of parameters. Checkpoints hold them, and
// later versions compare: what a name means stays, and so does how its value is written; a new one is absent where a
// model is as all were before it.
std::map<std::string, std::string> ModelFacts(const DecoderSpec& spec);

// What config.json calls those of the facts that have another name there, with the same value: {"norm_eps":
// "rms_norm_eps"}; a key inside an object as "rope_scaling.factor". For people.
std::map<std::string, std::string> FactKeys(const std::map<std::string, std::string>& facts,
                                            const nlohmann::json& config);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_MODEL_FACTS_H_
