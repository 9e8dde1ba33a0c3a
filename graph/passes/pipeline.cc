#include "graph/passes/pipeline.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/passes/partition/order_sequence.h"
#include "graph/passes/rewrite/combine_squares.h"
#include "graph/passes/rewrite/fuse.h"
#include "graph/passes/rewrite/simplify.h"
#include "graph/passes/stages/separate_messages.h"
#include "graph/passes/training/mixed_precision.h"
#include "graph/passes/training/narrow_residual.h"
#include "graph/verify/verify.h"

namespace tacc::graph {
namespace {

Step ForEachProgram(std::string name, std::function<absl::Status(Program&)> run) {
  return {std::move(name), [run = std::move(run)](std::vector<Program>& stages) {
            for (Program& program : stages) TACC_RETURN_IF_ERROR(run(program));
            return absl::OkStatus();
          }};
}

Step ForEachGraph(std::string name, std::function<void(Graph&)> run) {
  return ForEachProgram(std::move(name), [run = std::move(run)](Program& program) {
    for (Graph& graph : program.graphs) run(graph);
    return absl::OkStatus();
  });
}

}  // namespace

std::vector<Step> BuildPipeline(const CompileOptions& options, const OpTable& ops, std::vector<MemoryUse>* memory) {
  const Step cse = ForEachGraph("cse", [&ops](Graph& graph) { EliminateCommonSubexpressions(graph, ops); });
  const Step dce = ForEachGraph("dce", [&ops](Graph& graph) { EliminateDeadCode(graph, ops); });
  std::vector<Step> steps;
  if (options.compute_dtype != DType::kF32) {
    steps.push_back(ForEachProgram("mixed-precision", [&](Program& program) -> absl::Status {
      TACC_ASSIGN_OR_RETURN(program.graphs[0], MixedPrecision(program.graphs[0], ops, options.compute_dtype));
      return absl::OkStatus();
    }));
    steps.push_back(ForEachGraph("fold-casts", [&ops](Graph& graph) { FoldCasts(graph, ops); }));
  }
  if (options.experts.ranks > 1) {
    steps.push_back(ForEachProgram("expert-parallel", [&](Program& program) -> absl::Status {
      TACC_ASSIGN_OR_RETURN(program.graphs[0], ExpertParallel(program.graphs[0], ops, options.experts));
      return absl::OkStatus();
    }));
  }
  steps.push_back(ForEachProgram("build-training", [&](Program& program) -> absl::Status {
    TrainingOptions training = options.training;
    // Where masters are sharded and weights in use are not, the copies are what is used.
    training.keep_copies |= options.partition.zero_stage < 3;
    TACC_ASSIGN_OR_RETURN(program, BuildTraining(program.graphs[0], ops, training));
    return absl::OkStatus();
  }));
  steps.push_back(ForEachGraph("fold-casts", [&ops](Graph& graph) { FoldCasts(graph, ops); }));
  steps.push_back(ForEachGraph("concat-pads", [](Graph& graph) { ConcatenatePads(graph); }));
  steps.push_back(cse);
  steps.push_back(dce);
  steps.push_back(ForEachProgram("remat", [&](Program& program) {
    Rematerialize(program, options.remat);
    return absl::OkStatus();
  }));
  if (options.residual_dtype != DType::kF32) {
    steps.push_back(ForEachProgram("narrow-residual", [&](Program& program) {
      NarrowResidual(program, options.residual_dtype);
      return absl::OkStatus();
    }));
  }
  if (options.sequence_blocks > 0) {
    steps.push_back(ForEachProgram(
        "order-sequence", [&](Program& program) { return OrderSequence(program, ops, options.sequence_blocks); }));
  }
  steps.push_back(ForEachProgram("partition", [&](Program& program) -> absl::Status {
    TACC_ASSIGN_OR_RETURN(program, Partition(program, ops, options.partition));
    return absl::OkStatus();
  }));
  if (options.partition.reduce_dtype != DType::kF32) {
    steps.push_back(ForEachGraph("fold-casts", [&ops](Graph& graph) { FoldCasts(graph, ops); }));
  }
  if (options.partition.mesh.Find(kStageAxis) >= 0) {
    steps.push_back(cse);
    steps.push_back(dce);
  }
  if (options.product_seconds) {
    steps.push_back(ForEachProgram("join-products", [&](Program& program) {
      for (Graph& graph : program.graphs) JoinProducts(graph, program.mesh, options.product_seconds);
      return absl::OkStatus();
    }));
  }
  if (options.partition.mesh.Find(kStageAxis) >= 0) {
    steps.push_back({"stages", [&](std::vector<Program>& stages) -> absl::Status {
                       TACC_ASSIGN_OR_RETURN(stages, CutStages(stages[0], ops, options.stages));
                       return absl::OkStatus();
                     }});
  }
  steps.push_back(ForEachGraph("fuse-accumulation", [](Graph& graph) { FuseAccumulation(graph); }));
  steps.push_back(ForEachProgram("combine-squares", [](Program& program) {
    for (Graph& graph : program.graphs) CombineSquares(graph, program.mesh);
    return absl::OkStatus();
  }));
  steps.push_back(ForEachGraph("fuse-norms", [](Graph& graph) { FuseNorms(graph); }));
  steps.push_back(cse);
  steps.push_back(dce);
  steps.push_back(
      ForEachProgram("schedule", [&](Program& program) { return Schedule(program, ops, options.schedule); }));
  if (options.partition.mesh.Find(kStageAxis) >= 0) {
    steps.push_back(ForEachGraph("separate-messages", [&ops](Graph& graph) { SeparateMessages(graph, ops); }));
  }
  steps.push_back({"plan-memory", [&options, &ops, memory](std::vector<Program>& stages) -> absl::Status {
                     memory->clear();
                     for (Program& program : stages) {
                       TACC_ASSIGN_OR_RETURN(MemoryUse use, PlanMemory(program, ops, options.target));
                       memory->push_back(std::move(use));
                     }
                     return absl::OkStatus();
                   }});
  return steps;
}

absl::Status RunPipeline(const std::vector<Step>& steps, const OpTable& ops, const PipelineObserver& observer,
                         std::vector<Program>& stages) {
  TACC_RETURN_IF_ERROR(VerifyStages(stages, ops));
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto start = std::chrono::steady_clock::now();
    if (absl::Status status = steps[i].run(stages); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(steps[i].name, ": ", status.message()));
    }
    const bool verify = observer.verification == PipelineObserver::Verification::kEachStep;
    if (absl::Status status = verify ? VerifyStages(stages, ops) : absl::OkStatus(); !status.ok()) {
      return absl::InternalError(absl::StrCat("after ", steps[i].name, ": ", status.message()));
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (observer.after_step) observer.after_step(static_cast<int>(i), steps[i], seconds, stages);
  }
  return absl::OkStatus();
}

absl::StatusOr<Compiled> Compile(const Graph& forward, const OpTable& ops, const CompileOptions& options,
                                 const PipelineObserver& observer) {
  Compiled compiled;
  compiled.stages.resize(1);
  compiled.stages[0].graphs = {forward};
  TACC_RETURN_IF_ERROR(RunPipeline(BuildPipeline(options, ops, &compiled.memory), ops, observer, compiled.stages));
  return compiled;
}

}  // namespace tacc::graph
