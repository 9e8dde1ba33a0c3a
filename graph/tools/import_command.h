#ifndef TACC_GRAPH_TOOLS_IMPORT_COMMAND_H_
#define TACC_GRAPH_TOOLS_IMPORT_COMMAND_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/import/import.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// `tacc-plan import`: the forward graph of a model folder or of a graph text, in text form.
absl::StatusOr<std::string> ImportCommand(const std::string& model_dir, const std::string& graph_file,
                                          const ImportOptions& options, const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_TOOLS_IMPORT_COMMAND_H_
