#ifndef TACC_GRAPH_PLANNER_COMPILE_PLAN_H_
#define TACC_GRAPH_PLANNER_COMPILE_PLAN_H_

#include <memory>

#include "absl/status/statusor.h"
#include "graph/ir/plan.h"
#include "graph/ops/op.h"
#include "graph/passes/pipeline.h"
#include "graph/planner/plan_request.h"
#include "graph/planner/planner.h"

namespace tacc::graph {

// The programs of a candidate (planner.h), one a stage. Errors: of the request and of the passes.
// `places`: see CompileOptions.
absl::StatusOr<Compiled> CompilePlan(const PlanRequest& request, const Plan& plan, const ForwardModel& model,
                                     const OpTable& ops, const PipelineObserver& observer = {},
                                     std::shared_ptr<const StatePlaces> places = nullptr);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_COMPILE_PLAN_H_
