#ifndef TACC_GRAPH_IR_PLAN_H_
#define TACC_GRAPH_IR_PLAN_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "graph/ir/sharding.h"
#include "graph/ir/type.h"

namespace tacc::graph {

// How a job runs: what the planner decided and what it predicts. Text form: "tacc.plan 1" and a `key value` line each,
// in this order; PrintPlan(ParsePlan(t)) == t.
struct Plan {
  Mesh mesh;  // axes pp, dp, fsdp, ep, cp, sp, tp, tpq; those of size 1 may be missing
  DType compute_dtype = DType::kF32;
  int64_t seq_len = 0;          // tokens a sample
  int64_t micro_batch = 0;      // samples a device and call
  int64_t accumulation = 1;     // micro-batches a step
  int64_t threads = 1;          // of a rank
  int64_t prefetch_units = 1;   // units that a gather starts ahead of its use
  int64_t zero_stage = 3;       // what fsdp shards: 1: optimizer states; 2: gradients too; 3: weights too
  int64_t kept_units = 0;       // the last N units keep the weights gathered in the forward for their backward
  int64_t recompute_units = 0;  // the first N units (layers) compute their activations again in the backward
  int64_t total_bytes = 0;      // predicted memory of a rank
  double step_seconds = 0;      // predicted

  int64_t num_ranks() const { return mesh.num_ranks(); }
  // Ranks that different samples go to.
  int64_t num_data_ranks() const {
    int64_t ranks = 1;
    for (const Mesh::Axis& axis : mesh.axes) {
      if (axis.name == "dp" || axis.name == "fsdp" || axis.name == "ep") ranks *= axis.size;
    }
    return ranks;
  }
  int64_t global_batch() const { return micro_batch * num_data_ranks() * accumulation; }
  bool operator==(const Plan&) const = default;
};

std::string PrintPlan(const Plan& plan);
// Errors: InvalidArgument "plan line N: ...".
absl::StatusOr<Plan> ParsePlan(absl::string_view text);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_PLAN_H_
