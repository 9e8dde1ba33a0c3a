#include "graph/planner/compose.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/passes/modules/units.h"
#include "graph/passes/partition/layout.h"
#include "graph/planner/compile_plan.h"
#include "graph/planner/simulate/cluster_times.h"

namespace tacc::graph {
namespace {

absl::Status NotAChain(absl::string_view unit, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(unit, " ", why));
}

// Models of fewer layers are measured whole: it takes no time.
constexpr int64_t kFewLayers = 12;

// Of every stage.
struct Stages {
  std::vector<MemoryUse> memory;
  std::vector<StepCost> cost;
  std::vector<StageTimes> times;
  double step_seconds = 0;
  std::vector<Program> programs;
};

// The step with the first `count` micro-batches only: what follows a pass in a schedule does not depend on later ones.
absl::Status SimulateFirst(const PlanRequest& request, std::vector<Program>& programs, int64_t count,
                           const OpTable& ops, Stages* stages) {
  std::vector<const Program*> pointers;
  std::vector<std::vector<Call>> steps;  // of all micro-batches
  for (Program& program : programs) {
    steps.push_back(program.step);
    std::erase_if(program.step, [&](const Call& call) { return call.micro_batch >= count; });
    pointers.push_back(&program);
  }
  stages->cost.clear();
  for (const Program& program : programs) stages->cost.push_back(StepCostOf(program, ops, request.device));
  absl::StatusOr<Simulation> simulation = Simulate(pointers, TimesOn(request.cluster, pointers, ops));
  for (size_t s = 0; s < programs.size(); ++s) programs[s].step = std::move(steps[s]);
  TACC_RETURN_IF_ERROR(simulation.status());
  stages->times = std::move(simulation->stages);
  stages->step_seconds = simulation->step_seconds;
  return absl::OkStatus();
}

Measured Reduce(Stages stages) {
  const auto largest = [](const auto& list, auto member) {
    return *std::max_element(list.begin(), list.end(),
                             [&](const auto& a, const auto& b) { return a.*member < b.*member; });
  };
  Measured measured;
  measured.memory = Largest(stages.memory);
  measured.cost = largest(stages.cost, &StepCost::matmul_flops);
  measured.times = largest(stages.times, &StageTimes::compute_seconds);
  measured.wait_seconds = stages.times[0].exposed_seconds + stages.times[0].idle_seconds;
  measured.step_seconds = stages.step_seconds;
  measured.programs = std::move(stages.programs);
  return measured;
}

// Adds `times` of what `b` is more than `a`.
template <typename T>
void Extend(const T& a, const T& b, double times, T* out) {
  *out += static_cast<T>(times * static_cast<double>(b - a));
}

// The same of everything but memory. A further part takes at least what it computes and what its own collectives hold
// up: of traffic that is exposed only while there is too little beside it (an embedding's, the head's), it hides more,
// but never more than all.
void ExtendTimes(const Stages& a, const Stages& b, double times, Stages* whole) {
  for (size_t s = 0; s < whole->cost.size(); ++s) {
    for (auto part : {&StepCost::matmul_flops, &StepCost::compute_seconds, &StepCost::communication_seconds})
      Extend(a.cost[s].*part, b.cost[s].*part, times, &(whole->cost[s].*part));
    for (auto part :
         {&StepCost::sent_bytes, &StepCost::num_collectives, &StepCost::packed_bytes, &StepCost::num_packed})
      Extend(a.cost[s].*part, b.cost[s].*part, times, &(whole->cost[s].*part));
    for (auto part : {&StageTimes::compute_seconds, &StageTimes::contention_seconds, &StageTimes::communication_seconds,
                      &StageTimes::blocking_seconds})
      Extend(a.times[s].*part, b.times[s].*part, times, &(whole->times[s].*part));
  }
  double more = b.step_seconds - a.step_seconds;
  for (size_t s = 0; s < whole->times.size(); ++s) {
    const double held_up = b.times[s].blocking_seconds - a.times[s].blocking_seconds;
    more = std::max(more, b.times[s].compute_seconds - a.times[s].compute_seconds + held_up);
    whole->times[s].exposed_seconds +=
        times * std::max(b.times[s].exposed_seconds - a.times[s].exposed_seconds, held_up);
  }
  whole->step_seconds += times * more;
  for (StageTimes& stage : whole->times) {
    stage.exposed_seconds = std::max(0.0, stage.exposed_seconds);
    stage.idle_seconds = std::max(0.0, whole->step_seconds - stage.compute_seconds - stage.exposed_seconds);
  }
}

void Extend(const Stages& a, const Stages& b, double times, Stages* whole) {
  for (size_t s = 0; s < whole->memory.size(); ++s) {
    for (auto part : {&MemoryUse::weights_bytes, &MemoryUse::frozen_bytes, &MemoryUse::copies_bytes,
                      &MemoryUse::optimizer_bytes, &MemoryUse::gradients_bytes, &MemoryUse::stash_bytes}) {
      Extend(a.memory[s].*part, b.memory[s].*part, times, &(whole->memory[s].*part));
    }
    // Gaps between buffers come and go with a layer: they are no part of what each further one adds.
    for (auto part : {&MemoryUse::temporaries_bytes, &MemoryUse::arena_bytes}) {
      Extend(a.memory[s].*part - a.memory[s].gap_bytes, b.memory[s].*part - b.memory[s].gap_bytes, times,
             &(whole->memory[s].*part));
    }
  }
  ExtendTimes(a, b, times, whole);
}

int64_t NumStages(const Plan& plan) {
  const int axis = plan.mesh.Find(kStageAxis);
  return axis < 0 ? 1 : plan.mesh.axes[axis].size;
}

// Whether gradients are summed over shards while the backward goes on: two layers' of them are whole meanwhile.
bool SumsOverShards(const Plan& plan) {
  const bool reduces = plan.zero_stage == 2 || (plan.zero_stage == 3 && plan.reduce_each_micro_batch != 0);
  return reduces && NumShards(plan.mesh, LayoutOf(plan.mesh, "").at_rest_axes) > 1;
}

// A long step is a short one with more of the same in the middle: simulated with two and with three rounds of
// micro-batches, after which every stage is as full as it gets. `all`: the micro-batches of the step, where the plan
// has only these three rounds.
absl::StatusOr<Stages> MeasureStages(const PlanRequest& request, const Plan& plan, int64_t all,
                                     const ForwardModel& model, const OpTable& ops) {
  PipelineObserver observer;
  observer.verification = PipelineObserver::Verification::kInput;  // what is taken is compiled again
  TACC_ASSIGN_OR_RETURN(Compiled compiled, CompilePlan(request, plan, model, ops, observer));
  Stages stages;
  stages.memory = std::move(compiled.memory);
  stages.programs = std::move(compiled.stages);
  const int64_t round = NumStages(plan);
  TACC_RETURN_IF_ERROR(SimulateFirst(request, stages.programs, std::min(all, 3 * round), ops, &stages));
  if (all > 3 * round) {
    const Stages three = {{}, stages.cost, stages.times, stages.step_seconds, {}};
    Stages two;
    TACC_RETURN_IF_ERROR(SimulateFirst(request, stages.programs, 2 * round, ops, &two));
    ExtendTimes(two, three, static_cast<double>(all) / static_cast<double>(round) - 3, &stages);
  }
  return stages;
}

// Parts into which pp cuts the model, over all stages; 0 when not all have as many layers.
int64_t EvenParts(const PlanRequest& request, const Plan& plan, const ForwardModel& model, const OpTable& ops) {
  const int64_t parts = NumStages(plan) * plan.num_chunks;
  const auto num_layers = static_cast<int64_t>(model.units.size());
  if (parts == 1) return 1;
  if (num_layers % parts != 0 || !request.split_points.empty()) return 0;
  StageOptions options;
  options.units = model.units;
  options.num_chunks = static_cast<int>(plan.num_chunks);
  const auto cuts =
      CutPoints(model.forward, static_cast<int>(model.forward.nodes.size()), ops, options, static_cast<int>(parts));
  if (!cuts.ok()) return 0;
  Units of(model.units);
  for (size_t part = 1; part < cuts->size(); ++part) {
    if (of.Of(model.forward.nodes[(*cuts)[part]].module) != static_cast<int>(part) * num_layers / parts) return 0;
  }
  return parts;
}

}  // namespace

absl::StatusOr<Graph> KeepLayers(const Graph& forward, const std::vector<std::string>& units, size_t keep) {
  if (keep == 0 || keep > units.size()) return NotAChain("the model", absl::StrCat("has no ", keep, " layers"));
  Units of(units);
  std::vector<std::vector<const Node*>> layers(units.size());
  std::vector<int> layer_of(forward.values.size(), -1);  // that makes the value
  for (const Node& node : forward.nodes) {
    const int layer = of.Of(node.module);
    if (layer < 0) continue;
    layers[layer].push_back(&node);
    for (ValueId v : node.results) layer_of[v] = layer;
  }
  // What the last layer made, by place, is made by the last one kept.
  const std::vector<const Node*>& last = layers.back();
  const std::vector<const Node*>& kept = layers[keep - 1];
  for (size_t u = 0; u < units.size(); ++u) {
    if (layers[u].size() != kept.size()) return NotAChain(units[u], "has another number of nodes");
    for (size_t i = 0; i < kept.size(); ++i) {
      if (layers[u][i]->op != kept[i]->op || layers[u][i]->results.size() != kept[i]->results.size()) {
        return NotAChain(units[u], "is not like the others");
      }
      for (size_t r = 0; r < kept[i]->results.size(); ++r) {
        if (forward.type(layers[u][i]->results[r]) != forward.type(kept[i]->results[r])) {
          return NotAChain(units[u], "has other types");
        }
      }
      for (ValueId v : layers[u][i]->operands) {
        if (layer_of[v] >= 0 && layer_of[v] != static_cast<int>(u) && layer_of[v] + 1 != static_cast<int>(u)) {
          return NotAChain(units[u], "reads from a layer before the last");
        }
      }
    }
  }
  std::map<ValueId, ValueId> replaced;
  for (size_t i = 0; i < last.size(); ++i) {
    for (size_t r = 0; r < last[i]->results.size(); ++r) replaced[last[i]->results[r]] = kept[i]->results[r];
  }
  Graph graph = forward;
  graph.nodes.clear();
  for (const Node& node : forward.nodes) {
    const int layer = of.Of(node.module);
    if (layer >= static_cast<int>(keep)) continue;
    graph.nodes.push_back(node);
    if (layer >= 0) continue;
    for (ValueId& v : graph.nodes.back().operands) {
      if (layer_of[v] < 0) continue;
      if (layer_of[v] + 1 != static_cast<int>(units.size())) {
        return NotAChain(node.module, "reads from a layer in the middle");
      }
      v = replaced[v];
    }
  }
  graph.CompactValues();
  return graph;
}

namespace {

// Of the whole model, but of a short step.
absl::StatusOr<Measured> MeasureShort(const PlanRequest& request, const Plan& plan, const ForwardModel& model,
                                      const OpTable& ops) {
  if (plan.accumulation <= 3 * NumStages(plan)) return MeasurePlan(request, plan, model, ops);
  Plan shorter = plan;
  shorter.accumulation = 3 * NumStages(plan);
  TACC_ASSIGN_OR_RETURN(Stages stages, MeasureStages(request, shorter, plan.accumulation, model, ops));
  stages.programs.clear();
  Measured measured = Reduce(std::move(stages));
  measured.composed = true;
  measured.compiled_layers = static_cast<int64_t>(model.units.size());
  return measured;
}

}  // namespace

absl::StatusOr<Measured> MeasurePlan(const PlanRequest& request, const Plan& plan, const ForwardModel& model,
                                     const OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(Stages stages, MeasureStages(request, plan, plan.accumulation, model, ops));
  Measured measured = Reduce(std::move(stages));
  measured.compiled_layers = static_cast<int64_t>(model.units.size());
  return measured;
}

absl::StatusOr<Measured> ComposePlan(const PlanRequest& request, const Plan& plan, const ForwardModel& model,
                                     const OpTable& ops) {
  const auto num_layers = static_cast<int64_t>(model.units.size());
  const int64_t parts = EvenParts(request, plan, model, ops);
  const auto all_or_none = [&](int64_t units) { return units == 0 || units == num_layers; };
  // The peak is where it stays only from the fourth layer on where sums of gradients are under way, and from the fifth
  // where they are beside a stash, or with recomputation.
  const bool sums = SumsOverShards(plan);
  const int64_t fewer = plan.recompute_units > 0 || (sums && parts > 1) ? 5 : sums ? 4 : 2, more = fewer + 1;
  if (num_layers < kFewLayers || parts == 0 || num_layers <= (fewer + more) * parts ||
      !all_or_none(plan.recompute_units) || !all_or_none(plan.kept_units) || !request.pins.empty())
    return MeasureShort(request, plan, model, ops);
  Stages of_layers[2];
  for (int64_t layers : {fewer, more}) {
    const int64_t keep = layers * parts;
    absl::StatusOr<Graph> cut = KeepLayers(model.forward, model.units, static_cast<size_t>(keep));
    if (!cut.ok()) return MeasureShort(request, plan, model, ops);
    ForwardModel part;
    part.forward = *std::move(cut);
    part.residual_module = model.residual_module;
    part.units.assign(model.units.begin(), model.units.begin() + keep);
    Plan part_plan = plan;
    part_plan.recompute_units = std::min(plan.recompute_units, keep);
    part_plan.kept_units = std::min(plan.kept_units, keep);
    // More micro-batches would not be simulated.
    part_plan.accumulation = std::min(plan.accumulation, 3 * NumStages(plan));
    PlanRequest part_request = request;
    for (int64_t p = 1; p < parts; ++p) part_request.split_points.push_back(model.units[p * layers]);
    TACC_ASSIGN_OR_RETURN(of_layers[layers - fewer],
                          MeasureStages(part_request, part_plan, plan.accumulation, part, ops));
  }
  Stages whole = of_layers[1];
  Extend(of_layers[0], of_layers[1], static_cast<double>(num_layers / parts - more), &whole);
  whole.programs.clear();
  Measured measured = Reduce(std::move(whole));
  measured.composed = true;
  measured.compiled_layers = (fewer + more) * parts;
  return measured;
}

}  // namespace tacc::graph
