#include <algorithm>
#include <vector>

#include "graph/planner/estimate.h"
#include "graph/planner/estimate_parts.h"

namespace tacc::graph {
namespace {

// Bytes of gradients that are whole until they are summed and scattered over the shards' ranks, beyond what the
// backward has freed by then of a layer's activations. They are waited for a unit or two later; a pipeline's stash is
// not freed.
double WholeGradients(const Layout& l, double layer_elements, double layer_kept) {
  constexpr double kNotFreedYet = 0.65;  // of the layer at work
  if (l.pp > 1) return 2 * 4 * layer_elements;
  double most = 0;
  for (int layers : {0, 1, 2})
    most = std::max(most, (layers + 1) * 4 * layer_elements - (layers + kNotFreedYet) * layer_kept);
  return most;
}

// Copies of what a stage keeps for a weight pass, in micro-batches: it is `stage` micro-batches later, and until then
// there is what products take in, also where the forward ran again for that, and the gradients of what they give.
double CopiesForWeightPasses(const Layout& l, int64_t stage) {
  constexpr double kForWeightPass = 1.17;
  return l.schedule == PipelineSchedule::kZeroBubble ? kForWeightPass * static_cast<double>(stage) : 0;
}

// Copies of what a stage keeps of a micro-batch for its backward, when the pipeline is full.
double CopiesInFlight(const Layout& l, int64_t stage) {
  const double plain = static_cast<double>(l.pp - stage);
  if (l.schedule != PipelineSchedule::kInterleaved) return plain;
  // Each chunk has copies of its own: as many as it has forward passes before its first backward. In a round,
  // l.pp micro-batches go through all chunks.
  int64_t copies = 0;
  const int64_t round = l.pp * l.chunks, warmup = 2 * (l.pp - stage - 1) + (l.chunks - 1) * l.pp;
  for (int64_t chunk = 0; chunk < l.chunks; ++chunk) {
    const int64_t forwards = warmup + (l.chunks - 1 - chunk) * l.pp + 1;
    copies += forwards / round * l.pp + std::clamp<int64_t>(forwards % round - chunk * l.pp, 0, l.pp);
  }
  return static_cast<double>(copies) / static_cast<double>(l.chunks);
}

}  // namespace

MemoryEstimate EstimateMemory(const ModelWork& any, const Layout& l, const Execution& x) {
  const ModelWork& model = any.OverExpertRanks(l.ep);
  if (HasCopies(model, l)) return EstimateMemory(WithCopies(model), l, x);
  struct Part {
    ParameterCount parameters;
    double largest = 0, kept = 0, working = 0;
    double saved = 0;                  // as kept, where nothing is computed again
    double layer = 0, layer_kept = 0;  // elements in use of a layer, and what it keeps
  };
  std::vector<Part> parts(l.pp);
  const double home = RegionShare(Split::kHome, l, x.sequence_sharded), tensor = RegionShare(Split::kTensor, l, true);
  ForEachPart(model, l, x.even_stages, [&](int64_t stage, size_t u, int64_t count) {
    const UnitWork& unit = model.units[u];
    Part& part = parts[stage];
    part.parameters.Add(unit.parameters, static_cast<double>(count));
    part.largest = std::max(part.largest, InUse(unit.parameters, l));
    const double saved = unit.saved_home_bytes * home + unit.saved_tensor_bytes * tensor;
    const double working = unit.working_home_bytes * home + unit.working_tensor_bytes * tensor;
    const bool repeated = l.recompute && unit.is_layer;
    part.saved += static_cast<double>(count) * saved;
    part.kept += static_cast<double>(count) * (repeated ? (unit.input_bytes - unit.narrowed_bytes) * home : saved);
    part.working = std::max(part.working, working + (repeated ? saved : 0));
    if (unit.is_layer) {
      part.layer = std::max(part.layer, InUse(unit.parameters, l));
      part.layer_kept = std::max(part.layer_kept, saved);
    }
  });
  MemoryEstimate fullest;
  const double shards = static_cast<double>(l.shards());
  for (int64_t stage = 0; stage < l.pp; ++stage) {
    const Part& part = parts[stage];
    const double whole = InUse(part.parameters, l), elements = whole / shards;
    const double width = static_cast<double>(ByteSize(x.compute));
    // Where masters are sharded and weights in use are not, narrower copies are what is used.
    const bool uses_copies = l.zero_stage < 3 && x.compute != DType::kF32;
    MemoryEstimate e;
    e.weights = 4 * (l.zero_stage == 3 || uses_copies ? elements : whole);
    e.gradients = 4 * (l.shards_gradients() ? elements : whole);
    e.optimizer = 8 * elements;
    if (x.optimizer_sharded) {
      const double replicas = static_cast<double>(l.dp * l.ep);
      e.weights /= replicas;
      e.optimizer /= replicas;
    }
    if (x.keeps_copies) e.copies = width * elements;
    if (uses_copies) e.copies = width * whole;
    if (l.zero_stage < 3) {
      // Nothing is gathered or cast.
    } else if (l.shards() > 1) {
      // The unit in use, whole, and the next one where it is gathered ahead.
      e.copies += width * (l.reshard ? 2 * part.largest : whole);
    } else if (!x.keeps_copies && x.compute != DType::kF32) {
      e.copies += width * part.largest;
    }
    const auto most = static_cast<double>(l.accumulation);
    const double in_flight = std::min(most, l.pp > 1 ? CopiesInFlight(l, stage) : 1.0);
    const double for_weights = std::min(most - in_flight, CopiesForWeightPasses(l, stage));
    e.activations = part.kept * in_flight + part.saved * for_weights;
    e.temporaries = part.working;
    if (l.shards() > 1 && !l.recompute) e.temporaries += WholeGradients(l, part.layer, part.layer_kept);
    if (l.accumulation == 1 && l.pp == 1 && !x.keeps_gradients) {
      e.gradients = std::max(0.0, e.gradients - e.activations);
    }
    if (e.total() > fullest.total()) fullest = e;
  }
  return fullest;
}

}  // namespace tacc::graph
