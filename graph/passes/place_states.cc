#include "graph/passes/place_states.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tacc::graph {
namespace {

// How a tensor that is used as `in_use` lies at rest: the axes appended to those of the first dim whose padding wastes
// at most 1 %, else of the dim that wastes least.
Sharding AtRestSharding(const Dims& dims, const Mesh& mesh, const Sharding& in_use, const AxisList& axes) {
  const int64_t shards = NumShards(mesh, axes);
  if (shards == 1 || dims.empty()) return in_use;
  const Dims used = LocalDims(dims, in_use, mesh);
  Sharding best = in_use;
  double best_waste = 1e30;
  for (size_t d = 0; d < dims.size(); ++d) {
    Sharding candidate = in_use;
    candidate.dims[d].insert(candidate.dims[d].end(), axes.begin(), axes.end());
    const double waste =
        static_cast<double>(LocalDims(dims, candidate, mesh)[d]) * shards / std::max<int64_t>(used[d], 1);
    if (waste < best_waste) {
      best = candidate;
      best_waste = waste;
    }
    if (waste <= 1.01) break;
  }
  return best;
}

// How each weight is used, by parameter.
std::map<std::string, Sharding> InUseShardings(const Program& program, const PartitionOptions& options) {
  std::map<std::string, Sharding> in_use;
  for (const State& state : program.states) {
    if (state.kind != StateKind::kWeight) continue;
    if (const auto pin = options.pinned_weights.find(ParameterOf(state)); pin != options.pinned_weights.end()) {
      in_use[pin->first] = pin->second;
      continue;
    }
    Sharding s = Sharding::Replicated(state.placement.global.rank());
    for (size_t d = 0; d < state.axes.size(); ++d) {
      const auto it = options.in_use_axes.find(state.axes[d]);
      if (it == options.in_use_axes.end()) continue;
      for (int axis : it->second) {
        if (!s.Uses(axis)) s.dims[d].push_back(axis);
      }
    }
    in_use[ParameterOf(state)] = std::move(s);
  }
  return in_use;
}

// Does the layout shard this state at rest beyond its use?
bool ShardedAtRest(const State& state, const Program& program, int zero_stage) {
  switch (state.kind) {
    case StateKind::kOptimizer:
      return true;
    case StateKind::kGradient:
      return zero_stage >= 2;
    case StateKind::kCopy:
      return zero_stage >= 3;
    case StateKind::kWeight:  // a master beside a copy is only the optimizer's
      return zero_stage >= 3 || program.FindState(absl::StrCat("copies/", ParameterOf(state))) != nullptr;
    case StateKind::kLossScale:
    case StateKind::kCounter:
    case StateKind::kStash:
      return false;
  }
  return false;
}

}  // namespace

std::string ParameterOf(const State& state) { return state.name.substr(state.name.find('/') + 1); }

std::map<std::string, Sharding> PlaceStates(Program& program, const PartitionOptions& options) {
  std::map<std::string, Sharding> in_use = InUseShardings(program, options);
  for (State& state : program.states) {
    if (state.kind == StateKind::kCounter || state.kind == StateKind::kLossScale) continue;
    const Sharding& used = in_use.at(ParameterOf(state));
    state.placement.sharding =
        ShardedAtRest(state, program, options.zero_stage)
            ? AtRestSharding(state.placement.global.dims, options.mesh, used, options.at_rest_axes)
            : used;
  }
  return in_use;
}

}  // namespace tacc::graph
