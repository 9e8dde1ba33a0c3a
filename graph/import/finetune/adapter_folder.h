// Folders with LoRA adapters, as peft writes them: adapter_config.json and adapter_model.safetensors.
#ifndef TACC_GRAPH_IMPORT_FINETUNE_ADAPTER_FOLDER_H_
#define TACC_GRAPH_IMPORT_FINETUNE_ADAPTER_FOLDER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/import/finetune/lora.h"
#include "graph/ir/graph.h"

namespace tacc::graph {

struct AdapterFolder {
  LoraOptions options;
  std::string base;  // base_model_name_or_path; may be empty
};

// Reads the folder's adapter_config.json. Errors: NotFound when there is none; InvalidArgument "PATH: KEY ...": another
// kind of adapter than LoRA, or a feature of peft that is not supported, by name.
absl::StatusOr<AdapterFolder> ReadAdapterFolder(const std::string& dir);

// Compares names and shapes of the folder's tensors with the graph's adapters, and its modules to save. Reads no
// values. Errors: InvalidArgument with every difference, one a line.
absl::Status CheckAdapterTensors(const std::string& dir, const Graph& adapted);

// The text of adapter_config.json for these adapters, without base_model_name_or_path. Equal options give equal texts.
// `transposed`: as of LoraModules.
std::string AdapterConfigJson(const LoraOptions& options, bool transposed);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_FINETUNE_ADAPTER_FOLDER_H_
