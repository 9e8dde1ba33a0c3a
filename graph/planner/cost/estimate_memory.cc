#include <algorithm>
#include <utility>
#include <vector>

#include "graph/planner/cost/estimate.h"
#include "graph/planner/cost/estimate_parts.h"

namespace tacc::graph {
namespace {

// Copies of what a stage keeps for a weight pass, in micro-batches: it is `stage` micro-batches later, and until then
// there is what products take in, also where the forward ran again for that, and the gradients of what they give: by
// the programs of decoders, so much of what they save.
double CopiesForWeightPasses(const Layout& l, int64_t stage) {
  constexpr double kForWeightPass = 0.75;
  if (l.schedule != PipelineSchedule::kZeroBubble || stage == 0) return 0;
  return kForWeightPass * static_cast<double>(std::min(stage + 1, l.accumulation));
}

// Copies of what a stage keeps of a micro-batch for its backward, when the pipeline is full.
double CopiesInFlight(const Layout& l, int64_t stage) {
  const double plain = static_cast<double>(l.sizes[Axis::kPp] - stage);
  if (l.schedule != PipelineSchedule::kInterleaved) return plain;
  // Each chunk has copies of its own: as many as it has forward passes before its first backward. In a round,
  // l.pp micro-batches go through all chunks.
  int64_t copies = 0;
  const int64_t round = l.sizes[Axis::kPp] * l.chunks,
                warmup = 2 * (l.sizes[Axis::kPp] - stage - 1) + (l.chunks - 1) * l.sizes[Axis::kPp];
  for (int64_t chunk = 0; chunk < l.chunks; ++chunk) {
    const int64_t forwards = warmup + (l.chunks - 1 - chunk) * l.sizes[Axis::kPp] + 1;
    copies += forwards / round * l.sizes[Axis::kPp] +
              std::clamp<int64_t>(forwards % round - chunk * l.sizes[Axis::kPp], 0, l.sizes[Axis::kPp]);
  }
  return static_cast<double>(copies) / static_cast<double>(l.chunks);
}

// A unit on a rank, as often as it lies there.
struct Held {
  int64_t count = 0;
  bool is_layer = false;
  double elements = 0;         // of its parameters in use
  double trained = 0;          // of those that are trained
  double kept = 0, saved = 0;  // from the forward to the backward; what that needs, some of it computed again
  double working = 0;          // temporaries of the backward beside these
  std::vector<std::pair<double, double>> instants;  // of the backward: bytes of both, and whole gradients made
};

// Bytes that come and go in a backward, at the instant when they are most: of a rank that holds these units, first to
// last, and frees what it keeps as it goes. `e` has what stays, and gradients where they do.
MemoryEstimate AtItsPeak(const std::vector<Held>& units, const Layout& l, const Execution& x, const MemoryEstimate& e) {
  const double width = static_cast<double>(ByteSize(x.compute));
  const bool gathers = l.zero_stage == 3 && l.shards() > 1;
  const bool casts = !gathers && l.zero_stage == 3 && !x.keeps_copies && x.compute != DType::kF32;
  const bool sums = l.shards() > 1 && l.shards_gradients();
  const bool stays = l.accumulation > 1 || x.keeps_gradients;
  double kept = 0, whole = 0;
  for (const Held& unit : units) {
    kept += static_cast<double>(unit.count) * unit.kept;
    whole += static_cast<double>(unit.count) * unit.elements;
  }
  MemoryEstimate most = e;  // as the update finds it
  double done = 0,
         under_way = 0;  // trained elements whose gradients are summed, and whose sums the next unit's backward hides
  for (size_t u = units.size(); u-- > 0;) {
    const Held& unit = units[u];
    for (int64_t k = 0; k < unit.count; ++k) {
      const double next = k + 1 < unit.count ? unit.elements : u > 0 ? units[u - 1].elements : 0;
      kept -= unit.kept;
      for (size_t instant = 0; instant <= unit.instants.size(); ++instant) {
        const bool at_end = instant == unit.instants.size();
        const auto [needed, made] = at_end ? std::pair(0.0, unit.trained) : unit.instants[instant];
        MemoryEstimate now = e;
        now.activations = kept + std::min(needed, unit.kept);
        now.temporaries = needed - std::min(needed, unit.kept);
        const double whole_gradients = under_way + made;
        if (sums) now.temporaries += 4 * whole_gradients;
        if (!stays) now.gradients = 4 * (sums ? done / static_cast<double>(l.shards()) : done + whole_gradients);
        if (gathers) now.copies += width * (!l.reshard ? whole : next + (at_end ? 0 : unit.elements));
        if (casts) now.copies += width * unit.trained;
        if (now.total() > most.total()) most = now;
      }
      done += under_way;
      under_way = unit.trained;
      // Each further one of them but the last two changes as much as this one did.
      if (k == 2 && unit.count > 5) {
        const auto skipped = static_cast<double>(unit.count - 5);
        kept -= skipped * unit.kept;
        done += skipped * unit.trained;
        k = unit.count - 3;
      }
    }
  }
  return most;
}

}  // namespace

MemoryEstimate EstimateMemory(const ModelWork& any, const Layout& l, const Execution& x) {
  const ModelWork& model = any.OverExpertRanks(l.sizes[Axis::kEp]);
  if (HasCopies(model, l)) return EstimateMemory(WithCopies(model), l, x);
  std::vector<std::vector<Held>> stages(l.sizes[Axis::kPp]);
  std::vector<ParameterCount> trained(l.sizes[Axis::kPp]);
  std::vector<double> frozen_bytes(l.sizes[Axis::kPp], 0);  // whole, in use
  const double width = static_cast<double>(ByteSize(x.compute));
  const double home = RegionShare(Split::kHome, l, x.sequence_sharded), tensor = RegionShare(Split::kTensor, l, true);
  ForEachPart(model, l, x.even_stages, [&](int64_t stage, size_t u, int64_t count) {
    const UnitWork& unit = model.units[u];
    trained[stage].Add(unit.trained(), static_cast<double>(count));
    frozen_bytes[stage] += static_cast<double>(count) *
                           (4 * (InUse(unit.frozen, l) - InUse(unit.narrow, l)) + width * InUse(unit.narrow, l));
    const bool repeated = l.recompute && unit.is_layer;
    Held held;
    held.count = count;
    held.is_layer = unit.is_layer;
    held.elements = InUse(unit.parameters, l);
    held.trained = InUse(unit.trained(), l);
    held.saved = unit.saved_home_bytes * home + unit.saved_tensor_bytes * tensor;
    held.kept = repeated ? (unit.input_bytes - unit.narrowed_bytes) * home : held.saved;
    held.working = unit.working_home_bytes * home + unit.working_tensor_bytes * tensor + (repeated ? held.saved : 0);
    const double input = repeated ? held.kept : 0;
    for (const Instant& instant : unit.instants)
      held.instants.emplace_back(input + instant.home_bytes * home + instant.tensor_bytes * tensor,
                                 instant.gradients * held.trained);
    if (held.instants.empty()) held.instants.emplace_back(input + held.working + (repeated ? 0 : held.saved), 0);
    stages[stage].push_back(held);
  });
  MemoryEstimate fullest;
  const double shards = static_cast<double>(l.shards());
  for (int64_t stage = 0; stage < l.sizes[Axis::kPp]; ++stage) {
    const double whole = InUse(trained[stage], l), elements = whole / shards;
    // Where masters are sharded and weights in use are not, narrower copies are what is used.
    const bool uses_copies = l.zero_stage < 3 && x.compute != DType::kF32;
    MemoryEstimate e;
    e.weights = 4 * (l.zero_stage == 3 || uses_copies ? elements : whole);
    e.gradients = 4 * (l.shards_gradients() ? elements : whole);
    e.optimizer = x.optimizer_bytes * elements;
    if (x.optimizer_sharded) {
      const double replicas = static_cast<double>(l.sizes[Axis::kDp] * l.sizes[Axis::kEp]);
      e.weights /= replicas;
      e.optimizer /= replicas;
    }
    e.weights += frozen_bytes[stage] / (l.zero_stage == 3 ? shards : 1);
    if (x.keeps_copies) e.copies = width * elements;
    if (uses_copies) e.copies = width * whole;
    if (l.sizes[Axis::kPp] == 1) {
      e = AtItsPeak(stages[stage], l, x, e);
    } else {
      // What a stage keeps for micro-batches to come is not freed as one of them goes.
      double kept = 0, saved = 0, working = 0, largest = 0, cast = 0, layer = 0, in_use = 0;
      for (const Held& held : stages[stage]) {
        kept += static_cast<double>(held.count) * held.kept;
        saved += static_cast<double>(held.count) * held.saved;
        working = std::max(working, held.working);
        largest = std::max(largest, held.elements);
        cast = std::max(cast, held.trained);
        in_use += static_cast<double>(held.count) * held.elements;
        if (held.is_layer) layer = std::max(layer, held.trained);
      }
      if (l.zero_stage == 3 && l.shards() > 1) {
        // The unit in use, whole, and the next one where it is gathered ahead.
        e.copies += width * (l.reshard ? 2 * largest : in_use);
      } else if (l.zero_stage == 3 && !x.keeps_copies && x.compute != DType::kF32) {
        e.copies += width * cast;
      }
      const auto most = static_cast<double>(l.accumulation);
      const double in_flight = std::min(most, CopiesInFlight(l, stage));
      e.activations = kept * in_flight + saved * CopiesForWeightPasses(l, stage);
      e.temporaries = working;
      // A layer's sums are waited for when the line has left the next one.
      if (l.shards() > 1 && l.shards_gradients()) e.temporaries += 2 * 4 * layer;
    }
    if (e.total() > fullest.total()) fullest = e;
  }
  return fullest;
}

}  // namespace tacc::graph
