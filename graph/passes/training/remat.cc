#include "graph/passes/training/remat.h"

#include <map>
#include <set>
#include <utility>

#include "graph/passes/modules/units.h"

namespace tacc::graph {
namespace {

class UnitRemat {
 public:
  // `unit_of[i]`: the unit of node i where it is of the forward and not a leaf, else -1.
  UnitRemat(const Graph& graph, const std::vector<int>& unit_of, const std::vector<char>& forward)
      : graph_(graph), unit_of_(unit_of), producers_(graph.Producers()), kept_(graph.values.size(), 0) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      if (!forward[i]) continue;
      for (ValueId v : graph.nodes[i].operands) {
        if (Unit(v) >= 0 && Unit(v) != unit_of[i]) kept_[v] = 1;
      }
    }
  }

  // Marks the forward node that makes `v`, and those of its unit that it needs, to be cloned.
  void Repeat(ValueId v, std::set<int>& clones) const {
    if (Unit(v) < 0 || kept_[v] || !clones.insert(producers_[v]).second) return;
    for (ValueId operand : graph_.nodes[producers_[v]].operands) {
      if (Unit(operand) == Unit(v)) Repeat(operand, clones);
    }
  }
  bool IsRepeated(ValueId v) const { return Unit(v) >= 0 && !kept_[v]; }
  int Unit(ValueId v) const { return producers_[v] < 0 ? -1 : unit_of_[producers_[v]]; }

 private:
  const Graph& graph_;
  const std::vector<int>& unit_of_;
  const std::vector<int> producers_;
  std::vector<char> kept_;  // values that other units' forward reads
};

void RematerializeGraph(const Program& program, const RematOptions& options, Graph& graph) {
  const std::vector<char> forward = ForwardNodes(program, graph);
  Units units(options.units);
  std::vector<int> unit_of(graph.nodes.size(), -1);
  size_t backward_begin = 0;  // what stands among the units' forward reads no clones, whatever it is for
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (forward[i] && !graph.nodes[i].operands.empty()) unit_of[i] = units.Of(graph.nodes[i].module);
    if (unit_of[i] >= 0) backward_begin = i + 1;
  }
  const UnitRemat remat(graph, unit_of, forward);

  // By unit: the nodes to clone, and the node of the backward that first reads one of their results.
  std::map<int, std::set<int>> clones;
  std::map<size_t, std::vector<int>> units_before;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (forward[i] || i < backward_begin) continue;
    for (ValueId v : graph.nodes[i].operands) {
      if (!remat.IsRepeated(v)) continue;
      if (clones.count(remat.Unit(v)) == 0) units_before[i].push_back(remat.Unit(v));
      remat.Repeat(v, clones[remat.Unit(v)]);
    }
  }
  if (clones.empty()) return;

  std::vector<ValueId> repeated(graph.values.size());
  for (size_t v = 0; v < repeated.size(); ++v) repeated[v] = static_cast<ValueId>(v);
  std::vector<Node> nodes;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (const auto it = units_before.find(i); it != units_before.end()) {
      for (int unit : it->second) {
        for (int index : clones[unit]) {
          Node clone = graph.nodes[index];
          clone.recompute = 1;
          for (ValueId& v : clone.operands) v = repeated[v];
          for (ValueId& v : clone.results) {
            const Value original = graph.values[v];
            repeated[v] = graph.AddValue(original.name, original.type);
            v = repeated[v];
          }
          nodes.push_back(std::move(clone));
        }
      }
    }
    nodes.push_back(graph.nodes[i]);
    if (forward[i] || i < backward_begin) continue;
    for (ValueId& v : nodes.back().operands) v = repeated[v];
  }
  graph.nodes = std::move(nodes);
}

}  // namespace

std::vector<char> ForwardNodes(const Program& program, const Graph& graph) {
  const StateIndex states(program);
  std::vector<char> counted(graph.values.size(), 0), forward(graph.nodes.size(), 0);
  for (int i = static_cast<int>(graph.nodes.size()) - 1; i >= 0; --i) {
    const Node& node = graph.nodes[i];
    const State* state = node.op == Op::kStore ? states.Find(node.symbol) : nullptr;
    bool feeds = state != nullptr && state->kind == StateKind::kCounter;
    for (ValueId v : node.results) forward[i] |= counted[v];
    feeds |= forward[i] != 0;
    if (!feeds) continue;
    for (ValueId v : node.operands) counted[v] = 1;
  }
  return forward;
}

bool Rematerialize(Program& program, const OpTable&, const RematOptions& options) {
  if (options.units.empty()) return false;
  bool changed = false;
  for (Graph& graph : program.graphs) {
    const size_t before = graph.nodes.size();
    RematerializeGraph(program, options, graph);
    changed |= graph.nodes.size() > before;
  }
  return changed;
}

}  // namespace tacc::graph
