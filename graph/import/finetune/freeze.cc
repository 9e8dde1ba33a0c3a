#include "graph/import/finetune/freeze.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "graph/ir/program.h"
#include "text/nearest_name.h"

namespace tacc::graph {
namespace {

// The tensors of the model's files that a param is: one, rows of one, or those of a stack.
std::vector<std::string> TensorsOf(const Graph& graph, const Node& param) {
  const size_t star = param.symbol.find('*');
  if (star == std::string::npos) return {param.symbol.substr(0, param.symbol.find('['))};
  std::vector<std::string> names;
  for (int64_t i = 0; i < graph.type(param.results[0]).dims[0]; ++i) {
    std::string name = param.symbol;
    names.push_back(name.replace(star, 1, absl::StrCat(i)));
  }
  return names;
}

}  // namespace

absl::Status Freeze(const std::vector<std::string>& patterns, Graph& forward) {
  std::vector<std::string> all;
  std::vector<char> matched(patterns.size(), 0);
  bool any_trained = false;
  for (Node& node : forward.nodes) {
    if (node.op != Op::kParam) continue;
    const std::vector<std::string> tensors = TensorsOf(forward, node);
    bool is_frozen = false;
    for (size_t p = 0; p < patterns.size(); ++p) {
      const auto matches =
          static_cast<size_t>(std::count_if(tensors.begin(), tensors.end(), [&](const std::string& name) {
            return fnmatch(patterns[p].c_str(), name.c_str(), 0) == 0;
          }));
      if (matches == 0) continue;
      if (matches < tensors.size()) {
        return absl::InvalidArgumentError(absl::StrCat("train.freeze: \"", patterns[p], "\" matches ", matches,
                                                       " of the ", tensors.size(), " tensors ", node.symbol,
                                                       ", which are trained as one: name all of them, or none"));
      }
      matched[p] = 1;
      is_frozen = true;
    }
    if (is_frozen) node.attrs["role"] = std::string(Name(WeightRole::kFrozen));
    any_trained |= !is_frozen && GetAttr<std::string>(node.attrs, "role") != Name(WeightRole::kBuffer);
    all.insert(all.end(), tensors.begin(), tensors.end());
  }
  for (size_t p = 0; p < patterns.size(); ++p) {
    if (matched[p]) continue;
    return absl::InvalidArgumentError(absl::StrCat("train.freeze: no parameter is named \"", patterns[p],
                                                   "\"; the nearest is \"", NearestName(patterns[p], all),
                                                   "\" (* stands for any letters)"));
  }
  if (!any_trained) return absl::InvalidArgumentError("train.freeze leaves no parameter to train; freeze fewer");
  return absl::OkStatus();
}

}  // namespace tacc::graph
