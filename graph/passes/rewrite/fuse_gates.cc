#include "graph/passes/rewrite/fuse_gates.h"

#include <utility>
#include <vector>

namespace tacc::graph {

bool FuseGates(Graph& graph, const OpTable&) {
  const std::vector<int> producers = graph.Producers();
  std::vector<int> num_uses(graph.values.size(), 0);
  for (const Node& node : graph.nodes) {
    for (ValueId v : node.operands) ++num_uses[v];
  }
  std::vector<char> is_taken(graph.nodes.size(), 0);
  bool changed = false;
  for (Node& node : graph.nodes) {
    if (node.op != "mul" || !(graph.type(node.operands[0]) == graph.type(node.operands[1]))) continue;
    for (const size_t operand : {0, 1}) {
      const ValueId activated = node.operands[operand], up = node.operands[1 - operand];
      const int producer = producers[activated];
      if (producer < 0 || num_uses[activated] != 1) continue;
      const Node& silu = graph.nodes[producer];
      if (silu.op != "silu" || silu.recompute != node.recompute) continue;
      node.op = "swiglu";
      node.operands = {silu.operands[0], up};
      is_taken[producer] = 1;
      changed = true;
      break;
    }
  }
  if (!changed) return false;
  std::vector<Node> nodes;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!is_taken[i]) nodes.push_back(std::move(graph.nodes[i]));
  }
  graph.nodes = std::move(nodes);
  graph.CompactValues();
  return true;
}

}  // namespace tacc::graph
