#ifndef TACC_GRAPH_PASSES_PIPELINE_H_
#define TACC_GRAPH_PASSES_PIPELINE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"
#include "graph/passes/memory/plan_memory.h"
#include "graph/passes/memory/schedule.h"
#include "graph/passes/partition/expert_parallel.h"
#include "graph/passes/partition/partition.h"
#include "graph/passes/rewrite/join_products.h"
#include "graph/passes/stages/stages.h"
#include "graph/passes/training/build_training.h"
#include "graph/passes/training/remat.h"

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
  Target target;
};

// One step of a pipeline: a name (kebab case, as in tacc-opt --passes) and what it does to the programs: one until
// `stages` has made one of each stage.
struct Step {
  std::string name;
  std::function<absl::Status(std::vector<Program>&)> run;
};

// What to do around each step.
struct PipelineObserver {
  // What is verified: the program that comes in, and what each step makes of it; or only the first, for a planner that
  // compiles many candidates to throw them away.
  enum class Verification { kEachStep, kInput } verification = Verification::kEachStep;
  // After each step, with its index: dumps, timing.
  std::function<void(int index, const Step& step, double seconds, const std::vector<Program>& stages)> after_step;
};

// The way from a forward graph (a logical program whose only graph is `forward`) to a planned program, as a table of
// contents:
//   mixed-precision, expert-parallel, build-training, fold-casts, concat-pads, cse, dce, remat, narrow-residual,
//   order-sequence, partition, join-products, stages, fuse-accumulation, combine-squares, fuse-norms, cse, dce,
//   schedule, plan-memory
// `memory` receives what plan-memory found, of each stage. All references must outlive the steps.
std::vector<Step> BuildPipeline(const CompileOptions& options, const OpTable& ops, std::vector<MemoryUse>* memory);

// Verifies the programs and runs the steps, verifying after each. Errors carry the step's name; Internal: a step made a
// program that does not verify.
absl::Status RunPipeline(const std::vector<Step>& steps, const OpTable& ops, const PipelineObserver& observer,
                         std::vector<Program>& stages);

// The whole way at once: a program for each stage, and what it needs; one without a pipeline.
struct Compiled {
  std::vector<Program> stages;
  std::vector<MemoryUse> memory;
};
absl::StatusOr<Compiled> Compile(const Graph& forward, const OpTable& ops, const CompileOptions& options,
                                 const PipelineObserver& observer = {});

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_PIPELINE_H_
