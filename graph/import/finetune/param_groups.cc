#include "graph/import/finetune/param_groups.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/import/finetune/parameter_patterns.h"
#include "graph/ir/program.h"
#include "graph/ir/status_macros.h"

namespace tacc::graph {

absl::Status ApplyParamGroups(const std::map<std::string, ParamGroup>& groups, Graph& forward) {
  std::vector<int> trained;
  for (size_t i = 0; i < forward.nodes.size(); ++i) {
    const Node& node = forward.nodes[i];
    if (node.op != Op::kParam) continue;
    const auto role = FindWeightRole(GetAttr<std::string>(node.attrs, "role", std::string(Name(WeightRole::kTrained))));
    if (role.has_value() && IsTrained(*role)) trained.push_back(static_cast<int>(i));
  }
  std::vector<std::string> patterns;
  for (const auto& [pattern, group] : groups) patterns.push_back(pattern);
  TACC_ASSIGN_OR_RETURN(const auto matched, MatchParameters("train.param_groups", patterns, forward, trained));
  std::map<int, std::string> group_of;
  for (size_t p = 0; p < patterns.size(); ++p) {
    const ParamGroup& group = groups.at(patterns[p]);
    for (int param : matched[p]) {
      Node& node = forward.nodes[param];
      if (const auto [it, is_new] = group_of.emplace(param, patterns[p]); !is_new) {
        return absl::InvalidArgumentError(absl::StrCat("train.param_groups: \"", node.symbol, "\" is in two groups, \"",
                                                       it->second, "\" and \"", patterns[p],
                                                       "\"; let it match one of them"));
      }
      if (group.learning_rate.has_value()) node.attrs["learning_rate"] = *group.learning_rate;
      if (group.weight_decay.has_value()) node.attrs["weight_decay"] = *group.weight_decay;
      if (!group.optim.empty()) node.attrs["optim"] = group.optim;
    }
  }
  return absl::OkStatus();
}

}  // namespace tacc::graph
