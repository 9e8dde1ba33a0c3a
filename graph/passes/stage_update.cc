// The update of a pipeline: each stage's own parameters, and sums over stages for what needs all of them.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/passes/simplify.h"
#include "graph/passes/stages.h"

namespace tacc::graph {
namespace {

// Builds the graphs of all stages at once, so that they meet the same sums in the same order.
class UpdateCutter {
 public:
  UpdateCutter(const Graph& update, const Program& program, const OpTable& ops,
               const std::map<std::string, std::set<int>>& stages_of, int num_stages)
      : update_(update),
        program_(program),
        ops_(ops),
        stages_of_(stages_of),
        graphs_(num_stages, update),
        known_(update.values.size()) {
    for (int stage = 0; stage < num_stages; ++stage) all_.insert(stage);
    for (Graph& graph : graphs_) graph.nodes.clear();  // values keep their numbers
  }

  absl::StatusOr<std::vector<Graph>> Run() {
    for (const Node& node : update_.nodes) {
      if (absl::Status status = Visit(node); !status.ok()) {
        return absl::Status(status.code(), absl::StrCat("update: ", node.op, " ", node.symbol, ": ", status.message()));
      }
    }
    for (Graph& graph : graphs_) {
      EliminateDeadCode(graph, ops_);
      graph.CompactValues();
    }
    return std::move(graphs_);
  }

 private:
  // What the stages know of a value: the whole of it on some, or a summand each on some.
  struct Known {
    std::set<int> stages;
    bool is_split = false;
    std::set<int> wanted_by;         // split: the stages that need the sum
    std::map<int, ValueId> renamed;  // where it has another number than in the whole graph
  };

  ValueId ValueOn(ValueId v, int stage) const {
    const auto it = known_[v].renamed.find(stage);
    return it == known_[v].renamed.end() ? v : it->second;
  }

  std::set<int> StagesOf(const std::string& state) const {
    const auto it = stages_of_.find(state);
    return it == stages_of_.end() ? std::set<int>() : it->second;
  }

  absl::Status Visit(const Node& node) {
    if (node.op == "read") {
      const State* state = program_.FindState(node.symbol);
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
    if (node.op == "store") {
      const std::set<int> stages = StagesOf(node.symbol);
      MakeWhole(node.operands[0], stages);
      Emit(node, stages);
      return absl::OkStatus();
    }
    if (node.op == "output") {
      MakeWhole(node.operands[0], all_);
      Emit(node, all_);
      return absl::OkStatus();
    }
    return VisitOp(node);
  }

  absl::Status VisitOp(const Node& node) {
    bool any_split = false;
    std::set<int> common = all_;
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
    std::set<int> wanted;
    for (ValueId v : node.operands) {
      Split(v);
      wanted.insert(known_[v].wanted_by.begin(), known_[v].wanted_by.end());
    }
    result.wanted_by = node.operands.size() == 1 ? wanted : all_;
    for (int stage : all_) {
      std::vector<ValueId> parts;
      for (ValueId v : node.operands) {
        if (known_[v].stages.count(stage) > 0) parts.push_back(ValueOn(v, stage));
      }
      if (parts.empty()) continue;
      result.stages.insert(stage);
      if (parts.size() == node.operands.size()) {
        Emit(node, {stage});
      } else {
        result.renamed[stage] = parts[0];  // the sum of one
      }
    }
  }

  // A whole value as summands: the first stage that has it counts.
  void Split(ValueId v) {
    Known& known = known_[v];
    if (known.is_split) return;
    known.is_split = true;
    known.wanted_by = all_;
    known.stages = {*known.stages.begin()};
  }

  // The value is whole on `stages` from here on.
  void MakeWhole(ValueId v, const std::set<int>& stages) {
    Known& known = known_[v];
    if (!known.is_split && std::includes(known.stages.begin(), known.stages.end(), stages.begin(), stages.end()))
      return;
    Split(v);
    const Value value = update_.values[v];
    for (int stage : stages) {
      Graph& graph = graphs_[stage];
      const auto add = [&](Node node) {
        node.results = {graph.AddValue(value.name, value.type)};
        graph.values.back().placement = value.placement;
        graph.nodes.push_back(std::move(node));
        return graph.nodes.back().results[0];
      };
      Node sum;
      if (known.stages.count(stage) > 0) {
        sum.operands = {ValueOn(v, stage)};
      } else {
        Node zero;
        zero.op = "constant";
        zero.attrs = {
            {"value", 0.0}, {"dtype", std::string(Name(value.type.dtype))}, {"shape", value.placement->global.dims}};
        sum.operands = {add(std::move(zero))};
      }
      sum.op = "stage_sum";
      sum.attrs = {{"stages", std::vector<int64_t>(stages.begin(), stages.end())}};
      known.renamed[stage] = add(std::move(sum));
    }
    known.is_split = false;
    known.stages = stages;
  }

  void Emit(const Node& node, const std::set<int>& stages) {
    for (int stage : stages) {
      Node own = node;
      for (ValueId& v : own.operands) v = ValueOn(v, stage);
      graphs_[stage].nodes.push_back(std::move(own));
    }
  }

  static std::set<int> Intersection(const std::set<int>& a, const std::set<int>& b) {
    std::set<int> both;
    std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(both, both.end()));
    return both;
  }

  const Graph& update_;
  const Program& program_;
  const OpTable& ops_;
  const std::map<std::string, std::set<int>>& stages_of_;
  std::vector<Graph> graphs_;
  std::set<int> all_;
  std::vector<Known> known_;
};

}  // namespace

absl::StatusOr<std::vector<Graph>> CutUpdate(const Graph& update, const Program& program, const OpTable& ops,
                                             const std::map<std::string, std::set<int>>& stages_of, int num_stages) {
  return UpdateCutter(update, program, ops, stages_of, num_stages).Run();
}

}  // namespace tacc::graph
