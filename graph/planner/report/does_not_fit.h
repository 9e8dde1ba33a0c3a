#ifndef TACC_GRAPH_PLANNER_REPORT_DOES_NOT_FIT_H_
#define TACC_GRAPH_PLANNER_REPORT_DOES_NOT_FIT_H_

#include "absl/status/status.h"
#include "graph/planner/planner.h"

namespace tacc::graph {

// InvalidArgument for a request of which nothing fits; `smallest` is what comes nearest. The first line says what a
// worker needs and has, and what would do: the fewest such workers, and the device of which as many would. Both were
// found by search and confirmed by a plan, so a job that takes them is accepted. The lines after it, indented, say what
// the bytes are, the largest buffers, and which of the job's own settings stand in the way: only those that can save
// what is missing.
absl::Status DoesNotFit(const PlanRequest& request, const Candidate& smallest, const ForwardBuilder& model,
                        const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_REPORT_DOES_NOT_FIT_H_
