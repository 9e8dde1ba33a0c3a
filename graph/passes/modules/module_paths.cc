#include "graph/passes/modules/module_paths.h"

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tacc::graph {
bool IsInside(const std::string& module, const std::string& path) {
  return module == path || absl::StartsWith(module, absl::StrCat(path, "."));
}

std::vector<std::string> ModulePaths(const Graph& graph, int num_nodes) {
  std::vector<std::string> paths;
  std::set<std::string> seen;
  for (int i = 0; i < num_nodes; ++i) {
    const std::string& module = graph.nodes[i].module;
    for (size_t end = module.find('.'); !module.empty(); end = module.find('.', end + 1)) {
      std::string path = module.substr(0, end);
      if (seen.insert(path).second) paths.push_back(path);
      if (end == std::string::npos) break;
    }
  }
  return paths;
}

}  // namespace tacc::graph
