// The plan of a job: its layout and schedule, which all stages share.
#ifndef TACC_GRAPH_IR_PLAN_H_
#define TACC_GRAPH_IR_PLAN_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "graph/ir/axis.h"
#include "graph/ir/sharding.h"
#include "graph/ir/type.h"

namespace tacc::graph {

// The order in which a pipeline's stages work on micro-batches.
// Sources: 1F1B and interleaved: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
// Megatron-LM", 2021, section 2.2. Zero-bubble (ZB-H1): Qi et al., "Zero Bubble Pipeline Parallelism", 2023, section 2.
enum class PipelineSchedule {
  k1F1B,         // one forward, one backward; stage s holds at most P - s micro-batches
  kInterleaved,  // 1F1B over several chunks of the model a rank: a smaller bubble, more messages
  kZeroBubble,   // 1F1B with the weights' gradients apart: they fill what the bubble was, at the memory of 1F1B
};
absl::string_view Name(PipelineSchedule schedule);  // "1f1b", "interleaved", "zero_bubble"
// Errors: InvalidArgument with the names.
absl::StatusOr<PipelineSchedule> ParsePipelineSchedule(absl::string_view name);

// How a job runs: the planner's decisions and predictions. The text form is "tacc.plan 1" and one `key value` line for
// each field, in this order; PrintPlan(ParsePlan(t)) == t for printed t.
struct Plan {
  Mesh mesh;  // axes of the table in axis.h; those of size 1 may be missing
  DType compute_dtype = DType::kF32;
  DType residual_dtype = DType::kF32;  // what the backward keeps of the residual stream, see CompileOptions
  int64_t seq_len = 0;                 // tokens a sample
  int64_t micro_batch = 0;             // samples a device and call
  int64_t accumulation = 1;            // micro-batches a step
  // On a mesh with pp: the order of micro-batches, and the parts of the model that a rank has (interleaved).
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int64_t num_chunks = 1;
  int64_t threads = 1;         // threads of a rank
  int64_t prefetch_units = 1;  // units that a gather starts ahead of its use
  int64_t zero_stage = 3;      // what fsdp shards: 1: optimizer states; 2: gradients too; 3: weights too
  // 1, with zero_stage 3: fsdp shards gradients, each micro-batch's are reduced; 0: once a step
  int64_t reduce_each_micro_batch = 1;
  int64_t keeps_copies = 0;     // 1: the update writes copies of the weights in compute_dtype, also with zero_stage 3
  int64_t kept_units = 0;       // the last N units keep the weights gathered in the forward for their backward
  int64_t recompute_units = 0;  // the first N units (layers) compute their activations again in the backward
  int64_t total_bytes = 0;      // predicted memory of a rank
  double step_seconds = 0;      // predicted

  int64_t num_ranks() const { return mesh.num_ranks(); }
  // Ranks that get samples of their own.
  int64_t num_data_ranks() const {
    int64_t ranks = 1;
    for (const Mesh::Axis& axis : mesh.axes) {
      if (const AxisFacts* facts = FindAxis(axis.name); facts != nullptr && facts->splits_samples) ranks *= axis.size;
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
