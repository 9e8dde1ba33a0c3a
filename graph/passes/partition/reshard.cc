#include "graph/passes/partition/reshard.h"

#include <utility>

#include "graph/passes/partition/axis_list.h"

namespace tacc::graph {

ValueId AddLocalValue(Graph& graph, const Mesh& mesh, const std::string& name, const TensorType& global, Sharding s) {
  const ValueId v = graph.AddValue(name, {global.dtype, LocalDims(global.dims, s, mesh)});
  graph.values[v].placement = Placement{global, std::move(s)};
  return v;
}

ValueId ReshardEmitter::Emit(const Op& op, ValueId operand, const TensorType& global, Sharding s, Attrs attrs) {
  Node node;
  node.op = op;
  node.operands = {operand};
  node.attrs = std::move(attrs);
  node.module = at_.module;
  node.recompute = at_.recompute;
  node.results = {AddLocalValue(graph_, mesh_, std::string(op.name()), global, std::move(s))};
  graph_.nodes.push_back(std::move(node));
  return graph_.nodes.back().results[0];
}

ValueId ReshardEmitter::Reshard(ValueId v, const Sharding& target, std::optional<DType> summed_as) {
  v = ResolvePending(v, target, summed_as);
  v = MoveAxes(v, target);
  v = SliceFree(v, target);
  v = GatherExtra(v, target);
  return SliceFree(v, target);
}

// The summands as they travel; unchanged unless they are asked to travel narrower. `attrs`: of the sum.
ValueId ReshardEmitter::Narrowed(ValueId v, std::optional<DType> dtype, Attrs* attrs) {
  const TensorType global = graph_.values[v].placement->global;
  if (!dtype.has_value() || ByteSize(*dtype) >= ByteSize(global.dtype)) return v;
  (*attrs)["dtype"] = std::string(Name(global.dtype));
  return Emit("cast", v, {*dtype, global.dims}, sharding(v),
              {{"dtype", std::string(Name(*dtype))}, {"of_summands", true}});
}

ValueId ReshardEmitter::ResolvePending(ValueId v, const Sharding& target, std::optional<DType> summed_as) {
  const TensorType global = graph_.values[v].placement->global;
  // On the dims that the target splits next: reduce_scatter.
  for (size_t d = 0; d < target.dims.size(); ++d) {
    Sharding s = sharding(v);
    if (!IsPrefix(s.dims[d], target.dims[d])) continue;
    AxisList over;
    for (size_t k = s.dims[d].size(); k < target.dims[d].size() && s.IsPending(target.dims[d][k]); ++k) {
      over.push_back(target.dims[d][k]);
    }
    if (over.empty()) continue;
    for (int axis : over) {
      s.dims[d].push_back(axis);
      Remove(s.pending, axis);
    }
    Attrs attrs = {{"over", AxisNames(mesh_, over)}, {"dim", static_cast<int64_t>(d)}};
    v = Narrowed(v, summed_as, &attrs);
    v = Emit(Op::kReduceScatter, v, global, s, std::move(attrs));
  }
  Sharding s = sharding(v);
  AxisList over;
  for (int axis : s.pending) {
    if (!Contains(target.pending, axis)) over.push_back(axis);
  }
  if (over.empty()) return v;
  for (int axis : over) Remove(s.pending, axis);
  Attrs attrs = {{"over", AxisNames(mesh_, over)}};
  v = Narrowed(v, summed_as, &attrs);
  return Emit(Op::kAllReduce, v, global, s, std::move(attrs));
}

// An axis that only moves from one dim to another: all_to_all.
ValueId ReshardEmitter::MoveAxes(ValueId v, const Sharding& target) {
  const TensorType global = graph_.values[v].placement->global;
  for (size_t from = 0; from < target.dims.size(); ++from) {
    Sharding s = sharding(v);
    if (s.dims[from].empty()) continue;
    const int axis = s.dims[from].back();
    if (Contains(target.dims[from], axis)) continue;
    for (size_t to = 0; to < target.dims.size(); ++to) {
      if (to == from || !IsPrefix(s.dims[to], target.dims[to]) || target.dims[to].size() <= s.dims[to].size()) continue;
      if (target.dims[to][s.dims[to].size()] != axis) continue;
      if (IsPadded(global.dims[from], s.dims[from], mesh_)) continue;
      s.dims[from].pop_back();
      s.dims[to].push_back(axis);
      if (IsPadded(global.dims[to], s.dims[to], mesh_)) break;
      v = Emit(Op::kAllToAll, v, global, s,
               {{"over", AxisNames(mesh_, {axis})},
                {"split_dim", static_cast<int64_t>(to)},
                {"concat_dim", static_cast<int64_t>(from)}});
      break;
    }
  }
  return v;
}

// Takes the own part along axes that the value does not use yet.
ValueId ReshardEmitter::SliceFree(ValueId v, const Sharding& target) {
  const TensorType global = graph_.values[v].placement->global;
  for (size_t d = 0; d < target.dims.size(); ++d) {
    Sharding s = sharding(v);
    if (!IsPrefix(s.dims[d], target.dims[d])) continue;
    AxisList over;
    for (size_t k = s.dims[d].size();
         k < target.dims[d].size() && !s.Uses(target.dims[d][k]) && !s.IsPending(target.dims[d][k]); ++k) {
      over.push_back(target.dims[d][k]);
    }
    if (over.empty()) continue;
    s.dims[d].insert(s.dims[d].end(), over.begin(), over.end());
    v = Emit(Op::kShardSlice, v, global, s, {{"over", AxisNames(mesh_, over)}, {"dim", static_cast<int64_t>(d)}});
  }
  return v;
}

ValueId ReshardEmitter::GatherExtra(ValueId v, const Sharding& target) {
  const TensorType global = graph_.values[v].placement->global;
  for (size_t d = 0; d < target.dims.size(); ++d) {
    Sharding s = sharding(v);
    const size_t common = CommonPrefix(s.dims[d], target.dims[d]);
    if (common == s.dims[d].size()) continue;
    const AxisList over(s.dims[d].begin() + static_cast<int64_t>(common), s.dims[d].end());
    s.dims[d].resize(common);
    v = Emit(Op::kAllGather, v, global, s, {{"over", AxisNames(mesh_, over)}, {"dim", static_cast<int64_t>(d)}});
  }
  return v;
}

}  // namespace tacc::graph
