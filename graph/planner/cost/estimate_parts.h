#ifndef TACC_GRAPH_PLANNER_COST_ESTIMATE_PARTS_H_
#define TACC_GRAPH_PLANNER_COST_ESTIMATE_PARTS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "graph/ir/rest_cut.h"
#include "graph/planner/cost/estimate.h"

namespace tacc::graph {

// What a rank and a stage have of a model: for the estimates of time and of memory, and nothing else.

// A rank's share of an amount of one sample that is split over a region.
inline double RegionShare(Split region, const Layout& l, bool sequence_sharded) {
  const double samples = static_cast<double>(l.micro_batch) / static_cast<double>(l.sizes[Axis::kCp]);
  const bool over_tp = region == Split::kTensor || region == Split::kExpert || sequence_sharded;
  return over_tp ? samples / static_cast<double>(l.sizes[Axis::kTp]) : samples;
}

// Elements of a rank's parameters in use.
inline double InUse(const ParameterCount& p, const Layout& l) {
  return p.whole + p.tensor / static_cast<double>(l.sizes[Axis::kTp]) +
         p.expert / static_cast<double>(l.sizes[Axis::kTp] * l.sizes[Axis::kEp]);
}

// How the shards of a parameter in use lie in it.
struct Shards {
  double elements = 0;  // of the parameter in use
  double held = 0;      // of a shard, with padding
  double rows = 1;      // side by side
  bool are_equal = true;
};
inline Shards ShardsOf(const WeightDims& weight, const Layout& l) {
  Shards shards;
  if (weight.empty()) return shards;
  std::vector<DimInUse> dims;
  shards.elements = 1;
  for (const Extent& dim : weight) {
    const int64_t ranks = dim.split == Split::kTensor   ? l.sizes[Axis::kTp]
                          : dim.split == Split::kExpert ? l.sizes[Axis::kEp]
                                                        : 1;
    const auto size = static_cast<int64_t>(dim.size);
    dims.push_back({(size + ranks - 1) / ranks, ranks > 1, size % ranks != 0});
    shards.elements *= static_cast<double>(dims.back().extent);
  }
  const RestCut cut = CutAtRest(dims, l.shards());
  double extent = 1;
  for (int d = 0; d < cut.dim; ++d) shards.rows *= static_cast<double>(dims[d].extent);
  for (int d = cut.dim; d < cut.dim + cut.merged; ++d) extent *= static_cast<double>(dims[d].extent);
  shards.are_equal = cut.is_equal;
  shards.held = shards.elements / std::max(extent, 1.0) * std::ceil(extent / static_cast<double>(l.shards()));
  return shards;
}

// Whether the last stage has copies of parameters of the first.
inline bool HasCopies(const ModelWork& model, const Layout& l) {
  return l.sizes[Axis::kPp] > 1 && model.tied.total() > 0;
}

// The model with these copies as parameters.
inline ModelWork WithCopies(const ModelWork& model) {
  ModelWork copied = model;
  UnitWork& last = copied.units.back();
  last.parameters.Add(model.tied, 1);
  ++last.num_parameters;
  if (model.tied_are_frozen) {
    last.frozen.Add(model.tied, 1);
    ++last.num_frozen;
  }
  std::vector<KernelWork>& backward = copied.units.front().backward.kernels;
  std::erase_if(backward, [](const KernelWork& k) { return k.purpose == KernelWork::Purpose::kTiedSum; });
  for (const KernelWork& k : backward) {
    if (k.purpose == KernelWork::Purpose::kAccumulation) last.backward.kernels.push_back(k);
  }
  copied.tied = {};
  return copied;
}

// Layers of each of the parts into which a pipeline cuts the model, as CutPoints does: so that the largest part has as
// few FLOPs as can be, what comes after the layers with the last; of several such cuts, late parts have more. `even`:
// as many layers in each.
inline std::vector<int64_t> LayersOfParts(const ModelWork& model, int64_t num_parts, bool even) {
  double layers = 0, after = 0;
  for (const UnitWork& unit : model.units) {
    double flops = 0;
    for (const KernelWork& k : unit.forward.kernels) flops += k.flops;
    (unit.is_layer ? layers : after) += static_cast<double>(unit.count) * flops;
  }
  int64_t left = model.num_layers, last = left;
  const double head = layers > 0 && !even ? after / layers * static_cast<double>(left) : 0;  // in layers
  const auto most = [](int64_t count, int64_t parts) { return (count + parts - 1) / std::max<int64_t>(parts, 1); };
  if (num_parts > 1) {
    double least = std::numeric_limits<double>::infinity();
    for (int64_t take = 1; take <= left - (num_parts - 1); ++take) {
      const double largest =
          std::max(static_cast<double>(take) + head, static_cast<double>(most(left - take, num_parts - 1)));
      if (largest <= least) last = take;
      least = std::min(least, largest);
    }
  }
  std::vector<int64_t> counts(num_parts, 0);
  for (int64_t part = num_parts - 1; part >= 0; --part) {
    counts[part] = part + 1 == num_parts ? last : most(left, part + 1);
    left -= counts[part];
  }
  return counts;
}

// `count` units of this kind lie on this stage. What comes before the layers lies on the first, what comes after on the
// last. Of several chunks a stage has every pp-th part.
template <typename Visit>
void ForEachPart(const ModelWork& model, const Layout& l, bool even, const Visit& visit) {
  const std::vector<int64_t> counts = LayersOfParts(model, l.sizes[Axis::kPp] * std::max<int64_t>(l.chunks, 1), even);
  const auto num_parts = static_cast<int64_t>(counts.size());
  int64_t part = 0, room = counts[0];
  bool is_after = false;
  for (size_t u = 0; u < model.units.size(); ++u) {
    const UnitWork& unit = model.units[u];
    if (!unit.is_layer) {
      visit(is_after ? l.sizes[Axis::kPp] - 1 : 0, u, unit.count);
      continue;
    }
    is_after = true;
    for (int64_t todo = unit.count; todo > 0;) {
      while (room == 0 && part + 1 < num_parts) room = counts[++part];
      const int64_t take = room > 0 ? std::min(room, todo) : todo;
      visit(part % l.sizes[Axis::kPp], u, take);
      todo -= take;
      room -= std::min(room, take);
    }
  }
}

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_COST_ESTIMATE_PARTS_H_
