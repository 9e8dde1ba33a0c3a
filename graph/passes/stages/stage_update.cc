// What a pipeline's stages do to their states: each to its own parameters, and sums over stages for what needs all of
// them.
#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/passes/rewrite/simplify.h"
#include "graph/passes/stages/stages.h"

namespace tacc::graph {
namespace {

// Stages in ascending order. A value lies on one of them or on all, seldom on some, so that a list is smaller than a
// set.
using StageList = std::vector<int>;

StageList ListOf(const std::map<std::string, std::set<int>>& stages_of, const std::string& state) {
  const auto it = stages_of.find(state);
  return it == stages_of.end() ? StageList() : StageList(it->second.begin(), it->second.end());
}

StageList Intersection(const StageList& a, const StageList& b) {
  StageList both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

StageList Union(const StageList& a, const StageList& b) {
  StageList either;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(either));
  return either;
}

bool Contains(const StageList& list, int stage) { return std::binary_search(list.begin(), list.end(), stage); }

// A stage's part of a graph. It has only the values that its nodes mention: all parts together are no larger than the
// whole and what several stages do.
class Part {
 public:
  explicit Part(const Graph& whole) : whole_(whole), graph_(whole.EmptyPart(whole.name)) {}

  // The number here of a value of the whole graph.
  ValueId ValueOf(ValueId v) {
    const auto [it, is_new] = values_.try_emplace(v, static_cast<ValueId>(graph_.values.size()));
    if (is_new) graph_.values.push_back(whole_.values[v]);
    return it->second;
  }
  // From here on `v` of the whole graph is `own` of this one.
  void Rename(ValueId v, ValueId own) { values_.insert_or_assign(v, own); }
  // A node of the whole graph.
  void Add(const Node& node) {
    Node own = node;
    for (ValueId& v : own.operands) v = ValueOf(v);
    for (ValueId& v : own.results) v = ValueOf(v);
    graph_.nodes.push_back(std::move(own));
  }
  // A node with operands of this graph, and a new result like `value`.
  ValueId AddOwn(Node node, const Value& value) {
    node.results = {graph_.AddValue(value.name, value.type)};
    graph_.values.back().placement = value.placement;
    graph_.nodes.push_back(std::move(node));
    return graph_.nodes.back().results[0];
  }
  Graph Take(const OpTable& ops) {
    EliminateDeadCode(graph_, ops);
    graph_.CompactValues();
    return std::move(graph_);
  }

 private:
  const Graph& whole_;
  Graph graph_;
  std::unordered_map<ValueId, ValueId> values_;
};

// Builds the graphs of all stages at once, so that they meet the same sums in the same order.
class UpdateCutter {
 public:
  UpdateCutter(const Graph& update, const Program& program, const OpTable& ops,
               const std::map<std::string, std::set<int>>& stages_of, int num_stages)
      : update_(update),
        states_(program),
        ops_(ops),
        stages_of_(stages_of),
        parts_(num_stages, Part(update)),
        known_(update.values.size()) {
    for (int stage = 0; stage < num_stages; ++stage) all_.push_back(stage);
  }

  absl::StatusOr<std::vector<Graph>> Run() {
    for (const Node& node : update_.nodes) {
      if (absl::Status status = Visit(node); !status.ok()) {
        return absl::Status(status.code(),
                            absl::StrCat("update: ", node.op.name(), " ", node.symbol, ": ", status.message()));
      }
    }
    std::vector<Graph> graphs;
    for (Part& part : parts_) graphs.push_back(part.Take(ops_));
    return graphs;
  }

 private:
  // What the stages know of a value: the whole of it on some, or a summand each on some.
  struct Known {
    StageList stages;
    bool is_split = false;
    StageList wanted_by;  // split: the stages that need the sum
  };

  ValueId ValueOn(ValueId v, int stage) { return parts_[stage].ValueOf(v); }
  StageList StagesOf(const std::string& state) const { return ListOf(stages_of_, state); }

  absl::Status Visit(const Node& node) {
    if (node.op == Op::kRead) {
      const State* state = states_.Find(node.symbol);
      if (state == nullptr) return absl::InvalidArgumentError("no such state");
      Known& known = known_[node.results[0]];
      known.stages = StagesOf(node.symbol);
      if (state->kind == StateKind::kCounter) {
        known.is_split = true;
        known.wanted_by = all_;
      } else if (state->kind == StateKind::kGradient && known.stages.size() > 1) {
        known.is_split = true;  // each stage has accumulated its own part
        known.wanted_by = known.stages;
      }
      Emit(node, known.stages);
      return absl::OkStatus();
    }
    if (node.op == Op::kStore) {
      const StageList stages = StagesOf(node.symbol);
      MakeWhole(node.operands[0], stages);
      Emit(node, stages);
      return absl::OkStatus();
    }
    if (node.op == Op::kOutput) {
      MakeWhole(node.operands[0], all_);
      Emit(node, all_);
      return absl::OkStatus();
    }
    return VisitOp(node);
  }

  absl::Status VisitOp(const Node& node) {
    bool any_split = false;
    StageList common = all_;
    for (ValueId v : node.operands) {
      any_split = any_split || known_[v].is_split;
      if (!known_[v].is_split) common = Intersection(common, known_[v].stages);
    }
    if (any_split || common.empty()) {
      TACC_ASSIGN_OR_RETURN(const bool passes, PassesSummands(node));
      if (passes) {
        EmitSummands(node);
        return absl::OkStatus();
      }
      common = all_;
      for (ValueId v : node.operands) {
        if (known_[v].is_split) MakeWhole(v, known_[v].wanted_by);
        common = Intersection(common, known_[v].stages);
      }
      if (common.empty()) {
        for (ValueId v : node.operands) MakeWhole(v, all_);
        common = all_;
      }
    }
    for (ValueId v : node.results) known_[v].stages = common;
    Emit(node, common);
    return absl::OkStatus();
  }

  // Is the sum of the results for each stage's summands the result for the sums?
  absl::StatusOr<bool> PassesSummands(const Node& node) const {
    if (node.results.size() != 1) return false;
    const OpDef& def = *ops_.Find(node.op);
    if (!def.rule) return node.operands.size() == 1;  // collectives and moves
    TACC_ASSIGN_OR_RETURN(const Rule rule, def.rule(LogicalCallOf(update_, node)));
    std::vector<int> all;
    for (size_t i = 0; i < node.operands.size(); ++i) all.push_back(static_cast<int>(i));
    return all.size() <= 2 && std::find(rule.linear_in.begin(), rule.linear_in.end(), all) != rule.linear_in.end();
  }

  void EmitSummands(const Node& node) {
    Known& result = known_[node.results[0]];
    result.is_split = true;
    StageList wanted;
    for (ValueId v : node.operands) {
      Split(v);
      wanted = Union(wanted, known_[v].wanted_by);
    }
    result.wanted_by = node.operands.size() == 1 ? wanted : all_;
    for (int stage : all_) {
      std::vector<ValueId> parts;
      for (ValueId v : node.operands) {
        if (Contains(known_[v].stages, stage)) parts.push_back(ValueOn(v, stage));
      }
      if (parts.empty()) continue;
      result.stages.push_back(stage);
      if (parts.size() == node.operands.size()) {
        Emit(node, {stage});
      } else {
        parts_[stage].Rename(node.results[0], parts[0]);  // the sum of one
      }
    }
  }

  // A whole value as summands: the first stage that has it counts.
  void Split(ValueId v) {
    Known& known = known_[v];
    if (known.is_split) return;
    known.is_split = true;
    known.wanted_by = all_;
    known.stages = {known.stages[0]};
  }

  // The value is whole on `stages` from here on.
  void MakeWhole(ValueId v, const StageList& stages) {
    Known& known = known_[v];
    if (!known.is_split && std::includes(known.stages.begin(), known.stages.end(), stages.begin(), stages.end()))
      return;
    Split(v);
    const Value value = update_.values[v];
    for (int stage : stages) {
      Part& part = parts_[stage];
      Node sum;
      if (Contains(known.stages, stage)) {
        sum.operands = {ValueOn(v, stage)};
      } else {
        Node zero;
        zero.op = Op::kConstant;
        zero.attrs = {
            {"value", 0.0}, {"dtype", std::string(Name(value.type.dtype))}, {"shape", value.placement->global.dims}};
        sum.operands = {part.AddOwn(std::move(zero), value)};
      }
      sum.op = Op::kStageSum;
      sum.attrs = {{"stages", std::vector<int64_t>(stages.begin(), stages.end())}};
      part.Rename(v, part.AddOwn(std::move(sum), value));
    }
    known.is_split = false;
    known.stages = stages;
  }

  void Emit(const Node& node, const StageList& stages) {
    for (int stage : stages) parts_[stage].Add(node);
  }

  const Graph& update_;
  const StateIndex states_;
  const OpTable& ops_;
  const std::map<std::string, std::set<int>>& stages_of_;
  std::vector<Part> parts_;  // by stage
  StageList all_;
  std::vector<Known> known_;
};

}  // namespace

absl::StatusOr<std::vector<Graph>> CutUpdate(const Graph& update, const Program& program, const OpTable& ops,
                                             const std::map<std::string, std::set<int>>& stages_of, int num_stages) {
  return UpdateCutter(update, program, ops, stages_of, num_stages).Run();
}

std::vector<Graph> CutBegin(const Graph& begin, const OpTable& ops,
                            const std::map<std::string, std::set<int>>& stages_of, int num_stages) {
  std::vector<StageList> needed_by(begin.values.size());
  std::vector<StageList> runs_on(begin.nodes.size());
  for (int i = static_cast<int>(begin.nodes.size()) - 1; i >= 0; --i) {
    const Node& node = begin.nodes[i];
    if (node.op == Op::kStore) runs_on[i] = ListOf(stages_of, node.symbol);
    for (ValueId v : node.results) runs_on[i] = Union(runs_on[i], needed_by[v]);
    for (ValueId v : node.operands) needed_by[v] = Union(needed_by[v], runs_on[i]);
  }
  std::vector<Part> parts(num_stages, Part(begin));
  for (size_t i = 0; i < begin.nodes.size(); ++i) {
    for (int stage : runs_on[i]) parts[stage].Add(begin.nodes[i]);
  }
  std::vector<Graph> graphs;
  for (Part& part : parts) graphs.push_back(part.Take(ops));
  return graphs;
}

}  // namespace tacc::graph
