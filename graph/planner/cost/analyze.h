#ifndef TACC_GRAPH_PLANNER_COST_ANALYZE_H_
#define TACC_GRAPH_PLANNER_COST_ANALYZE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/ir/graph.h"
#include "graph/ops/op.h"
#include "graph/passes/partition/expert_parallel.h"
#include "graph/planner/cost/work.h"

namespace tacc::graph {

// The work of a model's training step: of its logical program (mixed precision, derivatives, simplified), before any
// layout. What each dim is (batch, sequence, one of State::axes) goes from inputs and weights through the ops' rules;
// from it follows how a kernel and a value are split, and where collectives will be. Units of equal structure become
// one UnitWork. `forward` is the graph for one row; `units` are its layers; `compute`, `residual` and `experts`: see
// CompileOptions. Errors: those of building the program.
absl::StatusOr<ModelWork> AnalyzeModel(const Graph& forward, const std::vector<std::string>& units, DType compute,
                                       const OpTable& ops, DType residual = DType::kF32,
                                       const ExpertParallelOptions& experts = {});

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_COST_ANALYZE_H_
