// What batch norms and losses ask of a layout: statistics, and some losses, are those of all samples that are computed
// together.
#ifndef TACC_GRAPH_PLANNER_BATCH_STATISTICS_H_
#define TACC_GRAPH_PLANNER_BATCH_STATISTICS_H_

#include "absl/status/status.h"
#include "graph/ir/graph.h"
#include "graph/planner/cost/estimate.h"
#include "graph/planner/plan_request.h"
#include "graph/planner/search.h"

namespace tacc::graph {

// Asks for a step of one micro-batch where losses depend on which samples are computed together, so that every layout
// has the same losses: with batch norms unless the job says otherwise, and where the loss of a batch does not follow
// from those of its parts (output "loss" with splittable=false).
// InvalidArgument: the job asks for several parts of such a loss.
absl::Status KeepTogether(const Graph& forward, int64_t world, SearchRequest& search);

// InvalidArgument if the samples that a norm takes together, those of a micro-batch of all ranks or of one, give a
// channel one number alone, which has no variance. `one_row` is the forward of one sample.
absl::Status CheckBatchStatistics(const Graph& one_row, const PlanRequest& request, const Layout& layout);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_BATCH_STATISTICS_H_
