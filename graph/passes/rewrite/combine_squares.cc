#include "graph/passes/rewrite/combine_squares.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/passes/partition/axis_list.h"

namespace tacc::graph {
namespace {

class SquareCombiner {
 public:
  SquareCombiner(Graph& graph, const Mesh& mesh)
      : graph_(graph),
        mesh_(mesh),
        producers_(graph.Producers()),
        num_uses_(graph.values.size(), 0),
        is_seen_(graph.nodes.size(), 0),
        is_replaced_(graph.nodes.size(), 0),
        sums_(graph.nodes.size()) {
    for (const Node& node : graph.nodes) {
      for (ValueId v : node.operands) ++num_uses_[v];
    }
  }

  bool Run() {
    bool changed = false;
    // Backwards, so that the whole of a sum comes before its parts.
    for (int i = static_cast<int>(graph_.nodes.size()) - 1; i >= 0; --i) {
      if (!is_seen_[i] && IsSum(i)) changed |= Combine(i);
    }
    if (!changed) return false;
    std::vector<Node> nodes;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!is_replaced_[i]) nodes.push_back(std::move(graph_.nodes[i]));
      for (Node& node : sums_[i]) nodes.push_back(std::move(node));
    }
    graph_.nodes = std::move(nodes);
    graph_.CompactValues();
    return true;
  }

 private:
  // The summands that are pending on the same axes.
  struct Group {
    std::vector<ValueId> squared;  // operands of the sum_squares
    std::vector<ValueId> others;   // scalars
    ValueId like = kNoValue;       // one of the summands
    int num_squares = 0;           // sum_squares so far
  };
  using Groups = std::vector<std::pair<AxisList, Group>>;  // in the order of the sum

  bool IsScalar(ValueId v) const { return graph_.type(v).rank() == 0; }
  bool IsSum(int i) const {
    const Node& node = graph_.nodes[i];
    return (node.op == "add" || node.op == Op::kAllReduce) &&
           std::all_of(node.operands.begin(), node.operands.end(), [this](ValueId v) { return IsScalar(v); });
  }
  AxisList Pending(ValueId v) const {
    const std::optional<Placement>& placement = graph_.values[v].placement;
    return placement.has_value() ? placement->sharding.pending : AxisList();
  }

  // Adds the summands of v; `nodes` receives the indices of all nodes between them and v.
  void Collect(ValueId v, Groups& groups, std::vector<int>& nodes) const {
    const int producer = producers_[v];
    const bool only_here = producer >= 0 && num_uses_[v] == 1;
    if (only_here && IsSum(producer)) {
      nodes.push_back(producer);
      for (ValueId summand : graph_.nodes[producer].operands) Collect(summand, groups, nodes);
      return;
    }
    const AxisList pending = Pending(v);
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const auto& candidate) { return candidate.first == pending; });
    if (group == groups.end()) group = groups.insert(group, {pending, {.like = v}});
    if (only_here && graph_.nodes[producer].op == "sum_squares") {
      const std::vector<ValueId>& squared = graph_.nodes[producer].operands;
      group->second.squared.insert(group->second.squared.end(), squared.begin(), squared.end());
      ++group->second.num_squares;
      nodes.push_back(producer);
    } else {
      group->second.others.push_back(v);
    }
  }

  ValueId Make(std::vector<Node>& made, const Op& op, std::vector<ValueId> operands, ValueId like, Attrs attrs = {}) {
    Node node;
    node.op = op;
    node.module = module_;
    node.operands = std::move(operands);
    node.attrs = std::move(attrs);
    const Value value = graph_.values[like];
    node.results = {graph_.AddValue(op, value.type)};
    graph_.values.back().placement = value.placement;
    made.push_back(std::move(node));
    return made.back().results[0];
  }

  // The sum of a group, pending only as `root` is.
  ValueId Sum(const Group& group, ValueId root, std::vector<Node>& made) {
    ValueId sum = group.squared.empty() ? kNoValue : Make(made, "sum_squares", group.squared, group.like);
    for (ValueId other : group.others) sum = sum == kNoValue ? other : Make(made, "add", {sum, other}, group.like);
    AxisList over = Pending(group.like);
    for (int axis : Pending(root)) Remove(over, axis);
    return over.empty() ? sum : Make(made, Op::kAllReduce, {sum}, root, {{"over", AxisNames(mesh_, over)}});
  }

  bool Combine(int index) {
    const ValueId root = graph_.nodes[index].results[0];
    Groups groups;
    std::vector<int> nodes = {index};
    for (ValueId summand : graph_.nodes[index].operands) Collect(summand, groups, nodes);
    const bool several =
        std::any_of(groups.begin(), groups.end(), [](const auto& group) { return group.second.num_squares > 1; });
    for (int node : nodes) {
      is_seen_[node] = 1;
      is_replaced_[node] = several;
    }
    if (!several) return false;
    module_ = graph_.nodes[index].module;
    std::vector<Node>& made = sums_[index];
    ValueId total = kNoValue;
    for (const auto& [pending, group] : groups) {
      const ValueId sum = Sum(group, root, made);
      total = total == kNoValue ? sum : Make(made, "add", {total, sum}, root);
    }
    made.back().results = {root};
    return true;
  }

  Graph& graph_;
  const Mesh& mesh_;
  const std::vector<int> producers_;
  std::vector<int> num_uses_;
  std::string module_;                       // of the sum that is being replaced
  std::vector<char> is_seen_, is_replaced_;  // by node: it is part of a sum that was looked at, that has become another
  std::vector<std::vector<Node>> sums_;      // by node: what stands in its place
};

}  // namespace

bool CombineSquares(Program& program, const OpTable&) {
  bool changed = false;
  for (Graph& graph : program.graphs) changed |= SquareCombiner(graph, program.mesh).Run();
  return changed;
}

}  // namespace tacc::graph
