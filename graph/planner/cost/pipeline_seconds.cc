#include "graph/planner/cost/pipeline_seconds.h"

#include <algorithm>
#include <optional>

namespace tacc::graph {
namespace {

// All passes; none for a shape without a schedule.
std::optional<double> Run(const PipelineShape& shape, const std::vector<PassSeconds>& stages, double message) {
  const int num_stages = shape.num_stages, num_parts = shape.num_virtual();
  std::vector<std::vector<PassCall>> passes;
  for (int stage = 0; stage < num_stages; ++stage) {
    auto of_stage = PassesOf(shape, stage);
    if (!of_stage.ok()) return std::nullopt;
    passes.push_back(*std::move(of_stage));
  }
  const auto seconds = [&](int stage, PassKind kind) {
    const PassSeconds& of = stages[stage];
    const bool has_weight_passes = shape.schedule == PipelineSchedule::kZeroBubble && stage > 0;
    const double backward = has_weight_passes ? of.backward : of.backward + of.weight;
    return (kind == PassKind::kForward  ? of.forward
            : kind == PassKind::kWeight ? of.weight
                                        : backward) /
           shape.num_chunks;
  };
  constexpr double kNotYet = -1;
  const auto none = std::vector<double>(static_cast<size_t>(num_parts * shape.num_micro_batches), kNotYet);
  std::vector<double> sent[2] = {none, none};  // forward, backward: when it is there, of each part and micro-batch
  std::vector<double> free_at(num_stages, 0);
  std::vector<size_t> next(num_stages, 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (int stage = 0; stage < num_stages; ++stage) {
      for (; next[stage] < passes[stage].size(); ++next[stage]) {
        const PassCall& pass = passes[stage][next[stage]];
        const int part = pass.chunk * num_stages + stage;
        const auto at = [&](int of) { return static_cast<size_t>(of * shape.num_micro_batches + pass.micro_batch); };
        double ready = 0;
        if (pass.kind == PassKind::kForward && part > 0) ready = sent[0][at(part - 1)];
        if (pass.kind == PassKind::kBackward && part + 1 < num_parts) ready = sent[1][at(part + 1)];
        if (ready == kNotYet) break;
        free_at[stage] = std::max(free_at[stage], ready) + seconds(stage, pass.kind);
        if (pass.kind != PassKind::kWeight)
          sent[pass.kind == PassKind::kForward ? 0 : 1][at(part)] = free_at[stage] + message;
        moved = true;
      }
    }
  }
  return *std::max_element(free_at.begin(), free_at.end());
}

}  // namespace

double PipelineSeconds(const PipelineShape& shape, const std::vector<PassSeconds>& stages, double message) {
  // Of few stages a second round is not yet like those after it.
  const int64_t all = shape.num_micro_batches, round = shape.num_stages, rounds = round < 8 ? 3 : 2;
  PipelineShape shorter = shape;
  shorter.num_micro_batches = std::min(all, rounds * round);
  const std::optional<double> first = Run(shorter, stages, message);
  if (!first.has_value()) {
    double slowest = 0;
    for (const PassSeconds& stage : stages) slowest = std::max(slowest, stage.total());
    return static_cast<double>(all) * slowest;
  }
  if (all <= rounds * round) return *first;
  shorter.num_micro_batches -= round;
  const double last = *first - *Run(shorter, stages, message);
  return *first + last * static_cast<double>(all - rounds * round) / static_cast<double>(round);
}

}  // namespace tacc::graph
