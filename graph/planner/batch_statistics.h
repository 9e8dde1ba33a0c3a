// What batch norms ask of a layout: their statistics are those of all samples that are computed together.
#ifndef TACC_GRAPH_PLANNER_BATCH_STATISTICS_H_
#define TACC_GRAPH_PLANNER_BATCH_STATISTICS_H_

#include "absl/status/status.h"
#include "graph/ir/graph.h"
#include "graph/planner/cost/estimate.h"
#include "graph/planner/plan_request.h"

namespace tacc::graph {

// Whether losses depend on which samples are computed together. Then a step is one micro-batch unless the job says
// otherwise: so every layout has the same losses.
bool HasBatchStatistics(const Graph& forward);

// InvalidArgument if the samples that a norm takes together, those of a micro-batch of all ranks or of one, give a
// channel one number alone, which has no variance. `one_row` is the forward of one sample.
absl::Status CheckBatchStatistics(const Graph& one_row, const PlanRequest& request, const Layout& layout);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_BATCH_STATISTICS_H_
