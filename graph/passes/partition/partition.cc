#include "graph/passes/partition/partition.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/state_names.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/passes/modules/units.h"
#include "graph/passes/partition/axis_list.h"
#include "graph/passes/partition/factor_axes.h"
#include "graph/passes/partition/graph_partitioner.h"
#include "graph/passes/partition/merge_dims.h"
#include "graph/passes/partition/pins.h"
#include "graph/passes/partition/place_states.h"
#include "graph/passes/partition/reshard.h"

namespace tacc::graph {
absl::StatusOr<bool> Partition(Program& program, const OpTable& ops, const PartitionOptions& requested) {
  PartitionOptions options = requested;
  auto drop_trivial = [&](AxisList& axes) {
    std::erase_if(axes, [&](int axis) { return options.mesh.axes[axis].size == 1; });
  };
  for (AxisList* axes : {&options.batch_axes, &options.sequence_axes, &options.at_rest_axes}) drop_trivial(*axes);
  for (auto& [name, axes] : options.in_use_axes) drop_trivial(axes);
  if (options.residual.has_value()) {
    for (AxisList& axes : options.residual->dims) drop_trivial(axes);
  }
  Program out;  // all of the program but its graphs
  out.level = Level::kPartitioned;
  out.mesh = options.mesh;
  out.stage = program.stage;
  out.num_stages = program.num_stages;
  out.states = program.states;
  out.step = program.step;
  out.eval = program.eval;
  const ParameterForms forms = PlaceStates(program.graphs, options, out);
  const StateIndex states(out);
  const bool any_is_merged =
      std::any_of(forms.begin(), forms.end(), [](const auto& entry) { return entry.second.is_merged(); });
  std::vector<Graph> merged;
  if (any_is_merged) merged = program.graphs;
  for (Graph& graph : merged) MergeDims(graph, states, forms);
  const std::vector<Graph>& graphs = any_is_merged ? merged : program.graphs;
  // Sums that are carried across calls stay pending on the axes on which they are made so and that do not shard them.
  PendingByState sums;
  for (const Graph& graph : graphs) {
    if (graph.name == kUpdateGraph) continue;
    TACC_RETURN_IF_ERROR(GraphPartitioner(graph, out, states, ops, options, forms, &sums).Run().status());
  }
  for (State& state : out.states) {
    if (state.kind == StateKind::kGradient) {
      const auto given = options.pending_gradients.find(ParameterOf(state));
      if (given != options.pending_gradients.end()) sums[state.name] = given->second;
    }
    Sharding& s = state.placement.sharding;
    for (int axis : sums[state.name]) {
      if (!s.Uses(axis)) s.pending.push_back(axis);
    }
    std::sort(s.pending.begin(), s.pending.end());
    state.type.dims = LocalDims(state.placement.global.dims, s, options.mesh);
  }
  for (const Graph& graph : graphs) {
    TACC_ASSIGN_OR_RETURN(Graph partitioned, GraphPartitioner(graph, out, states, ops, options, forms, nullptr).Run());
    out.graphs.push_back(std::move(partitioned));
  }
  program = std::move(out);
  return true;
}

}  // namespace tacc::graph
