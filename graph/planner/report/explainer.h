#ifndef TACC_GRAPH_PLANNER_REPORT_EXPLAINER_H_
#define TACC_GRAPH_PLANNER_REPORT_EXPLAINER_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "graph/ir/graph.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"
#include "graph/planner/report/finalist.h"

namespace tacc::graph {

// What can be said of one stage.
class Explainer {
 public:
  Explainer(const Finalist& finalist, const OpTable& ops, int stage)
      : finalist_(finalist),
        ops_(ops),
        stage_(stage),
        program_(finalist.stages[stage]),
        mesh_(program_.mesh),
        stage_axis_(mesh_.Find(kStageAxis)) {}

  // What it is, and how it lies: alike on all stages that have it.
  std::string State(const struct State& state) const;

  // Of a state that axes split: for its use, and into the shards that rest.
  std::vector<std::string> WhyCutSo(const struct State& state) const;

  // What this stage does with the state.
  std::string UsesOf(const struct State& state) const;
  std::string Value(const Graph& graph, const Node& node, ValueId v) const;

  // A kind of collective. `told`: what was explained of another stage.
  std::string Kind(const std::string& op, std::set<std::string>& told) const;

 private:
  bool IsPipeline() const { return finalist_.stages.size() > 1; }
  std::string OfStage() const { return IsPipeline() ? absl::StrCat(" of stage ", stage_) : ""; }
  std::string Where(const Graph& graph) const { return absl::StrCat(graph.name, OfStage()); }

  // Coordinates of the stage's first rank, or its last.
  std::vector<int64_t> FirstRank() const;
  std::vector<int64_t> LastRank() const;
  void Placement(const struct Placement& placement, const char* verb, std::string& text) const;

  // What the readers of a value do with it: those that move it, and a few of the others.
  void Uses(const Graph& graph, ValueId v, std::string& text) const;

  // The operand dims from which the result's splits come.
  void WhySplit(const Graph& graph, const Node& node, std::string& text) const;

  // Back through what passes the sum on, to the op that split it.
  std::string WhyPending(const Graph& graph, ValueId v, int axis) const;

  // Why a reader of the value needs the dim whole.
  std::string WhyWhole(const Graph& graph, ValueId v, int dim, const AxisList& axes) const;

  // Why there is a collective, and between whom.
  void Group(const Graph& graph, const Node& node, std::string& text) const;
  void Collective(const Graph& graph, const Node& node, std::string& text) const;

  // The first group along the axes on these stages: its ranks, in order.
  std::vector<int64_t> GroupOf(const AxisList& axes, const std::vector<int64_t>& stages) const;
  const Span* LongestSpan(const CommunicationRow& row) const;

  const Finalist& finalist_;
  const OpTable& ops_;
  const int stage_;
  const Program& program_;
  const Mesh& mesh_;
  const int stage_axis_;  // -1: there are no stages
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_REPORT_EXPLAINER_H_
