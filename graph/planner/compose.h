#ifndef TACC_GRAPH_PLANNER_COMPOSE_H_
#define TACC_GRAPH_PLANNER_COMPOSE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/ir/graph.h"
#include "graph/planner/planner.h"

namespace tacc::graph {

// The forward graph with only the first `keep` of its layers `units`: what read the last layer's values reads those of
// layer keep - 1. Errors: FailedPrecondition when the layers are not a chain of equal ones.
absl::StatusOr<Graph> KeepLayers(const Graph& forward, const std::vector<std::string>& units, size_t keep);

// Memory of a rank under the plan, put together from the real memory plans of the same model with two and with three
// layers: every further layer adds what the third did. Takes time that does not grow with the layers. Within 1 % of the
// plan of the whole model (compose_test). A model of at most three layers, or one whose layers differ, is compiled
// whole. Errors: those of CompilePlan.
absl::StatusOr<MemoryUse> ComposeMemory(const PlanRequest& request, const Plan& plan, const ForwardModel& model,
                                        const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_COMPOSE_H_
