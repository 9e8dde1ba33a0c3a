#ifndef TACC_GRAPH_PLANNER_FINALISTS_H_
#define TACC_GRAPH_PLANNER_FINALISTS_H_

#include <vector>

#include "graph/ir/plan.h"
#include "graph/planner/cluster.h"
#include "graph/planner/estimate.h"
#include "graph/planner/work.h"

namespace tacc::graph {

// A plan as the estimate sees it: tp and tpq are one axis there.
Layout LayoutOfPlan(const Plan& plan);

// How tacc's own programs run in that type: where ranks share the cores that compute (a cluster of CPUs, which has no
// issue time), traffic hides behind nothing.
Execution ExecutionOf(const Machine& machine, DType compute);

// The `limit` plans that are worth compiling, for exact bytes and a simulated step: by estimates, the fastest of those
// that fit with a tenth of the memory to spare, then those that may fit, then the smallest; and always the smallest of
// all. In the order of `plans`, all of them where they are no more than the limit.
std::vector<Plan> Finalists(const ModelWork& model, const Cluster& cluster, std::vector<Plan> plans, size_t limit);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_FINALISTS_H_
