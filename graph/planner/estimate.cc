#include "graph/planner/estimate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ir/collective_limits.h"
#include "graph/planner/estimate_parts.h"

namespace tacc::graph {
namespace {

double Local(const Extent& extent, const Layout& l, bool sequence_sharded) {
  const double tokens = extent.size * static_cast<double>(l.micro_batch) / static_cast<double>(l.cp);
  switch (extent.split) {
    case Split::kNone:
      return extent.size;
    case Split::kTokens:
      return tokens;
    case Split::kHome:
      return sequence_sharded ? tokens / static_cast<double>(l.tp) : tokens;
    case Split::kTensor:
      return extent.size / static_cast<double>(l.tp);
    case Split::kExpert:
      return extent.size / static_cast<double>(l.ep);
  }
  return extent.size;
}

double WeightShare(Split region, const Layout& l) {
  if (region == Split::kTensor) return 1.0 / static_cast<double>(l.tp);
  if (region == Split::kExpert) return 1.0 / static_cast<double>(l.tp * l.ep);
  return 1.0;
}

struct Groups {
  GroupShape pp, tp, cp, ep;
  GroupShape shards;           // of a parameter, where ZeRO cuts it
  GroupShape replicas;         // of a shard of a parameter: gradients are summed over them once a step
  GroupShape expert_replicas;  // the same of an expert's
};
Groups GroupsOf(const Layout& l, int64_t devices_per_node) {
  const Mesh mesh = l.mesh();
  auto shape = [&](std::initializer_list<const char*> names) {
    AxisList axes;
    for (const char* name : names) axes.push_back(mesh.Find(name));
    return ShapeOf(mesh, axes, devices_per_node);
  };
  return {shape({"pp"}),         shape({"tp"}),       shape({"cp"}), shape({"ep"}),
          shape({"fsdp", "cp"}), shape({"dp", "ep"}), shape({"dp"})};
}

// Seconds of one micro-batch in one unit.
struct UnitSeconds {
  double compute = 0, recompute = 0, tensor = 0, context = 0, expert = 0, data = 0;
  double hidden_data = 0;  // beside `data`: behind compute of other units
  // Not of a micro-batch, but of the step: copies around what is gathered and summed once.
  double gather_copies = 0, sum_copies = 0;
  double total() const { return compute + tensor + context + expert + data; }
  void Add(const UnitSeconds& o, double times) {
    compute += times * o.compute;
    recompute += times * o.recompute;
    tensor += times * o.tensor;
    context += times * o.context;
    expert += times * o.expert;
    data += times * o.data;
    gather_copies += times * o.gather_copies;
    sum_copies += times * o.sum_copies;
  }
};

class Estimator {
 public:
  Estimator(const Cluster& cluster, const Layout& layout, const Execution& execution)
      : m_(cluster.machine),
        sums_(cluster.machine),
        l_(layout),
        x_(execution),
        g_(GroupsOf(layout, cluster.machine.devices_per_node)) {
    sums_.sums_in_order = sums_.sums_in_order || (x_.sums_widen && !m_.shares_cores);
  }

  UnitSeconds Unit(const UnitWork& unit) const {
    const Phase forward = Run(unit.forward, Kernels::kAll), backward = Run(unit.backward, Kernels::kAll);
    const bool is_repeated = l_.recompute && unit.is_layer;
    const Phase again = is_repeated ? Run(unit.forward, Kernels::kRepeated) : Phase();
    const double repeats = is_repeated ? 2 : 1;
    UnitSeconds s;
    s.tensor = repeats * forward.tensor + backward.tensor;
    const double device = forward.device + again.device + backward.device + s.tensor;
    const double issued = IssuedSeconds(m_, device, forward.kernels + again.kernels + backward.kernels);
    s.compute = issued - s.tensor;
    s.recompute = device > 0 ? s.compute * again.device / device : 0;
    s.context = repeats * forward.context + backward.context;
    s.expert = repeats * forward.expert + backward.expert;
    // ZeRO-3: weights are gathered before the forward, again before the backward where they were dropped. Sharded
    // gradients are reduced after the backward of every micro-batch.
    if (l_.shards() > 1 && l_.zero_stage >= 2) {
      // One collective a tensor.
      const double tensors = std::max(1, unit.num_parameters);
      const double elements = InUse(unit.parameters, l_) / tensors;
      const double gather =
          tensors * CollectiveSeconds(m_, CollectiveKind::kAllGather, elements * x_.weight_bytes, g_.shards);
      const double reduce =
          tensors * CollectiveSeconds(sums_, CollectiveKind::kReduceScatter, elements * x_.gradient_bytes, g_.shards);
      const double gathers = l_.zero_stage < 3 ? 0 : gather + CopiesOfGather(unit);
      const double gathers_again = l_.reshard ? gathers : 0;
      const double sums = l_.shards_gradients() ? reduce + CopiesOfSum(unit) : 0;
      const double in_forward = s.compute * (device > 0 ? forward.device / device : 0);
      const double in_backward = s.compute - in_forward;
      const auto hidden = [&](double traffic, double compute) { return std::min(traffic * x_.overlap_data, compute); };
      // Each hides behind its own pass; weight passes, in which sums are made, are half of a backward.
      s.hidden_data = hidden(gathers, in_forward);
      s.hidden_data += l_.pp > 1 && l_.schedule == PipelineSchedule::kZeroBubble
                           ? hidden(gathers_again, in_backward / 2) + hidden(sums, in_backward / 2)
                           : hidden(gathers_again + sums, in_backward);
      s.data = gathers + gathers_again + sums - s.hidden_data;
    }
    if (l_.shards() > 1 && l_.zero_stage < 3) s.gather_copies = CopiesOfGather(unit);
    if (l_.shards() > 1 && !l_.shards_gradients()) s.sum_copies = CopiesOfSum(unit);
    return s;
  }

  // Reduction of gradients over the replicas once a step, less what the backward of the last micro-batch hides where it
  // does, and the gathering of weights after a sharded update. `slot`: of all units of the stage, parameters `p`.
  double DataOnce(const ParameterCount& p, const UnitSeconds& slot) const {
    const double backward_seconds = x_.hides_replica_sums ? slot.compute * 0.5 : 0;
    const ParameterCount experts{0, 0, p.expert}, others{p.whole, p.tensor, 0};
    double traffic = Replicate(others, g_.replicas) + Replicate(experts, g_.expert_replicas), weights = 0;
    const double elements = InUse(p, l_);
    if (l_.shards() > 1 && l_.zero_stage < 3) {
      weights =
          CollectiveSeconds(m_, CollectiveKind::kAllGather, elements * x_.weight_bytes, g_.shards) + slot.gather_copies;
    }
    if (l_.shards() > 1 && !l_.shards_gradients()) {
      traffic += CollectiveSeconds(sums_, CollectiveKind::kReduceScatter, elements * x_.gradient_bytes, g_.shards) +
                 slot.sum_copies;
    }
    return traffic - std::min(traffic * x_.overlap_data, backward_seconds) + weights;
  }

  double Update(const ParameterCount& p) const {
    double elements = InUse(p, l_) / static_cast<double>(l_.shards());
    if (x_.optimizer_sharded) elements /= static_cast<double>(l_.dp * l_.ep);
    return KernelSeconds(m_, DType::kF32, 0, elements * x_.update_traffic_bytes);
  }

  // The update's sum of the gradients of what lies on the first and on the last stage.
  double StageSum(const ParameterCount& p) const {
    const double elements = InUse(p, l_) / static_cast<double>(l_.shards());
    return CollectiveSeconds(m_, CollectiveKind::kAllReduce, elements * SummedBytes(), TwoStages());
  }

  // One way between two stages.
  double Send(double bytes_of_sample) const {
    double bytes = bytes_of_sample * static_cast<double>(l_.micro_batch) / static_cast<double>(l_.cp);
    bytes *= (1 - x_.send_share_of_tp) + x_.send_share_of_tp / static_cast<double>(l_.tp);
    return CollectiveSeconds(m_, CollectiveKind::kSend, bytes, TwoStages());
  }

 private:
  // Unless all stages are on one node, some are not.
  GroupShape TwoStages() const { return {2, g_.pp.num_nodes() > 1 ? 1 : 2}; }

  struct Phase {
    double device = 0, tensor = 0, context = 0, expert = 0, kernels = 0;
  };

  double Replicate(const ParameterCount& p, const GroupShape& group) const {
    const double elements = InUse(p, l_) / static_cast<double>(l_.shards());
    const double gathered = x_.optimizer_sharded ? x_.weight_bytes : SummedBytes();
    return CollectiveSeconds(sums_, CollectiveKind::kReduceScatter, elements * x_.gradient_bytes, group) +
           CollectiveSeconds(m_, CollectiveKind::kAllGather, elements * gathered, group);
  }

  // Of an element of a gradient that has been summed.
  double SummedBytes() const { return x_.sums_widen ? 4 : x_.gradient_bytes; }

  // Around the gathers of a unit's weights and the sums of their gradients over shards: as PackedBytes.
  double CopiesOfGather(const UnitWork& unit) const {
    double elements = 0;
    for (const WeightDims& weight : unit.weights) {
      const Shards shards = ShardsOf(weight, l_);
      const bool lie_so = m_.shares_cores ? shards.rows <= 1 : shards.are_equal && shards.rows <= kMaxRowsInPlace;
      if (!lie_so) elements += shards.elements;
    }
    return CopySeconds(m_, elements * x_.weight_bytes);
  }
  double CopiesOfSum(const UnitWork& unit) const {
    double elements = 0;
    for (const WeightDims& weight : unit.weights) {
      const Shards shards = ShardsOf(weight, l_);
      if (m_.shares_cores || sums_.sums_in_order) {
        if (shards.rows > 1) elements += shards.elements;
      } else if (!shards.are_equal || shards.rows > kMaxRowsInPlace) {
        elements += shards.elements + shards.held;
      }
    }
    return CopySeconds(m_, elements * x_.gradient_bytes);
  }

  enum class Kernels { kAll, kRepeated };
  Phase Run(const PhaseWork& work, Kernels kernels) const {
    Phase phase;
    for (const KernelWork& k : work.kernels) {
      if (kernels == Kernels::kRepeated && !k.is_repeated) continue;
      if (k.is_launched) ++phase.kernels;
      const double share = RegionShare(k.region, l_, x_.sequence_sharded);
      const double bytes = k.sample_bytes * share + k.weight_bytes * WeightShare(k.region, l_);
      if (k.exponentials > 0) {
        phase.device += Attention(k, bytes);
        continue;
      }
      ProductShape shape;
      if (k.flops > 0) {
        shape = {Local(k.rows, l_, x_.sequence_sharded), Local(k.columns, l_, x_.sequence_sharded),
                 Local(k.depth, l_, x_.sequence_sharded)};
        if (k.groups.size > 0) {
          shape.slots = k.rows.split == Split::kTokens ? SlotsAre::kRows : SlotsAre::kDepth;
          (shape.slots == SlotsAre::kRows ? shape.rows : shape.depth) /= Local(k.groups, l_, x_.sequence_sharded);
        }
      }
      phase.device += KernelSeconds(m_, k.dtype, k.flops * share, bytes, shape);
    }
    const double samples = static_cast<double>(l_.micro_batch) / static_cast<double>(l_.cp);
    if (l_.tp > 1) {
      // A gather and a reduce-scatter where activations are sequence-sharded; an all-reduce for every two of them
      // where not: the same bytes.
      const int collectives = work.gathers + work.scatters;
      const double bytes = work.gather_bytes + work.scatter_bytes;
      if (collectives > 0) {
        const double each = bytes * samples / collectives;
        phase.tensor = x_.sequence_sharded
                           ? collectives * CollectiveSeconds(m_, CollectiveKind::kAllGather, each, g_.tp)
                           : collectives / 2.0 * CollectiveSeconds(m_, CollectiveKind::kAllReduce, each, g_.tp);
        phase.kernels += x_.sequence_sharded ? collectives : collectives / 2.0;
      }
      phase.tensor -= std::min(phase.tensor * x_.overlap_tensor, phase.device);
    }
    if (l_.cp > 1 && work.ring_bytes > 0) {
      const double step_bytes = work.ring_bytes * samples / static_cast<double>(l_.tp);
      const double steps = static_cast<double>(l_.cp - 1);
      const double ring = steps * CollectiveSeconds(m_, CollectiveKind::kRotate, step_bytes, g_.cp);
      phase.context = std::max(0.0, ring - WeightlessSeconds(work));
    }
    if (l_.ep > 1 && work.exchange_bytes > 0) {
      phase.expert = CollectiveSeconds(m_, CollectiveKind::kAllToAll,
                                       work.exchange_bytes * samples / static_cast<double>(l_.tp), g_.ep);
    }
    return phase;
  }

  double Attention(const KernelWork& k, double bytes) const {
    const double share = RegionShare(k.region, l_, x_.sequence_sharded);
    // A split sequence goes round a ring.
    const AttentionMask mask = l_.cp > 1 ? AttentionMask::kAny : k.mask;
    return AttentionSeconds(m_, k.dtype, mask, k.flops * share, k.exponentials * share, bytes,
                            k.repeated_flops * share);
  }

  // Of the kernels that a ring hides behind: all products of the phase that have no weights.
  double WeightlessSeconds(const PhaseWork& work) const {
    double seconds = 0;
    for (const KernelWork& k : work.kernels) {
      if (k.exponentials > 0) {
        seconds += Attention(k, 0);
      } else if (k.flops > 0 && k.weight_bytes == 0) {
        seconds += KernelSeconds(m_, k.dtype, k.flops * RegionShare(k.region, l_, x_.sequence_sharded), 0);
      }
    }
    return seconds;
  }

  const Machine& m_;
  Machine sums_;  // the same, as it sums gradients
  const Layout& l_;
  const Execution& x_;
  const Groups g_;
};

// What one stage holds.
struct Stage {
  UnitSeconds slot;        // of one micro-batch
  double hidden_data = 0;  // of a layer
  ParameterCount parameters;
};

}  // namespace

Mesh Layout::mesh() const {
  const Mesh::Axis axes[] = {{"pp", pp}, {"dp", dp}, {"fsdp", fsdp}, {"ep", ep}, {"cp", cp}, {"tp", tp}};
  Mesh mesh;
  for (int axis : order) mesh.axes.push_back(axes[axis]);
  return mesh;
}

std::string Layout::ToString() const {
  std::string text;
  for (const Mesh::Axis& axis : mesh().axes) {
    if (axis.size > 1) absl::StrAppend(&text, text.empty() ? "" : " ", axis.name, "=", axis.size);
  }
  if (text.empty()) text = "one rank";
  absl::StrAppend(&text, ", micro-batch ", micro_batch, " x ", accumulation);
  if (pp > 1) {
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
  const ModelWork& model = any.OverExpertRanks(l.ep);
  const Estimator estimator(cluster, l, x);
  if (HasCopies(model, l)) {
    StepEstimate e = EstimateStep(WithCopies(model), cluster, l, x);
    const double sum = estimator.StageSum(model.tied);
    e.data += sum;
    e.seconds += sum;
    return e;
  }
  std::vector<UnitSeconds> seconds;
  for (const UnitWork& unit : model.units) seconds.push_back(estimator.Unit(unit));
  std::vector<Stage> stages(l.pp);
  ForEachPart(model, l.pp, [&](int64_t stage, size_t unit, int64_t count) {
    stages[stage].slot.Add(seconds[unit], static_cast<double>(count));
    if (model.units[unit].is_layer)
      stages[stage].hidden_data = std::max(stages[stage].hidden_data, seconds[unit].hidden_data);
    stages[stage].parameters.Add(model.units[unit].parameters, static_cast<double>(count));
  });
  for (Stage& stage : stages) {
    stage.slot.compute += x.micro_batch_seconds;
    // Nothing hides across the calls of a pipeline: in each part of a stage a layer's gathers wait at the begin of its
    // forward and of its backward, and the sums of the last one at its end.
    if (l.pp > 1) stage.slot.data += static_cast<double>(std::max<int64_t>(l.chunks, 1)) * stage.hidden_data;
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
  e.data = n * stage.slot.data;
  if (l.pp > 1) {
    double boundary = 0;
    for (const UnitWork& unit : model.units) boundary = std::max(boundary, unit.input_bytes);
    const double send = estimator.Send(boundary);
    // One exchange each way a micro-batch and chunk; filling and draining waits for every hop.
    e.sends = 2 * n * chunks * send * (1 - x.overlap_sends);
    const double fill = (sum.total() - slot) / chunks;
    // Zero-bubble: weight gradients, about a third of a slot, fill two thirds of it.
    e.bubble =
        fill * (l.schedule == PipelineSchedule::kZeroBubble ? 1.0 / 3 : 1.0) + 2 * static_cast<double>(l.pp - 1) * send;
    // What the slowest stage is slower than the mean was counted as compute; name it.
    const double mean = sum.total() / static_cast<double>(l.pp);
    e.imbalance = n * (slot - mean);
    const double scale = slot > 0 ? mean / slot : 1;
    for (double* part : {&e.compute, &e.recompute, &e.tensor, &e.context, &e.expert, &e.data}) *part *= scale;
  }
  e.data += estimator.DataOnce(stage.parameters, stage.slot);
  e.update = estimator.Update(stage.parameters);
  e.seconds = e.compute + e.communication() + e.imbalance + e.bubble + e.update;
  return e;
}

}  // namespace tacc::graph
