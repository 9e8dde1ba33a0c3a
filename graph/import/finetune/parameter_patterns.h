#ifndef TACC_GRAPH_IMPORT_FINETUNE_PARAMETER_PATTERNS_H_
#define TACC_GRAPH_IMPORT_FINETUNE_PARAMETER_PATTERNS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "graph/ir/graph.h"

namespace tacc::graph {

// For each pattern (fnmatch: *, ?, [...]) of names of tensors in the model's files, the params among `params`, nodes of
// `forward`, that it matches. Errors: InvalidArgument, naming the option and the pattern: it matches nothing (with the
// nearest name), or only some of the tensors that are one param.
absl::StatusOr<std::vector<std::vector<int>>> MatchParameters(absl::string_view option,
                                                              const std::vector<std::string>& patterns,
                                                              const Graph& forward, const std::vector<int>& params);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_FINETUNE_PARAMETER_PATTERNS_H_
