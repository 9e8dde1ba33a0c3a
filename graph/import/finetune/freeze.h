#ifndef TACC_GRAPH_IMPORT_FINETUNE_FREEZE_H_
#define TACC_GRAPH_IMPORT_FINETUNE_FREEZE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "graph/ir/graph.h"

namespace tacc::graph {

// Gives the params whose tensors' names in the model's files match one of the patterns the role frozen. Errors:
// InvalidArgument as MatchParameters (parameter_patterns.h), or where all patterns together leave nothing to train.
absl::Status Freeze(const std::vector<std::string>& patterns, Graph& forward);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_FINETUNE_FREEZE_H_
