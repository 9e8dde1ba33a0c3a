#ifndef TACC_GRAPH_IMPORT_FINETUNE_PARAM_GROUPS_H_
#define TACC_GRAPH_IMPORT_FINETUNE_PARAM_GROUPS_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "graph/import/finetune/request.h"
#include "graph/ir/graph.h"

namespace tacc::graph {

// Gives the params that are trained and match a group's pattern what the group has (attributes learning_rate,
// weight_decay, optim). Errors: InvalidArgument as MatchParameters, or for a parameter of two groups.
absl::Status ApplyParamGroups(const std::map<std::string, ParamGroup>& groups, Graph& forward);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_FINETUNE_PARAM_GROUPS_H_
