// Seconds and memory of a step of a layout, estimated without making its programs.
#ifndef TACC_GRAPH_PLANNER_COST_ESTIMATE_H_
#define TACC_GRAPH_PLANNER_COST_ESTIMATE_H_

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graph/ir/axis.h"
#include "graph/ir/plan.h"
#include "graph/ir/sharding.h"
#include "graph/planner/cost/cluster.h"
#include "graph/planner/cost/work.h"

namespace tacc::graph {

// How a model is laid out and run.
struct Layout {
  AxisSizes sizes;           // of a job's axes
  int64_t micro_batch = 1;   // samples of a rank and call
  int64_t accumulation = 1;  // micro-batches of a step
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int64_t chunks = 1;      // parts of the model on each stage (interleaved)
  int64_t zero_stage = 3;  // what fsdp and cp shard: 1: optimizer states; 2: gradients too; 3: weights too
  // With zero_stage 3: gradients are sharded, and reduced for each micro-batch; else whole, and reduced once a step.
  bool reduce_each_micro_batch = true;
  bool recompute = false;  // every unit's forward runs again before its backward; only its input is kept
  bool reshard = true;     // gathered weights are dropped after the forward and gathered again

  // The axes on the mesh, major to minor.
  std::array<Axis, kJobAxes.size()> order = kJobAxes;

  int64_t num_ranks() const { return sizes.product(); }
  int64_t batch_ranks() const { return sizes.ProductOf(&AxisFacts::splits_samples); }
  // Ranks that may shard a parameter: cp's have other tokens of the same samples, and use the same weights.
  int64_t shards() const { return sizes.ProductOf(&AxisFacts::splits_states); }
  bool shards_gradients() const { return zero_stage == 2 || (zero_stage == 3 && reduce_each_micro_batch); }
  int64_t global_batch() const { return micro_batch * batch_ranks() * accumulation; }
  Mesh mesh() const;
  std::string ToString() const;  // "pp=2 dp=4 tp=8, micro-batch 1 x 16, 1f1b, gc"; axes of size 1 left out
  bool operator==(const Layout&) const = default;
};

// Facts of the program that runs: tacc's by default; bench/published describes those of others.
struct Execution {
  DType compute = DType::kBF16;
  bool sequence_sharded = true;    // norms and residuals are split over tp
  bool optimizer_sharded = false;  // over dp too (ZeRO-1)
  double overlap_data = 1;  // share of the traffic of weights and gradients that compute hides, where there is compute
  bool hides_replica_sums = true;  // of a step's gradients: beside its last backward; else they come before the update
  double overlap_tensor = 0;       // of tp traffic
  double overlap_sends = 1;        // of pipeline sends
  double send_share_of_tp = 1;     // 1: each tp rank sends its part of a stage's output; 0: each sends all of it
  double gradient_bytes = 4;       // an element, when reduced
  bool sums_widen = false;         // gradients: narrow ones into f32, which the ranks themselves sum, not a library
  double weight_bytes = 2;         // an element, when gathered
  bool even_stages = false;        // as many layers on each; else what is beside the layers counts too
  bool issues_ahead = false;   // the host runs ahead of the device: issue hides behind all that a unit computes; else
                               // kernels start one after the other, each after its own issue
  double optimizer_bytes = 8;  // an element: the states that the optimizer keeps
  double update_traffic_bytes = 30;  // an element: what the optimizer reads and writes
  double micro_batch_seconds = 0;    // of a stage, in which nothing runs: an eager program's host between micro-batches
  bool keeps_copies = false;     // weights in the compute type lie beside the masters; else they are cast where used
  bool keeps_gradients = false;  // also with one micro-batch a step; else they take the place of used activations
};

// How tacc's own programs run in that type, with gradients summed in `reduce` (f32 or bf16): where ranks share the
// cores that compute (a cluster of CPUs, which has no issue time), traffic hides behind nothing.
Execution ExecutionOf(const Machine& machine, DType compute, DType reduce = DType::kF32);

// Where the seconds of a step go, on the slowest stage; they add up to `seconds`.
struct StepEstimate {
  double seconds = 0;
  double compute = 0;    // kernels, or the host that issues them where that is slower; recomputation and what the host
                         // takes between micro-batches included
  double recompute = 0;  // of compute: the repeated forwards
  double tensor = 0, context = 0, expert = 0, data = 0, sends = 0;  // exposed communication
  double imbalance = 0;                                             // waiting for the slowest stage
  double bubble = 0;  // filling and draining the pipeline, and waiting for messages
  double update = 0;
  double communication() const { return tensor + context + expert + data + sends; }
};
StepEstimate EstimateStep(const ModelWork& model, const Cluster& cluster, const Layout& layout,
                          const Execution& execution);

// Bytes of the fullest rank, by kind, without IdleBytes and BufferBytes.
struct MemoryEstimate {
  double weights = 0;  // fp32 masters
  double copies = 0;   // in the compute type, and weights gathered for use
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;  // kept from forward to backward, times the micro-batches in flight
  double temporaries = 0;
  double total() const { return weights + copies + gradients + optimizer + activations + temporaries; }
};
MemoryEstimate EstimateMemory(const ModelWork& model, const Layout& layout, const Execution& execution);

// "128.0 GiB of 74.5 GiB: weights ..., ...": why the memory is not enough.
std::string DescribeMemory(const MemoryEstimate& memory);
// The parts of a step's seconds with their names: they add up to it.
std::vector<std::pair<const char*, double>> PartsOf(const StepEstimate& step);
// "compute 71.2 % (recomputed 17.1 %), tensor 8.0 %, bubble 4.1 %, ...": parts of at least 0.05 % of the step.
std::string DescribeStep(const StepEstimate& step);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_COST_ESTIMATE_H_
