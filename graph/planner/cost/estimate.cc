#include "graph/planner/cost/estimate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "graph/planner/cost/estimate_parts.h"
#include "graph/planner/cost/pipeline_seconds.h"
#include "graph/planner/cost/unit_seconds.h"
#include "page/numbers.h"

namespace tacc::graph {
namespace {

// What one stage holds.
struct Stage {
  UnitSeconds slot;         // of one micro-batch
  PassSeconds hidden_data;  // of the layer with most
  ParameterCount trained;
  double tensors = 0;  // collectives that take all parameters that are trained
};

}  // namespace

Mesh Layout::mesh() const {
  Mesh mesh;
  for (Axis axis : order) mesh.axes.push_back({std::string(Name(axis)), sizes[axis]});
  return mesh;
}

std::string Layout::ToString() const {
  std::string text;
  for (const Mesh::Axis& axis : mesh().axes) {
    if (axis.size > 1) absl::StrAppend(&text, text.empty() ? "" : " ", axis.name, "=", axis.size);
  }
  if (text.empty()) text = "one rank";
  absl::StrAppend(&text, ", micro-batch ", micro_batch, " x ", accumulation);
  if (sizes[Axis::kPp] > 1) {
    if (schedule == PipelineSchedule::k1F1B) absl::StrAppend(&text, ", 1f1b");
    if (schedule == PipelineSchedule::kInterleaved) absl::StrAppend(&text, ", interleaved 1f1b x ", chunks);
    if (schedule == PipelineSchedule::kZeroBubble) absl::StrAppend(&text, ", zero-bubble");
  }
  if (recompute) absl::StrAppend(&text, ", gc");
  if (shards() > 1 && zero_stage < 3) absl::StrAppend(&text, ", ZeRO-", zero_stage);
  if (shards() > 1 && zero_stage == 3 && !reshard) absl::StrAppend(&text, ", weights kept");
  if (shards() > 1 && zero_stage == 3 && !reduce_each_micro_batch) absl::StrAppend(&text, ", gradients reduced once");
  return text;
}

Execution ExecutionOf(const Machine& machine, DType compute, DType reduce) {
  Execution execution;
  execution.gradient_bytes = ByteSize(reduce);
  execution.sums_widen = reduce != DType::kF32;
  execution.compute = compute;
  // They are the update's: its norm needs all of them.
  execution.hides_replica_sums = false;
  if (machine.issue_seconds == 0) execution.overlap_data = execution.overlap_sends = 0;
  return execution;
}

StepEstimate EstimateStep(const ModelWork& any, const Cluster& cluster, const Layout& l, const Execution& x) {
  const ModelWork& model = any.OverExpertRanks(l.sizes[Axis::kEp]);
  const UnitEstimator estimator(cluster, l, x);
  if (HasCopies(model, l)) {
    StepEstimate e = EstimateStep(WithCopies(model), cluster, l, x);
    const double sum = model.tied_are_frozen ? 0 : estimator.StageSum(model.tied);
    e.data += sum;
    e.seconds += sum;
    return e;
  }
  std::vector<UnitSeconds> seconds;
  for (const UnitWork& unit : model.units) seconds.push_back(estimator.Unit(unit));
  std::vector<Stage> stages(l.sizes[Axis::kPp]);
  ForEachPart(model, l, x.even_stages, [&](int64_t stage, size_t unit, int64_t count) {
    stages[stage].slot.Add(seconds[unit], static_cast<double>(count));
    const PassSeconds& hidden = seconds[unit].hidden_data;
    if (model.units[unit].is_layer && hidden.total() > stages[stage].hidden_data.total())
      stages[stage].hidden_data = hidden;
    const UnitWork& work = model.units[unit];
    stages[stage].trained.Add(work.trained(), static_cast<double>(count));
    stages[stage].tensors += static_cast<double>(count * (work.num_parameters - work.num_frozen));
  });
  for (Stage& stage : stages) {
    stage.slot.compute += x.micro_batch_seconds;
    stage.slot.in_forward += x.micro_batch_seconds / 2;
    // Nothing hides across the calls of a pipeline: in each part of a stage a layer's gathers wait at the begin of its
    // forward and of its backward, and the sums of the last one at its end.
    if (l.sizes[Axis::kPp] > 1)
      stage.slot.data.Add(stage.hidden_data, static_cast<double>(std::max<int64_t>(l.chunks, 1)));
  }
  UnitSeconds sum;
  size_t slowest = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    sum.Add(stages[i].slot, 1);
    if (stages[i].slot.total() > stages[slowest].slot.total()) slowest = i;
  }
  const Stage& stage = stages[slowest];
  const double n = static_cast<double>(l.accumulation), chunks = static_cast<double>(std::max<int64_t>(l.chunks, 1));
  const double slot = stage.slot.total();

  StepEstimate e;
  e.compute = n * stage.slot.compute;
  e.recompute = n * stage.slot.recompute;
  e.tensor = n * stage.slot.tensor;
  e.context = n * stage.slot.context;
  e.expert = n * stage.slot.expert;
  e.data = n * stage.slot.data.total();
  if (l.sizes[Axis::kPp] > 1) {
    double boundary = 0;
    for (const UnitWork& unit : model.units) boundary = std::max(boundary, unit.input_bytes);
    const double send = estimator.Send(boundary);
    // What the schedule waits for, messages beside which stages compute among it. Where none do: one exchange each way
    // a micro-batch and chunk, and one a hop to fill and drain.
    const PipelineShape shape = {l.schedule, static_cast<int>(l.sizes[Axis::kPp]), static_cast<int>(chunks),
                                 l.accumulation};
    std::vector<PassSeconds> passes;
    for (const Stage& of : stages) passes.push_back(of.slot.passes());
    const double exposed = 1 - x.overlap_sends;
    e.sends = exposed * 2 * n * chunks * send;
    e.bubble = std::max(0.0, PipelineSeconds(shape, passes, x.overlap_sends * send) - n * slot) +
               exposed * 2 * static_cast<double>(l.sizes[Axis::kPp] - 1) * send;
    // What the slowest stage is slower than the mean was counted as compute; name it.
    const double mean = sum.total() / static_cast<double>(l.sizes[Axis::kPp]);
    e.imbalance = n * (slot - mean);
    const double scale = slot > 0 ? mean / slot : 1;
    for (double* part : {&e.compute, &e.recompute, &e.tensor, &e.context, &e.expert, &e.data}) *part *= scale;
  }
  e.data += estimator.DataOnce(stage.trained, std::max(1.0, stage.tensors), stage.slot);
  e.update = estimator.Update(stage.trained);
  e.seconds = e.compute + e.communication() + e.imbalance + e.bubble + e.update;
  return e;
}

std::string DescribeMemory(const MemoryEstimate& m) {
  const std::vector<std::string> parts =
      BytesTexts({m.weights + m.copies, m.gradients, m.optimizer, m.activations, m.temporaries}, m.total());
  return absl::StrCat(BytesText(m.total()), " (weights ", parts[0], ", gradients ", parts[1], ", optimizer ", parts[2],
                      ", activations ", parts[3], ", temporaries ", parts[4], ")");
}

std::vector<std::pair<const char*, double>> PartsOf(const StepEstimate& e) {
  return {{"compute", e.compute - e.recompute},
          {"recomputation", e.recompute},
          {"tensor", e.tensor},
          {"context", e.context},
          {"expert", e.expert},
          {"data", e.data},
          {"sends", e.sends},
          {"imbalance", e.imbalance},
          {"bubble", e.bubble},
          {"update", e.update}};
}

std::string DescribeStep(const StepEstimate& e) {
  std::string text;
  for (const auto& [name, seconds] : PartsOf(e)) {
    const double percent = 100 * seconds / e.seconds;
    if (percent >= 0.05) absl::StrAppend(&text, text.empty() ? "" : ", ", name, absl::StrFormat(" %.1f %%", percent));
  }
  return text;
}

}  // namespace tacc::graph
