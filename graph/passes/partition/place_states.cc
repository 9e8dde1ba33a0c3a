#include "graph/passes/partition/place_states.h"

#include <algorithm>
#include <set>
#include <utility>

#include "graph/ir/rest_cut.h"
#include "graph/ir/state_names.h"

namespace tacc::graph {
namespace {

// How a tensor that is used as `in_use` is cut into its shards at rest; one shard: not at all.
RestCut CutOf(const Dims& dims, const Mesh& mesh, const Sharding& in_use, int64_t shards) {
  if (shards == 1 || dims.empty()) return {};
  const Dims held = LocalDims(dims, in_use, mesh);
  std::vector<DimInUse> used;
  for (size_t d = 0; d < dims.size(); ++d)
    used.push_back({held[d], !in_use.dims[d].empty(), IsPadded(dims[d], in_use.dims[d], mesh)});
  return CutAtRest(used, shards);
}

// The first entry stands for those that are merged.
template <typename T>
std::vector<T> Merged(std::vector<T> of_dims, int merged) {
  if (merged > 1 && !of_dims.empty()) of_dims.erase(of_dims.begin() + 1, of_dims.begin() + merged);
  return of_dims;
}

// The parameters as they are used.
ParameterForms FormsInUse(const Program& program, const PartitionOptions& options) {
  ParameterForms forms;
  for (const State& state : program.states) {
    if (state.kind != StateKind::kWeight) continue;
    ParameterForm& form = forms[ParameterOf(state)];
    form.dims = state.placement.global.dims;
    if (const auto pin = options.pinned_weights.find(ParameterOf(state)); pin != options.pinned_weights.end()) {
      form.in_use = pin->second;
      continue;
    }
    Sharding& s = form.in_use = Sharding::Replicated(state.placement.global.rank());
    for (size_t d = 0; d < state.axes.size(); ++d) {
      const auto it = options.in_use_axes.find(state.axes[d]);
      if (it == options.in_use_axes.end()) continue;
      for (int axis : it->second) {
        if (!s.Uses(axis)) s.dims[d].push_back(axis);
      }
    }
  }
  return forms;
}

// The states that a micro-batch changes beside sums over micro-batches: buffers. Each rank reads and writes them whole.
std::set<std::string> StoredByMicroBatches(const std::vector<Graph>& graphs) {
  std::set<std::string> stored;
  for (const Graph& graph : graphs) {
    if (graph.name == kUpdateGraph) continue;
    for (const Node& node : graph.nodes) {
      if (node.op == Op::kStore) stored.insert(node.symbol);
    }
  }
  return stored;
}

// Does the layout shard this state at rest beyond its use?
bool ShardedAtRest(const State& state, const StateIndex& states, const PartitionOptions& options) {
  const int zero_stage = options.zero_stage;
  switch (state.kind) {
    case StateKind::kOptimizer:
    case StateKind::kAverage:
      return true;
    case StateKind::kGradient:
      return zero_stage == 2 || (zero_stage == 3 && options.reduce_each_micro_batch);
    case StateKind::kCopy:
      return zero_stage >= 3;
    case StateKind::kWeight:  // a master beside a copy is only the optimizer's
      return zero_stage >= 3 || states.Find(CopyState(ParameterOf(state))) != nullptr;
    case StateKind::kLossScale:
    case StateKind::kCounter:
    case StateKind::kStash:
      return false;
  }
  return false;
}

}  // namespace

ParameterForms PlaceStates(const std::vector<Graph>& graphs, const PartitionOptions& options, Program& program) {
  const int64_t shards = NumShards(options.mesh, options.at_rest_axes);
  ParameterForms forms = FormsInUse(program, options);
  const StateIndex states(program);
  const std::set<std::string> changed = StoredByMicroBatches(graphs);
  std::map<std::string, RestCut> cuts;
  for (auto& [parameter, form] : forms) {
    const RestCut& cut = cuts[parameter] = CutOf(form.dims, options.mesh, form.in_use, shards);
    form.merged_dims = Merged(form.dims, cut.merged);
    for (int d = 1; d < cut.merged; ++d) form.merged_dims[0] *= form.dims[d];
    form.merged_in_use = {Merged(form.in_use.dims, cut.merged), form.in_use.pending};
  }
  for (State& state : program.states) {
    if (state.kind == StateKind::kCounter || state.kind == StateKind::kLossScale) continue;
    const auto found = forms.find(ParameterOf(state));
    if (found == forms.end()) continue;  // of no weight
    const ParameterForm& form = found->second;
    if (state.placement.global.dims != form.dims) continue;  // whole on each rank: small beside the parameter
    const bool is_changed_weight = state.kind == StateKind::kWeight && changed.count(state.name) > 0;
    const bool has_shards =
        shards > 1 && !form.dims.empty() && !is_changed_weight && ShardedAtRest(state, states, options);
    state.placement.sharding = has_shards ? form.merged_in_use : form.in_use;
    if (!has_shards) continue;
    const RestCut& cut = cuts.at(ParameterOf(state));
    if (form.is_merged()) {
      state.merged_from = form.dims;
      state.placement.global.dims = form.merged_dims;
      state.axes = Merged(state.axes, cut.merged);
    }
    AxisList& axes = state.placement.sharding.dims[cut.dim];
    axes.insert(axes.end(), options.at_rest_axes.begin(), options.at_rest_axes.end());
  }
  return forms;
}

}  // namespace tacc::graph
