#include "graph/planner/cost/unit_seconds.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <vector>

#include "graph/ir/collective_limits.h"
#include "graph/planner/cost/estimate_parts.h"

namespace tacc::graph {
namespace {

double Local(const Extent& extent, const Layout& l, bool sequence_sharded) {
  const double tokens = extent.size * static_cast<double>(l.micro_batch) / static_cast<double>(l.sizes[Axis::kCp]);
  switch (extent.split) {
    case Split::kNone:
      return extent.size;
    case Split::kTokens:
      return tokens;
    case Split::kHome:
      return sequence_sharded ? tokens / static_cast<double>(l.sizes[Axis::kTp]) : tokens;
    case Split::kTensor:
      return extent.size / static_cast<double>(l.sizes[Axis::kTp]);
    case Split::kExpert:
      return extent.size / static_cast<double>(l.sizes[Axis::kEp]);
  }
  return extent.size;
}

double WeightShare(Split region, const Layout& l) {
  if (region == Split::kTensor) return 1.0 / static_cast<double>(l.sizes[Axis::kTp]);
  if (region == Split::kExpert) return 1.0 / static_cast<double>(l.sizes[Axis::kTp] * l.sizes[Axis::kEp]);
  return 1.0;
}

// Of the products that may be joined: q, k and v.
constexpr size_t kPartsOfAttention = 3;

}  // namespace

Groups GroupsOf(const Layout& l, int64_t devices_per_node) {
  const Mesh mesh = l.mesh();
  auto shape = [&](std::initializer_list<Axis> of) {
    AxisList axes;
    for (Axis axis : of) axes.push_back(mesh.Find(Name(axis)));
    return ShapeOf(mesh, axes, devices_per_node);
  };
  return {.pp = shape({Axis::kPp}),
          .tp = shape({Axis::kTp}),
          .cp = shape({Axis::kCp}),
          .ep = shape({Axis::kEp}),
          .shards = shape({Axis::kFsdp, Axis::kCp}),
          .replicas = shape({Axis::kDp, Axis::kEp}),
          .expert_replicas = shape({Axis::kDp})};
}

UnitSeconds UnitEstimator::Unit(const UnitWork& unit) const {
  const bool is_repeated = l_.recompute && unit.is_layer;
  const Phase forward = Run(unit.forward, Of::kForward), again = is_repeated ? Run(unit.forward, Of::kAgain) : Phase();
  const Phase backward = Run(unit.backward, is_repeated ? Of::kBackwardAfterAgain : Of::kBackward);
  UnitSeconds s;
  s.tensor = forward.tensor + again.tensor + backward.tensor;
  const double device = forward.device + again.device + backward.device;
  if (x_.issues_ahead) {
    const double kernels = forward.kernels + again.kernels + backward.kernels;
    s.compute = IssuedSeconds(m_, device + s.tensor, kernels) - s.tensor;
  } else {
    s.compute = device;
  }
  s.recompute = device > 0 ? s.compute * again.device / device : 0;
  s.compute += Casts(unit, is_repeated) + Accumulations(unit);
  s.context = forward.context + again.context + backward.context;
  s.expert = forward.expert + again.expert + backward.expert;
  const double scale = device > 0 ? s.compute / device : 0;
  s.in_forward = scale * forward.device + forward.tensor + forward.context + forward.expert;
  s.in_weights = scale * (backward.device - backward.in_ring) * unit.gradients_share;
  if (l_.shards() > 1 && l_.zero_stage >= 2) AddData(unit, {forward, again, backward}, scale, s);
  if (l_.shards() > 1 && l_.zero_stage < 3) s.gather_copies = CopiesOfGather(unit);
  if (l_.shards() > 1 && !l_.shards_gradients()) s.sum_copies = CopiesOfSum(unit);
  return s;
}

double UnitEstimator::DataOnce(const ParameterCount& p, double tensors, const UnitSeconds& slot) const {
  const double backward_seconds = x_.hides_replica_sums ? slot.compute * 0.5 : 0;
  const ParameterCount experts{0, 0, p.expert}, others{p.whole, p.tensor, 0};
  double traffic = Replicate(others, g_.replicas, tensors) + Replicate(experts, g_.expert_replicas, tensors);
  double weights = 0;
  const double elements = InUse(p, l_);
  if (l_.shards() > 1 && l_.zero_stage < 3) {
    weights = Collectives(m_, CollectiveKind::kAllGather, elements * x_.weight_bytes, tensors, g_.shards) +
              slot.gather_copies;
  }
  if (l_.shards() > 1 && !l_.shards_gradients()) {
    traffic += Collectives(sums_, CollectiveKind::kReduceScatter, elements * x_.gradient_bytes, tensors, g_.shards) +
               slot.sum_copies;
  }
  return traffic - std::min(traffic * x_.overlap_data, backward_seconds) + weights;
}

double UnitEstimator::Update(const ParameterCount& p) const {
  double elements = InUse(p, l_) / static_cast<double>(l_.shards());
  if (x_.optimizer_sharded) elements /= static_cast<double>(l_.sizes[Axis::kDp] * l_.sizes[Axis::kEp]);
  return KernelSeconds(m_, DType::kF32, 0, elements * x_.update_traffic_bytes);
}

double UnitEstimator::StageSum(const ParameterCount& p) const {
  const double elements = InUse(p, l_) / static_cast<double>(l_.shards());
  return CollectiveSeconds(m_, CollectiveKind::kAllReduce, elements * SummedBytes(), TwoStages());
}

double UnitEstimator::Send(double bytes_of_sample) const {
  double bytes = bytes_of_sample * static_cast<double>(l_.micro_batch) / static_cast<double>(l_.sizes[Axis::kCp]);
  bytes *= (1 - x_.send_share_of_tp) + x_.send_share_of_tp / static_cast<double>(l_.sizes[Axis::kTp]);
  return CollectiveSeconds(m_, CollectiveKind::kSend, bytes, TwoStages());
}

void UnitEstimator::AddData(const UnitWork& unit, const Phases& phases, double scale, UnitSeconds& s) const {
  const double tensors = std::max(1, unit.num_parameters), elements = InUse(unit.parameters, l_);
  const double trained_tensors = std::max(1, unit.num_parameters - unit.num_frozen);
  const double gather = Collectives(m_, CollectiveKind::kAllGather, elements * x_.weight_bytes, tensors, g_.shards);
  const double trained = InUse(unit.trained(), l_);
  const double reduce = trained <= 0 ? 0
                                     : Collectives(sums_, CollectiveKind::kReduceScatter, trained * x_.gradient_bytes,
                                                   trained_tensors, g_.shards);
  const double gathers = l_.zero_stage < 3 ? 0 : gather + CopiesOfGather(unit);
  const double gathers_again = l_.reshard ? gathers : 0;
  const double sums = l_.shards_gradients() ? reduce + CopiesOfSum(unit) : 0;
  const auto hide = [&](double PassSeconds::*pass, double traffic, double seconds) {
    const double hidden = std::min(traffic * x_.overlap_data, std::max(0.0, seconds));
    s.hidden_data.*pass += hidden;
    s.data.*pass += traffic - hidden;
  };
  // Each hides behind its own pass.
  const double in_forward = scale * phases.forward.device, in_again = scale * phases.again.device;
  const double in_backward = scale * phases.backward.device;
  hide(&PassSeconds::forward, gathers, Behind(phases.forward, in_forward, true));
  if (l_.sizes[Axis::kPp] > 1 && l_.schedule == PipelineSchedule::kZeroBubble) {
    const double before_weights = Behind(phases.backward, in_backward - s.in_weights, false);
    hide(&PassSeconds::backward, gathers_again, Behind(phases.again, in_again, false) + before_weights);
    hide(&PassSeconds::weight, sums, s.in_weights);
  } else {
    hide(&PassSeconds::backward, gathers_again + sums,
         Behind(phases.again, in_again, false) + Behind(phases.backward, in_backward, false));
  }
  // While such traffic is under way, collectives over the same links take twice as long.
  const auto slow = [&](double PassSeconds::*pass, double traffic, double compute, const Phase& a, const Phase& b) {
    const double held_up = HeldUpOverSameLinks(a) + HeldUpOverSameLinks(b);
    if (held_up > 0) s.data.*pass += held_up * std::min(1.0, traffic * x_.overlap_data / (compute + held_up));
  };
  slow(&PassSeconds::forward, gathers, in_forward, phases.forward, {});
  slow(&PassSeconds::backward, gathers_again + sums, in_again + in_backward, phases.again, phases.backward);
}

double UnitEstimator::HeldUpOverSameLinks(const Phase& phase) const {
  return (IsOverOtherLinks(g_.tp) ? 0 : phase.tensor) + (IsOverOtherLinks(g_.ep) ? 0 : phase.expert);
}

double UnitEstimator::Behind(const Phase& phase, double compute, bool is_forward) const {
  const double seconds = compute + phase.tensor + phase.expert - HeldUpOverSameLinks(phase);
  if (phase.ring + phase.context <= 0) return seconds;
  if (IsOverOtherLinks(g_.cp)) return seconds + phase.context;
  // The steps of a ring over the same ranks wait for what has been started before.
  if (l_.sizes[Axis::kFsdp] == 1) return is_forward ? phase.before_ring : seconds - phase.in_ring;
  return seconds - phase.ring;
}

double UnitEstimator::Collectives(const Machine& machine, CollectiveKind kind, double bytes, double tensors,
                                  const GroupShape& group) {
  return tensors * CollectiveSeconds(machine, kind, bytes / tensors, group);
}

double UnitEstimator::Replicate(const ParameterCount& p, const GroupShape& group, double tensors) const {
  const double elements = InUse(p, l_) / static_cast<double>(l_.shards());
  if (elements <= 0) return 0;
  const double gathered = x_.optimizer_sharded ? x_.weight_bytes : SummedBytes();
  return Collectives(sums_, CollectiveKind::kReduceScatter, elements * x_.gradient_bytes, tensors, group) +
         Collectives(m_, CollectiveKind::kAllGather, elements * gathered, tensors, group);
}

double UnitEstimator::CopiesOfGather(const UnitWork& unit) const {
  double elements = 0;
  const auto count = [&](const WeightDims& weight) {
    const Shards shards = ShardsOf(weight, l_);
    const bool lie_so = m_.shares_cores ? shards.rows <= 1 : shards.are_equal && shards.rows <= kMaxRowsInPlace;
    if (!lie_so) elements += shards.elements;
  };
  for (const WeightDims& weight : unit.weights) count(weight);
  // With less than stage 3 only what the update has changed is gathered.
  for (const WeightDims& weight : unit.frozen_weights) {
    if (l_.zero_stage == 3) count(weight);
  }
  return CopySeconds(m_, elements * x_.weight_bytes);
}

double UnitEstimator::CopiesOfSum(const UnitWork& unit) const {
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

bool UnitEstimator::IsDone(const TransferWork& transfer, Of of) {
  return of == Of::kAgain ? transfer.is_repeated : of != Of::kBackwardAfterAgain || !transfer.is_shared;
}

UnitEstimator::Phase UnitEstimator::Run(const PhaseWork& work, Of of) const {
  Phase phase;
  for (const KernelWork& k : work.kernels) {
    if (k.purpose == KernelWork::Purpose::kCast || k.purpose == KernelWork::Purpose::kAccumulation) continue;
    if (of == Of::kAgain && !k.is_repeated) continue;
    if (k.is_launched) ++phase.kernels;
    const double seconds = Kernel(k);
    phase.device += seconds;
    if (k.exponentials > 0) phase.in_ring += seconds;
    if (phase.in_ring == 0) phase.before_ring += seconds;
  }
  const double samples = static_cast<double>(l_.micro_batch) / static_cast<double>(l_.sizes[Axis::kCp]);
  if (l_.sizes[Axis::kTp] > 1) {
    // A gather and a reduce-scatter where activations are sequence-sharded; an all-reduce for every two of them
    // where not: the same bytes.
    for (const auto* transfers : {&work.gathers, &work.scatters}) {
      for (const TransferWork& transfer : *transfers) {
        if (!IsDone(transfer, of)) continue;
        const double bytes = transfer.bytes * samples;
        phase.tensor += x_.sequence_sharded ? CollectiveSeconds(m_, CollectiveKind::kAllGather, bytes, g_.tp)
                                            : CollectiveSeconds(m_, CollectiveKind::kAllReduce, bytes, g_.tp) / 2;
        phase.kernels += x_.sequence_sharded ? 1 : 0.5;
      }
    }
    phase.tensor -= std::min(phase.tensor * x_.overlap_tensor, phase.device);
  }
  if (l_.sizes[Axis::kCp] > 1 && work.ring.keys > 0)
    GoRound(work, samples / static_cast<double>(l_.sizes[Axis::kTp]), phase);
  if (l_.sizes[Axis::kEp] > 1) {
    for (const TransferWork& exchange : work.exchanges) {
      if (!IsDone(exchange, of)) continue;
      const double bytes = exchange.bytes * samples / static_cast<double>(l_.sizes[Axis::kTp]);
      phase.expert += CollectiveSeconds(m_, CollectiveKind::kAllToAll, bytes, g_.ep);
      // Where the buffers of one rank do not lie one behind the other, what goes to the others is copied.
      if (l_.micro_batch > 1)
        phase.expert += CopySeconds(m_, bytes * (1 - 1 / static_cast<double>(l_.sizes[Axis::kEp])));
    }
  }
  return phase;
}

void UnitEstimator::GoRound(const PhaseWork& work, double share, Phase& phase) const {
  const auto steps = static_cast<double>(l_.sizes[Axis::kCp]);
  const auto rotate = [&](double bytes) {  // two tensors
    return 2 * CollectiveSeconds(m_, CollectiveKind::kRotate, bytes / 2 * share, g_.cp);
  };
  const auto touch = [&](double bytes) { return Issued(KernelSeconds(m_, DType::kF32, 0, bytes * share)); };
  const double keys = rotate(work.ring.keys), gradients = rotate(work.ring.key_gradients);
  const double add_queries = touch(3 * work.ring.query_gradients), add_keys = touch(1.5 * work.ring.key_gradients);
  const double beside = WeightlessSeconds(work) / steps + (gradients > 0 ? add_queries + add_keys : 0);
  const auto send = [&](double seconds, double times) {
    const double hidden = m_.shares_cores ? 0 : std::min(seconds, beside);
    phase.ring += times * hidden;
    phase.context += times * (seconds - hidden);
  };
  if (gradients <= 0) return send(keys, steps - 1);
  send(keys, std::min(2.0, steps - 1));
  send(keys + gradients, std::max(0.0, steps - 3));
  if (l_.sizes[Axis::kCp] > 2) send(gradients, 1);
  phase.context += gradients;
  const double adds = (steps - 1) * (add_queries + 2 * add_keys);
  phase.device += adds;
  phase.in_ring += adds;
  phase.kernels += 3 * (steps - 1);
  if (x_.compute == DType::kF32) return;
  phase.device += touch(1.5 * work.ring.query_gradients) + 2 * touch(0.75 * work.ring.key_gradients);
  phase.kernels += 3;
}

double UnitEstimator::Issued(double device, bool is_launched) const {
  return x_.issues_ahead || !is_launched ? device : IssuedSeconds(m_, device, 1);
}

double UnitEstimator::Kernel(const KernelWork& k) const {
  const double share = RegionShare(k.region, l_, x_.sequence_sharded);
  const double whole = k.whole_bytes * static_cast<double>(l_.micro_batch) / static_cast<double>(l_.sizes[Axis::kCp]);
  const double bytes = k.sample_bytes * share + whole + k.weight_bytes * WeightShare(k.region, l_);
  if (k.exponentials > 0) return static_cast<double>(l_.sizes[Axis::kCp]) * Issued(Attention(k, bytes));
  if (k.flops <= 0) return Issued(KernelSeconds(m_, k.dtype, 0, bytes), k.is_launched);
  ProductShape shape = {Local(k.rows, l_, x_.sequence_sharded), Local(k.columns, l_, x_.sequence_sharded),
                        Local(k.depth, l_, x_.sequence_sharded)};
  if (k.groups.size > 0) {
    shape.slots = k.rows.split == Split::kTokens ? SlotsAre::kRows : SlotsAre::kDepth;
    (shape.slots == SlotsAre::kRows ? shape.rows : shape.depth) /= Local(k.groups, l_, x_.sequence_sharded);
  }
  const double joined = Issued(KernelSeconds(m_, k.dtype, k.flops * share, bytes, shape));
  if (k.parts.empty()) return joined;
  double apart = 0;
  for (double part : k.parts) {
    ProductShape of_part = shape;
    (k.joins_depth ? of_part.depth : of_part.columns) *= part;
    apart += Issued(KernelSeconds(m_, k.dtype, k.flops * share * part, bytes * part, of_part));
  }
  // Of CPUs, and of attention's where a ring goes round, products stay apart.
  const bool may_join = !m_.shares_cores && (l_.sizes[Axis::kCp] == 1 || k.parts.size() != kPartsOfAttention);
  return may_join ? std::min(joined, apart) : apart;
}

double UnitEstimator::Casts(const UnitWork& unit, bool is_repeated) const {
  if (x_.keeps_copies || l_.zero_stage < 3) return 0;
  double seconds = 0;
  for (const KernelWork& k : unit.forward.kernels) {
    if (k.purpose != KernelWork::Purpose::kCast) continue;
    const double bytes = k.weight_bytes * WeightShare(k.region, l_) / static_cast<double>(l_.shards());
    seconds += Issued(KernelSeconds(m_, k.dtype, 0, bytes));
  }
  const bool again = l_.sizes[Axis::kPp] > 1 || (l_.shards() > 1 ? l_.reshard : is_repeated);
  return again ? 2 * seconds : seconds;
}

double UnitEstimator::Accumulations(const UnitWork& unit) const {
  if (l_.accumulation == 1) return 0;
  const bool is_scattered = l_.shards() > 1 && l_.shards_gradients();
  double seconds = 0;
  for (const KernelWork& k : unit.backward.kernels) {
    if (k.purpose != KernelWork::Purpose::kAccumulation) continue;
    const double bytes = k.weight_bytes * WeightShare(k.region, l_);
    if (is_scattered) {
      seconds += Issued(KernelSeconds(m_, k.dtype, 0, bytes / static_cast<double>(l_.shards())));
    } else if (!k.is_of_product) {
      seconds += Issued(KernelSeconds(m_, k.dtype, 0, bytes));
    } else if (m_.multiprocessors > 0) {
      seconds += KernelSeconds(m_, k.dtype, 0, bytes / 3);  // the product reads the sum before
    }
  }
  return seconds;
}

double UnitEstimator::Attention(const KernelWork& k, double bytes) const {
  const double share = RegionShare(k.region, l_, x_.sequence_sharded) / static_cast<double>(l_.sizes[Axis::kCp]);
  const AttentionMask mask = l_.sizes[Axis::kCp] > 1 ? AttentionMask::kAny : k.mask;
  return AttentionSeconds(m_, k.dtype, mask, k.flops * share, k.exponentials * share, bytes, k.repeated_flops * share);
}

double UnitEstimator::WeightlessSeconds(const PhaseWork& work) const {
  double seconds = 0;
  for (const KernelWork& k : work.kernels) {
    if (k.exponentials > 0) {
      seconds += static_cast<double>(l_.sizes[Axis::kCp]) * Attention(k, 0);
    } else if (k.flops > 0 && k.weight_bytes == 0) {
      seconds += KernelSeconds(m_, k.dtype, k.flops * RegionShare(k.region, l_, x_.sequence_sharded), 0);
    }
  }
  return seconds;
}

}  // namespace tacc::graph
