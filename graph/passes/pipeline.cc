#include "graph/passes/pipeline.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/passes/partition/order_sequence.h"
#include "graph/passes/rewrite/combine_squares.h"
#include "graph/passes/rewrite/fuse.h"
#include "graph/passes/rewrite/fuse_gates.h"
#include "graph/passes/rewrite/simplify.h"
#include "graph/passes/stages/separate_messages.h"
#include "graph/passes/training/mixed_precision.h"
#include "graph/passes/training/narrow_residual.h"
#include "graph/verify/verify.h"

namespace tacc::graph {

std::vector<Pass> BuildPipeline(const CompileOptions& options, std::vector<MemoryUse>* memory) {
  const bool always = true, narrow = options.compute_dtype != DType::kF32;
  const bool narrow_stream = options.residual_dtype != DType::kF32, blocks = options.sequence_blocks > 0;
  const bool narrow_sums = options.partition.reduce_dtype != DType::kF32, experts = options.experts.ranks > 1;
  const bool staged = options.partition.mesh.Find(kStageAxis) >= 0, join = options.product_seconds != nullptr;
  TrainingOptions training = options.training;
  // Where masters are sharded and weights in use are not, the copies are what is used.
  training.keep_copies |= options.partition.zero_stage < 3;
  const auto fold_casts = [](bool when) {
    return Pass("fold-casts", "let an op write the type it is cast to", when, FoldCasts);
  };
  const auto cse = [](bool when) {
    return Pass("cse", "merge nodes that compute the same", when, EliminateCommonSubexpressions);
  };
  const auto dce = [](bool when) { return Pass("dce", "remove what nobody reads", when, EliminateDeadCode); };
  return {
      {"mixed-precision", "give products a narrower type", narrow, MixedPrecision, options.compute_dtype},
      fold_casts(narrow),
      {"fuse-gates", "make one op of a gate's activation and product", always, FuseGates},
      {"expert-parallel", "send tokens to the ranks with experts", experts, ExpertParallel, options.experts},
      {"build-training", "add the backward, the optimizer's update and evaluation", always, BuildTraining, training},
      fold_casts(always),
      {"concat-pads", "make one concat of a sum of pads", always, ConcatenatePads},
      cse(always),
      dce(always),
      {"remat", "compute units' activations again in the backward", always, Rematerialize, options.remat},
      {"narrow-residual", "keep a narrower residual stream", narrow_stream, NarrowResidual, options.residual_dtype},
      {"order-sequence", "deal the sequence out to a ring", blocks, OrderSequence, options.sequence_blocks},
      {"partition", "make the program each rank's own, with collectives", always, Partition, options.partition},
      fold_casts(narrow_sums),
      cse(staged),
      dce(staged),
      {"join-products", "make one product of those that share an operand", join, JoinProducts, options.product_seconds},
      {"stages", "cut the program into one for each stage of a pipeline", staged, CutStages, options.stages},
      {"fuse-accumulation", "let a product add to a bias or an accumulator", always, FuseAccumulation},
      {"combine-squares", "sum the squares of all gradients at once", always, CombineSquares},
      {"fuse-channels", "make one kernel of a batch norm's gradient", always, FuseChannels},
      {"fuse-norms", "make one kernel of a residual's add and its norm", always, FuseNorms},
      cse(always),
      dce(always),
      {"schedule", "start collectives early, free weights when a unit ends", always, Schedule, options.schedule},
      {"separate-messages", "keep collectives and messages apart", staged, SeparateMessages},
      {"plan-memory", "give each state and value its place", always, PlanMemory, options.target, options.places,
       memory},
  };
}

absl::Status RunPipeline(const std::vector<Pass>& passes, const OpTable& ops, const PipelineObserver& observer,
                         std::vector<Program>& stages) {
  TACC_RETURN_IF_ERROR(VerifyStages(stages, ops));
  int index = 0;
  for (const Pass& pass : passes) {
    if (!pass.enabled) continue;
    const auto start = std::chrono::steady_clock::now();
    const absl::StatusOr<bool> changed = pass.run(stages, ops);
    if (!changed.ok()) {
      return absl::Status(changed.status().code(), absl::StrCat(pass.name, ": ", changed.status().message()));
    }
    if (*changed && observer.verification == PipelineObserver::Verification::kEachPass) {
      if (const absl::Status status = VerifyStages(stages, ops); !status.ok()) {
        return absl::InternalError(absl::StrCat("after ", pass.name, ": ", status.message()));
      }
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (observer.after_pass) observer.after_pass({index, pass, *changed, seconds}, stages);
    ++index;
  }
  return absl::OkStatus();
}

absl::StatusOr<Compiled> Compile(const Graph& forward, const OpTable& ops, const CompileOptions& options,
                                 const PipelineObserver& observer) {
  Compiled compiled;
  compiled.stages.resize(1);
  compiled.stages[0].graphs = {forward};
  TACC_RETURN_IF_ERROR(RunPipeline(BuildPipeline(options, &compiled.memory), ops, observer, compiled.stages));
  return compiled;
}

}  // namespace tacc::graph
