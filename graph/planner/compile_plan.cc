#include "graph/planner/compile_plan.h"

#include <utility>

#include "absl/status/status.h"
#include "graph/ir/axis.h"
#include "graph/ir/state_names.h"
#include "graph/ir/status_macros.h"
#include "graph/passes/partition/expert_parallel.h"
#include "graph/passes/partition/layout.h"
#include "graph/passes/partition/pins.h"
#include "graph/planner/cost/cluster.h"
#include "graph/planner/simulate/cluster_times.h"

namespace tacc::graph {

absl::StatusOr<Compiled> CompilePlan(const PlanRequest& request, const Plan& plan, const ForwardModel& model,
                                     const OpTable& ops, const PipelineObserver& observer,
                                     std::shared_ptr<const StatePlaces> places) {
  CompileOptions options;
  options.training = request.training;
  options.training.accumulation = plan.accumulation;
  if (!request.sync_batchnorm) options.training.batch_norm_groups = plan.num_data_ranks();
  options.training.keep_copies = plan.keeps_copies != 0;
  TACC_ASSIGN_OR_RETURN(options.training.max_steps, MaxSteps(request, plan.global_batch()));
  options.compute_dtype = plan.compute_dtype;
  options.partition = LayoutOf(plan.mesh, model.residual_module);
  TACC_RETURN_IF_ERROR(ApplyPins(request.pins, model.forward, options.partition));
  options.sequence_blocks = SequenceBlocks(plan.mesh);
  options.experts.buffer_factor = request.expert_buffer_factor.value_or(kBufferFactor);
  for (const Mesh::Axis& axis : plan.mesh.axes) {
    const AxisFacts* facts = FindAxis(axis.name);
    if (facts == nullptr) continue;
    if (facts->splits_experts) options.experts.ranks = axis.size;
    if (facts->splits_tokens || facts->splits_heads) options.experts.sequence_groups *= axis.size;
  }
  if (places != nullptr) {
    for (const auto& of_stage : places->stages) {
      for (const auto& [name, state] : of_stage) {
        if (state.kind == StateKind::kGradient)
          options.partition.pending_gradients[ParameterOf(state)] = state.placement.sharding.pending;
      }
    }
  }
  options.places = std::move(places);
  options.partition.zero_stage = static_cast<int>(plan.zero_stage);
  options.partition.reduce_each_micro_batch = plan.reduce_each_micro_batch != 0;
  options.partition.units = model.units;
  options.partition.reduce_dtype = request.reduce_dtype;
  options.residual_dtype = plan.residual_dtype;
  options.remat.units.assign(model.units.begin(), model.units.begin() + plan.recompute_units);
  options.stages.schedule = plan.schedule;
  options.stages.num_chunks = static_cast<int>(plan.num_chunks);
  options.stages.split_points = request.split_points;
  options.stages.units = model.units;
  options.schedule.units = model.units;
  options.schedule.kept_units = plan.kept_units;
  options.schedule.prefetch_units = static_cast<int>(plan.prefetch_units);
  const TargetKind kind = TargetKindOf(request.device);
  options.target = kind.make({static_cast<int>(plan.threads), request.device.multiplies_bf16.value_or(false)});
  const Machine& machine = request.cluster.machine;
  if (kind.joins_products) {
    options.product_seconds = [&](const Node& node, const OpCall& call) {
      return LocalSeconds(machine, *ops.Find(node.op), node, call);
    };
  }
  return Compile(model.forward, ops, options, observer);
}

}  // namespace tacc::graph
