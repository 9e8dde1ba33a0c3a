#include "graph/passes/training/changed_buffers.h"

#include <algorithm>
#include <utility>

#include "graph/ir/state_names.h"

namespace tacc::graph {

std::map<std::string, ValueId> ChangedBuffers(const Graph& forward) {
  std::map<std::string, ValueId> changed;
  for (const Node& node : forward.nodes) {
    if (node.op != Op::kOutput) continue;
    if (const std::string name = ChangedBuffer(node.symbol); !name.empty()) changed[name] = node.operands[0];
  }
  return changed;
}

void SeparateRunningStatistics(Graph& forward) {
  std::vector<Node> nodes;
  for (Node& node : forward.nodes) {
    if (node.op == "batch_moments" && node.operands.size() > 2) {
      Node of_batch = node;
      of_batch.operands.resize(2);
      of_batch.results.resize(2);
      of_batch.attrs.erase("momentum");
      nodes.push_back(std::move(of_batch));
      for (int i : {0, 1}) {
        const Value of = forward.values[node.results[i]];
        node.results[i] = forward.AddValue(of.name, of.type);
      }
    }
    nodes.push_back(std::move(node));
  }
  forward.nodes = std::move(nodes);
}

void MakeChangesEarly(Graph& forward) {
  // Whether something else than a changed buffer needs the node; leaves stay where they are.
  std::vector<char> is_needed(forward.values.size(), 0), stays(forward.nodes.size(), 0);
  for (size_t i = forward.nodes.size(); i-- > 0;) {
    const Node& node = forward.nodes[i];
    const bool changes = node.op == Op::kOutput && !ChangedBuffer(node.symbol).empty();
    stays[i] = !changes && (node.operands.empty() || node.results.empty());
    for (ValueId v : node.results) stays[i] |= is_needed[v];
    if (!stays[i]) continue;
    for (ValueId v : node.operands) is_needed[v] = 1;
  }
  std::vector<std::vector<size_t>> behind(forward.nodes.size());
  std::vector<size_t> place_of(forward.values.size(), 0);
  for (size_t i = 0; i < forward.nodes.size(); ++i) {
    const Node& node = forward.nodes[i];
    size_t place = i;
    if (!stays[i] && !node.results.empty()) {
      place = 0;
      for (ValueId v : node.operands) place = std::max(place, place_of[v]);
      behind[place].push_back(i);
    }
    for (ValueId v : node.results) place_of[v] = place;
  }
  std::vector<Node> nodes;
  for (size_t i = 0; i < forward.nodes.size(); ++i) {
    if (stays[i] || forward.nodes[i].results.empty()) nodes.push_back(forward.nodes[i]);
    for (size_t moved : behind[i]) nodes.push_back(forward.nodes[moved]);
  }
  forward.nodes = std::move(nodes);
}

void ReadRunningStatistics(const Node& moments, Graph& graph, std::vector<ValueId>& replacement,
                           std::vector<Node>& nodes) {
  for (int i : {0, 1}) {
    Node cast;
    cast.op = "cast";
    cast.module = moments.module;
    cast.operands = {moments.operands[2 + i]};
    cast.results = {moments.results[i]};
    cast.attrs = {{"dtype", std::string(Name(graph.type(moments.results[i]).dtype))}};
    nodes.push_back(std::move(cast));
    replacement[moments.results[2 + i]] = moments.operands[2 + i];
  }
}

}  // namespace tacc::graph
