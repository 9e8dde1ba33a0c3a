#ifndef TACC_GRAPH_PASSES_MODULES_MODULE_PATHS_H_
#define TACC_GRAPH_PASSES_MODULES_MODULE_PATHS_H_

#include <string>
#include <vector>

#include "graph/ir/graph.h"

namespace tacc::graph {

// Is the module the one at `path`, or inside it?
bool IsInside(const std::string& module, const std::string& path);

// Every module path of the first `num_nodes` nodes and those above it, in order of first appearance.
std::vector<std::string> ModulePaths(const Graph& graph, int num_nodes);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_MODULES_MODULE_PATHS_H_
