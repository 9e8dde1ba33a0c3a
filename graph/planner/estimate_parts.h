#ifndef TACC_GRAPH_PLANNER_ESTIMATE_PARTS_H_
#define TACC_GRAPH_PLANNER_ESTIMATE_PARTS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "graph/ir/rest_cut.h"
#include "graph/planner/estimate.h"

namespace tacc::graph {

// What a rank and a stage have of a model: for the estimates of time and of memory, and nothing else.

// A rank's share of an amount of one sample that is split over a region.
inline double RegionShare(Split region, const Layout& l, bool sequence_sharded) {
  const double samples = static_cast<double>(l.micro_batch) / static_cast<double>(l.cp);
  const bool over_tp = region == Split::kTensor || region == Split::kExpert || sequence_sharded;
  return over_tp ? samples / static_cast<double>(l.tp) : samples;
}

// Elements of a rank's parameters in use.
inline double InUse(const ParameterCount& p, const Layout& l) {
  return p.whole + p.tensor / static_cast<double>(l.tp) + p.expert / static_cast<double>(l.tp * l.ep);
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
    const int64_t ranks = dim.split == Split::kTensor ? l.tp : dim.split == Split::kExpert ? l.ep : 1;
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
inline bool HasCopies(const ModelWork& model, const Layout& l) { return l.pp > 1 && model.tied.total() > 0; }

// The model with these copies as parameters.
inline ModelWork WithCopies(const ModelWork& model) {
  ModelWork copied = model;
  UnitWork& last = copied.units.back();
  last.parameters.Add(model.tied, 1);
  ++last.num_parameters;
  copied.tied = {};
  return copied;
}

// `take` units of this kind lie on this stage. Layers go evenly to the stages; what comes before them to the first,
// what comes after to the last.
template <typename Visit>
void ForEachPart(const ModelWork& model, int64_t pp, const Visit& visit) {
  int64_t done = 0;  // layers before
  for (size_t u = 0; u < model.units.size(); ++u) {
    const UnitWork& unit = model.units[u];
    for (int64_t left = unit.count; left > 0;) {
      int64_t stage = 0, take = left;
      if (pp > 1) {
        stage = std::min(pp - 1, done * pp / std::max<int64_t>(model.num_layers, 1));
        const int64_t end = ((stage + 1) * model.num_layers + pp - 1) / pp;
        if (unit.is_layer) take = std::clamp<int64_t>(end - done, 1, left);
      }
      visit(stage, u, take);
      if (unit.is_layer) done += take;
      left -= take;
    }
  }
}

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_ESTIMATE_PARTS_H_
