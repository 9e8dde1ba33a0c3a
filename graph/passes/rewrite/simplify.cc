#include "graph/passes/rewrite/simplify.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/ir/text.h"

namespace tacc::graph {
bool EliminateDeadCode(Graph& graph, const OpTable& ops) {
  std::vector<char> used(graph.values.size(), 0);
  std::vector<char> dead(graph.nodes.size(), 0);
  bool changed = false;
  for (int i = static_cast<int>(graph.nodes.size()) - 1; i >= 0; --i) {
    const Node& node = graph.nodes[i];
    const OpDef* def = ops.Find(node.op);
    const bool live = def == nullptr || def->has_side_effect ||
                      std::any_of(node.results.begin(), node.results.end(), [&](ValueId v) { return used[v] != 0; });
    if (!live) {
      dead[i] = 1;
      changed = true;
      continue;
    }
    for (ValueId v : node.operands) used[v] = 1;
  }
  if (changed) graph.RemoveNodes(dead);
  return changed;
}

bool EliminateCommonSubexpressions(Graph& graph, const OpTable& ops) {
  std::map<std::string, size_t> seen;
  std::map<std::string, int> stores;  // state -> stores so far
  std::vector<ValueId> replacement(graph.values.size());
  for (size_t v = 0; v < replacement.size(); ++v) replacement[v] = static_cast<ValueId>(v);
  std::vector<char> dead(graph.nodes.size(), 0);
  bool changed = false;
  std::vector<char> is_stored(graph.values.size(), 0);
  for (const Node& node : graph.nodes) {
    if (node.op == Op::kStore) is_stored[node.operands[0]] = 1;
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    Node& node = graph.nodes[i];
    for (ValueId& v : node.operands) v = replacement[v];
    const OpDef* def = ops.Find(node.op);
    if (node.op == Op::kStore) ++stores[node.symbol];
    if (node.op == Op::kConstant && is_stored[node.results[0]])
      continue;  // Made in the state's place, it costs no copy.
    if (def == nullptr || def->has_side_effect) continue;
    std::string key = absl::StrCat(node.op.name(), "|", node.symbol, "|", node.recompute, "|");
    if (node.op == Op::kRead) absl::StrAppend(&key, stores[node.symbol]);
    if (!node.operands.empty()) absl::StrAppend(&key, "@", node.module);
    for (ValueId v : node.operands) absl::StrAppend(&key, "|", v);
    for (const auto& [name, attr] : node.attrs) absl::StrAppend(&key, "|", name, "=", Print(attr));
    for (ValueId v : node.results) {
      absl::StrAppend(&key, ":", graph.type(v).ToString());
      if (graph.values[v].placement.has_value()) {
        for (const AxisList& axes : graph.values[v].placement->sharding.dims)
          absl::StrAppend(&key, "[", absl::StrJoin(axes, "+"), "]");
        absl::StrAppend(&key, "p", absl::StrJoin(graph.values[v].placement->sharding.pending, "+"));
      }
    }
    const auto [it, inserted] = seen.emplace(std::move(key), i);
    if (inserted) continue;
    const Node& first = graph.nodes[it->second];
    for (size_t r = 0; r < node.results.size(); ++r) replacement[node.results[r]] = first.results[r];
    dead[i] = 1;
    changed = true;
  }
  if (changed) graph.RemoveNodes(dead);
  return changed;
}

namespace {

// The pads that the sum `root` adds up, by where their content begins in the dim; empty when it adds anything else, or
// when something else reads one of the summands. `nodes` receives the indices of all nodes but the root.
std::map<int64_t, const Node*> SummedPads(const Graph& graph, const std::vector<int>& producers,
                                          const std::vector<int>& num_uses, const Node& root, std::vector<int>& nodes) {
  std::map<int64_t, const Node*> pads;
  std::vector<const Node*> sums = {&root};
  while (!sums.empty()) {
    const Node& sum = *sums.back();
    sums.pop_back();
    for (ValueId v : sum.operands) {
      const int producer = producers[v];
      if (producer < 0 || num_uses[v] != 1 || !(graph.type(v) == graph.type(root.results[0]))) return {};
      nodes.push_back(producer);
      const Node& node = graph.nodes[producer];
      if (node.op == "add") {
        sums.push_back(&node);
      } else if (node.op != "pad" || !pads.emplace(GetAttr<int64_t>(node.attrs, "low"), &node).second) {
        return {};
      }
    }
  }
  return pads;
}

}  // namespace

bool ConcatenatePads(Graph& graph, const OpTable&) {
  std::vector<int> num_uses(graph.values.size(), 0);
  for (const Node& node : graph.nodes) {
    for (ValueId v : node.operands) ++num_uses[v];
  }
  const std::vector<int> producers = graph.Producers();
  std::vector<char> dead(graph.nodes.size(), 0);
  bool changed = false;
  // Backwards, so that the whole of a sum comes before its parts.
  for (int i = static_cast<int>(graph.nodes.size()) - 1; i >= 0; --i) {
    Node& node = graph.nodes[i];
    if (node.op != "add" || dead[i]) continue;
    std::vector<int> summands;
    const std::map<int64_t, const Node*> pads = SummedPads(graph, producers, num_uses, node, summands);
    if (pads.empty()) continue;
    const int64_t dim = GetAttr<int64_t>(pads.begin()->second->attrs, "dim");
    int64_t end = 0;
    std::vector<ValueId> parts;
    for (const auto& [low, pad] : pads) {
      if (GetAttr<int64_t>(pad->attrs, "dim") != dim || low != end) break;
      parts.push_back(pad->operands[0]);
      end += graph.type(parts.back()).dims[dim];
    }
    if (parts.size() != pads.size() || end != graph.type(node.results[0]).dims[dim]) continue;
    for (int summand : summands) dead[summand] = 1;
    node.op = "concat";
    node.operands = std::move(parts);
    node.attrs = {{"dim", dim}};
    changed = true;
  }
  if (changed) graph.RemoveNodes(dead);
  return changed;
}

}  // namespace tacc::graph
