#include "graph/import/finetune/freeze.h"

#include "graph/import/finetune/parameter_patterns.h"
#include "graph/ir/program.h"
#include "graph/ir/status_macros.h"

namespace tacc::graph {

absl::Status Freeze(const std::vector<std::string>& patterns, Graph& forward) {
  std::vector<int> params;
  for (size_t i = 0; i < forward.nodes.size(); ++i) {
    if (forward.nodes[i].op == Op::kParam) params.push_back(static_cast<int>(i));
  }
  TACC_ASSIGN_OR_RETURN(const auto matched, MatchParameters("train.freeze", patterns, forward, params));
  for (const std::vector<int>& matches : matched) {
    for (int param : matches) forward.nodes[param].attrs["role"] = std::string(Name(WeightRole::kFrozen));
  }
  for (int param : params) {
    const auto role = GetAttr<std::string>(forward.nodes[param].attrs, "role");
    if (role != Name(WeightRole::kFrozen) && role != Name(WeightRole::kBuffer)) return absl::OkStatus();
  }
  return absl::InvalidArgumentError("train.freeze leaves no parameter to train; freeze fewer");
}

}  // namespace tacc::graph
