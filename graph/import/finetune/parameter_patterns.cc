#include "graph/import/finetune/parameter_patterns.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
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

absl::StatusOr<std::vector<std::vector<int>>> MatchParameters(absl::string_view option,
                                                              const std::vector<std::string>& patterns,
                                                              const Graph& forward, const std::vector<int>& params) {
  std::vector<std::string> all;
  std::vector<std::vector<int>> matched(patterns.size());
  for (int param : params) {
    const std::vector<std::string> tensors = TensorsOf(forward, forward.nodes[param]);
    for (size_t p = 0; p < patterns.size(); ++p) {
      const auto matches =
          static_cast<size_t>(std::count_if(tensors.begin(), tensors.end(), [&](const std::string& name) {
            return fnmatch(patterns[p].c_str(), name.c_str(), 0) == 0;
          }));
      if (matches == 0) continue;
      if (matches < tensors.size()) {
        return absl::InvalidArgumentError(absl::StrCat(option, ": \"", patterns[p], "\" matches ", matches, " of the ",
                                                       tensors.size(), " tensors ", forward.nodes[param].symbol,
                                                       ", which are trained as one: name all of them, or none"));
      }
      matched[p].push_back(param);
    }
    all.insert(all.end(), tensors.begin(), tensors.end());
  }
  for (size_t p = 0; p < patterns.size(); ++p) {
    if (!matched[p].empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(option, ": no parameter is named \"", patterns[p],
                                                   "\"; the nearest is \"", NearestName(patterns[p], all),
                                                   "\" (* stands for any letters)"));
  }
  return matched;
}

}  // namespace tacc::graph
