#include "graph/tools/import_command.h"

#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"

namespace tacc::graph {

absl::StatusOr<std::string> ImportCommand(const std::string& model_dir, const std::string& graph_file,
                                          const ImportOptions& options, const OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(const ImportedModel model, graph_file.empty() ? ImportModel(model_dir, options, ops)
                                                                      : ImportGraphFile(graph_file, options, ops));
  return Print(model.forward);
}

}  // namespace tacc::graph
