// The compiler: its options, the list of its passes, and what it leaves.
#ifndef TACC_GRAPH_PASSES_PIPELINE_H_
#define TACC_GRAPH_PASSES_PIPELINE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"
#include "graph/passes/memory/plan_memory.h"
#include "graph/passes/memory/schedule.h"
#include "graph/passes/partition/expert_parallel.h"
#include "graph/passes/partition/partition.h"
#include "graph/passes/pass.h"
#include "graph/passes/rewrite/join_products.h"
#include "graph/passes/stages/stages.h"
#include "graph/passes/training/build_training.h"
#include "graph/passes/training/remat.h"
#include "graph/targets/targets.h"

namespace tacc::graph {

// Everything that decides a compilation.
struct CompileOptions {
  TrainingOptions training;
  DType compute_dtype = DType::kF32;  // of matrix products and attention
  ExpertParallelOptions experts;
  RematOptions remat;
  DType residual_dtype = DType::kF32;  // of what the backward keeps of the residual stream, where that is wider
  // Blocks of the ring over which context parallelism lays out the sequence; 1: none but Ulysses; 0: no order.
  int64_t sequence_blocks = 0;
  PartitionOptions partition;
  NodeSeconds product_seconds;  // what decides join-products; empty: products stay apart, as on CPUs
  StageOptions stages;          // with a mesh that has an axis pp
  ScheduleOptions schedule;
  std::shared_ptr<const Target> target = CpuTarget().make({});
  std::shared_ptr<const StatePlaces> places;  // of the states, as another program has them; null: where there is room
};

// One run of a pass. Valid while after_pass is told of it.
struct PassRun {
  int index = 0;  // counts the passes that have run
  const Pass& pass;
  bool changed = false;
  double seconds = 0;  // verification included
};

// Looks on while passes run.
struct PipelineObserver {
  // The programs that are verified: the one that comes in, and what each pass makes of it; or only the first, for a
  // planner that compiles many candidates to throw them away.
  enum class Verification { kEachPass, kInput } verification = Verification::kEachPass;
  // After each pass: dumps, timing.
  std::function<void(const PassRun& run, const std::vector<Program>& stages)> after_pass;
};

// The way from a forward graph (a logical program whose only graph is `forward`) to a planned program: every pass, in
// order, enabled or not; `tacc-opt --list-passes` prints it. The passes hold copies of the options. plan-memory appends
// what it finds, of each stage, to `memory`, which must outlive them: threads that compile need passes of their own.
std::vector<Pass> BuildPipeline(const CompileOptions& options, std::vector<MemoryUse>* memory);

// Verifies the programs and runs the passes that are enabled, verifying after each that changed something. Errors carry
// the pass's name; Internal: a pass made a program that does not verify. After an error `stages` are of no use.
absl::Status RunPipeline(const std::vector<Pass>& passes, const OpTable& ops, const PipelineObserver& observer,
                         std::vector<Program>& stages);

// A program for each stage, and what it needs; one without a pipeline.
struct Compiled {
  std::vector<Program> stages;
  std::vector<MemoryUse> memory;
};
// The whole way at once. Errors: as RunPipeline.
absl::StatusOr<Compiled> Compile(const Graph& forward, const OpTable& ops, const CompileOptions& options,
                                 const PipelineObserver& observer = {});

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_PIPELINE_H_
