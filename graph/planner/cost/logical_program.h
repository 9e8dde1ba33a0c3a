#ifndef TACC_GRAPH_PLANNER_COST_LOGICAL_PROGRAM_H_
#define TACC_GRAPH_PLANNER_COST_LOGICAL_PROGRAM_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "graph/ir/graph.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"
#include "graph/passes/partition/expert_parallel.h"

namespace tacc::graph {

// The step's program up to where a layout would come in: what work is counted on.
absl::StatusOr<Program> LogicalProgram(const Graph& forward, DType compute, DType residual,
                                       const ExpertParallelOptions& experts, const OpTable& ops);

// The least extent of that name in the weights; 0 where there is none.
int64_t LeastExtent(const Program& program, absl::string_view axis);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_COST_LOGICAL_PROGRAM_H_
