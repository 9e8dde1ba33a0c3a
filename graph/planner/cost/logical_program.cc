#include "graph/planner/cost/logical_program.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "graph/ir/status_macros.h"
#include "graph/passes/pipeline.h"

namespace tacc::graph {

absl::StatusOr<Program> LogicalProgram(const Graph& forward, DType compute, DType residual,
                                       const ExpertParallelOptions& experts, const OpTable& ops) {
  CompileOptions options;
  options.experts = experts;
  options.compute_dtype = compute;
  options.residual_dtype = residual;
  std::vector<MemoryUse> memory;
  std::vector<Pass> passes = BuildPipeline(options, &memory);
  passes.erase(std::find_if(passes.begin(), passes.end(), [](const Pass& pass) { return pass.name == "partition"; }),
               passes.end());
  PipelineObserver observer;
  observer.verification = PipelineObserver::Verification::kInput;
  std::vector<Program> stages(1);
  stages[0].graphs = {forward};
  TACC_RETURN_IF_ERROR(RunPipeline(passes, ops, observer, stages));
  // Wherever products may be joined: whether that is faster is for each layout to say.
  const NodeSeconds always = [](const Node& node, const OpCall&) { return node.op == "einsum_joined" ? 0.0 : 1.0; };
  JoinProducts(stages[0], ops, always);
  return std::move(stages[0]);
}

int64_t LeastExtent(const Program& program, absl::string_view axis) {
  int64_t least = 0;
  for (const State& state : program.states) {
    for (size_t d = 0; d < state.axes.size(); ++d) {
      const int64_t extent = state.placement.global.dims[d];
      if (state.axes[d] == axis && (least == 0 || extent < least)) least = extent;
    }
  }
  return least;
}

}  // namespace tacc::graph
