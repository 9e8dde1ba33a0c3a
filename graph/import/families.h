// The table of model families that are read from a Hugging Face folder.
#ifndef TACC_GRAPH_IMPORT_FAMILIES_H_
#define TACC_GRAPH_IMPORT_FAMILIES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/import/config_reader.h"
#include "graph/import/decoder/decoder.h"
#include "nlohmann/json.hpp"

namespace tacc::graph {

// One row of the table of model families: how its config.json becomes a DecoderSpec.
struct Family {
  std::string name;
  std::vector<std::string> model_types;    // values of config.json's model_type
  std::vector<std::string> architectures;  // its language models
  std::vector<std::string> layer_classes;  // classes of its decoder layers, for dist.fsdp.wrap_layer_cls
  DecoderNames names;
  // Keys of its config.json, beside those of HarmlessKeys(), that do not change what is computed.
  std::set<std::string> harmless;
  // Ends of the names of tensors that older versions stored beside the weights, as masks.
  std::vector<std::string> old_buffers;
  // Modules that peft adapts unless told otherwise; empty: it does not know the family.
  // Source: peft 0.21, TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.
  std::vector<std::string> lora_targets;
  // Ends of the paths of modules that transformers calls otherwise than the files do, and what it calls them.
  // Source: transformers 5.23, conversion_mapping.py.
  std::map<std::string, std::string> renamed_modules;
  // Last names of modules that peft takes for those of experts wherever they are, as it reads adapters that were made
  // before transformers 5 put experts together. Source: peft 0.21, transformers_weight_conversion.py.
  std::set<std::string> taken_for_experts;
  // How many layers its files may hold behind the last one, which guess further tokens and are no part of the model.
  int64_t layers_behind = 0;
  // Reads the rest; problems stay in the reader.
  void (*read)(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);
};

// All families, in the order in which documents list them.
std::vector<Family> Families();

// Whether `architecture` is one of the family's language models.
bool IsLanguageModel(const Family& family, const std::string& architecture);

// Keys of any family's config.json that do not change what training computes.
std::set<std::string> HarmlessKeys();

struct ReadFamily {
  Family family;
  DecoderSpec spec;
  std::string weights_dtype;        // "F32", "BF16", "F16" when config.json names one, else empty
  std::set<std::string> used_keys;  // keys that were read
};

// Finds the family and reads config.json. Errors: InvalidArgument with every problem, one a line: unknown keys, values
// out of range, features that are not supported, each by name.
absl::StatusOr<ReadFamily> ReadModelConfig(const nlohmann::json& config, int64_t seq_len);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_FAMILIES_H_
