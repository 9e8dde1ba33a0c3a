// What a job says to the planner, and what follows from it alone: before any layout is looked at.
#ifndef TACC_GRAPH_PLANNER_PLAN_REQUEST_H_
#define TACC_GRAPH_PLANNER_PLAN_REQUEST_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/ir/axis.h"
#include "graph/ir/plan.h"
#include "graph/ops/target.h"
#include "graph/passes/partition/pins.h"
#include "graph/passes/pipeline.h"
#include "graph/planner/cost/cluster.h"
#include "graph/planner/search.h"

namespace tacc::graph {

// What the job says; absent: the planner decides.
struct PlanRequest {
  TrainingOptions training;     // accumulation is the planner's
  double num_train_epochs = 0;  // in place of training.max_steps; 0: not given
  int64_t num_samples = 0;      // of the training data; 0: not known
  int64_t world = 1;            // ranks
  PerAxis<std::optional<int64_t>> sizes;
  int64_t sp = 1;  // ranks of cp that share a sequence by Ulysses, the others do in a ring
  std::optional<int64_t> num_micro_batches;
  std::optional<PipelineSchedule> schedule;
  std::optional<int64_t> num_chunks;      // of the interleaved schedule
  std::vector<std::string> split_points;  // see StageOptions
  // See ExpertParallelOptions; absent: kBufferFactor, and no layout is taken unasked in which that may be too little.
  std::optional<double> expert_buffer_factor;
  std::optional<int64_t> global_batch;
  std::optional<int64_t> micro_batch;  // per device
  std::optional<int64_t> zero_stage;   // see PartitionOptions
  Pins pins;
  std::vector<std::string> topology;  // see InTopology
  std::optional<bool> bf16;           // absent: where it is faster
  bool fp16 = false;                  // with training.loss_scale
  bool tf32 = false;                  // products of f32 in TF32; the cluster's peak of f32 is that of TF32
  DType reduce_dtype = DType::kF32;
  bool sync_batchnorm = true;                         // without, batch norms have statistics of each rank's own samples
  std::optional<DType> residual_dtype = DType::kF32;  // see CompileOptions; absent: the planner decides
  // The first N units compute their activations again in the backward.
  static constexpr int64_t kAllUnits = std::numeric_limits<int64_t>::max();
  std::optional<int64_t> recompute_units;
  // The first N units gather their weights again in the backward; the others keep them.
  std::optional<int64_t> reshard_units;
  std::optional<bool> reduce_each_micro_batch;  // see PartitionOptions
  bool may_keep_copies = true;                  // of the weights, see Plan::keeps_copies
  int64_t seq_len = 0;
  std::vector<int64_t> buckets;  // shorter lengths that batches may have too, ascending
  DeviceProfile device;
  Cluster cluster;  // of `world` such devices
};

// Samples of a step; where the job does not say, those of one micro-batch on each group of workers.
int64_t GlobalBatch(const PlanRequest& request);

// Updates of the training: what the job says, or as many as go through the data for its epochs in batches of
// `global_batch` samples, rounded up. InvalidArgument: the data says no number of samples, or the warm-up is longer.
absl::StatusOr<int64_t> MaxSteps(const PlanRequest& request, int64_t global_batch);

// Of the room that tokens find at their experts' ranks.
inline constexpr double kBufferFactor = 2;

// Memory of a rank beside the arena and the workspace, on a CPU. Idle: its libraries loaded, no program bound (VmHWM of
// tacc-rank at its `started` event, LibTorch 2.11, x86-64). Buffers: what libraries and the program take once it runs,
// batches read ahead. Staging: of collectives among the ranks of a stage, as
// worker/rank/collectives/collective_engine.h has it; messages between stages go from place to place.
inline constexpr int64_t kIdleBytes = int64_t{116} << 20;
inline constexpr int64_t kBufferBytes = int64_t{8} << 20;
inline constexpr int64_t kStagingBytes = int64_t{8} << 20;
// On a GPU: what CUDA, its libraries and NCCL hold; buffers and staging are the host's. As the workers'
// --memory-reserve, so that a GPU that a worker has probed comes without it.
inline constexpr int64_t kGpuIdleBytes = int64_t{1} << 30;
int64_t IdleBytes(const Machine& machine);
// Buffers and staging of a rank of this mesh.
int64_t BufferBytes(const Machine& machine, const Mesh& mesh);

// The type that products compute in: the job's, or bf16 where the devices are clearly faster in it.
DType Precision(const PlanRequest& request);

// The types that the residual stream may be kept in, the widest first.
std::vector<DType> Residuals(const PlanRequest& request);

// The kind of target that the device is; that of a CPU for one that is not known, as `tacc-plan check` has them.
TargetKind TargetKindOf(const DeviceProfile& device);

// Errors: InvalidArgument where the job names more layers than the model has.
absl::Status CheckLayerCounts(const PlanRequest& request, int64_t num_layers);

// What the search is to look for. `num_units`: of the model; `precision`: of products.
SearchRequest SearchRequestOf(const PlanRequest& request, int64_t num_units, DType precision);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_PLAN_REQUEST_H_
