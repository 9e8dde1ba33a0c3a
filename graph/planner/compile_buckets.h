// The programs of a job whose batches have several lengths (data.client.buckets): one plan, one compilation a length.
#ifndef TACC_GRAPH_PLANNER_COMPILE_BUCKETS_H_
#define TACC_GRAPH_PLANNER_COMPILE_BUCKETS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"
#include "graph/planner/plan_request.h"
#include "graph/planner/planner.h"

namespace tacc::graph {

// The programs for batches of one length.
struct Bucket {
  int64_t seq_len = 0;
  double model_flops = 0;  // of a step of such batches
  double seconds = 0;      // that compiling took
  std::vector<Program> stages;
};

// Errors: InvalidArgument when the job has buckets, and its model has one length or cannot be built for one of them.
absl::Status CheckBuckets(const PlanRequest& request, const ForwardBuilder& model, const OpTable& ops);

// Compiles the candidate for each of the request's shorter lengths. The states lie as in `longest`, the candidate's
// programs, so that a rank may run each on the memory of that. Errors: as CheckBuckets, and of the passes.
absl::StatusOr<std::vector<Bucket>> CompileBuckets(const PlanRequest& request, const Candidate& candidate,
                                                   const std::vector<Program>& longest, const ForwardBuilder& model,
                                                   const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_COMPILE_BUCKETS_H_
