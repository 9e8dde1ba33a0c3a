#include "graph/passes/partition.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"

namespace tacc::graph {
namespace {

bool Contains(const AxisList& axes, int axis) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); }

void Remove(AxisList& axes, int axis) { axes.erase(std::remove(axes.begin(), axes.end(), axis), axes.end()); }

bool IsPrefix(const AxisList& prefix, const AxisList& axes) {
  return prefix.size() <= axes.size() && std::equal(prefix.begin(), prefix.end(), axes.begin());
}

size_t CommonPrefix(const AxisList& a, const AxisList& b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return n;
}

std::vector<std::string> AxisNames(const Mesh& mesh, const AxisList& axes) {
  std::vector<std::string> names;
  for (int axis : axes) names.push_back(mesh.axes[axis].name);
  return names;
}

// Partitions one graph.
class GraphPartitioner {
 public:
  GraphPartitioner(const Graph& logical, const Program& program, const OpTable& ops, const PartitionOptions& options)
      : logical_(logical), program_(program), ops_(ops), options_(options), mesh_(options.mesh) {
    out_.name = logical.name;
    homes_.resize(logical.values.size(), kNoValue);
    producers_ = logical.Producers();
    FindGradients();
  }

  absl::StatusOr<Graph> Run() {
    for (const Node& node : logical_.nodes) {
      node_ = &node;
      if (absl::Status status = Visit(node); !status.ok()) {
        return absl::Status(status.code(),
                            absl::StrCat(logical_.name, ": ", node.op, " at ",
                                         node.module.empty() ? "the top level" : node.module, ": ", status.message()));
      }
    }
    return std::move(out_);
  }

 private:
  const Sharding& sharding(ValueId v) const { return out_.values[v].placement->sharding; }

  absl::Status Visit(const Node& node) {
    if (node.op == "input") {
      Sharding s = Sharding::Replicated(logical_.type(node.results[0]).rank());
      if (!s.dims.empty()) s.dims[0] = options_.batch_axes;
      homes_[node.results[0]] = EmitLeaf(node, s);
      return absl::OkStatus();
    }
    if (node.op == "read") {
      const State* state = program_.FindState(node.symbol);
      if (state == nullptr) return absl::InvalidArgumentError(absl::StrCat("no state is named \"", node.symbol, "\""));
      homes_[node.results[0]] = EmitLeaf(node, state->placement.sharding);
      return absl::OkStatus();
    }
    if (node.op == "store") {
      const State* state = program_.FindState(node.symbol);
      if (state == nullptr) return absl::InvalidArgumentError(absl::StrCat("no state is named \"", node.symbol, "\""));
      const ValueId v = Reshard(node.operands[0], state->placement.sharding);
      if (sharding(v) != state->placement.sharding) {
        return absl::InternalError(absl::StrCat("the value for \"", node.symbol, "\" is ", sharding(v).ToString(mesh_),
                                                " and cannot become ", state->placement.sharding.ToString(mesh_)));
      }
      EmitEnd(node, v);
      return absl::OkStatus();
    }
    if (node.op == "output") {
      EmitEnd(node, Reshard(node.operands[0], Sharding::Replicated(logical_.type(node.operands[0]).rank())));
      return absl::OkStatus();
    }
    return VisitOp(node);
  }

  absl::Status VisitOp(const Node& node) {
    const OpDef* def = ops_.Find(node.op);
    if (def == nullptr) return absl::InvalidArgumentError("unknown op");
    if (!def->rule) return absl::InternalError("the op has no sharding rule");
    OpCall call = CallOf(logical_, node);
    TACC_ASSIGN_OR_RETURN(const Rule rule, def->rule(call));
    TACC_RETURN_IF_ERROR(CheckRule(rule, call));

    const std::vector<AxisList> axes = AssignFactors(node, rule);
    const AxisList kept = KeptPending(node, rule, axes);

    std::vector<ValueId> operands;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      Sharding target = Sharding::Replicated(call.in(i).rank());
      for (int d = 0; d < call.in(i).rank(); ++d) {
        if (rule.in[i][d] != Rule::kNone) target.dims[d] = axes[rule.in[i][d]];
      }
      for (int axis : kept) {
        if (sharding(homes_[node.operands[i]]).IsPending(axis)) target.pending.push_back(axis);
      }
      ValueId v = Reshard(node.operands[i], target);
      if (!rule.self_masking) v = MaskReducedPadding(v, rule, static_cast<int>(i), call, axes);
      operands.push_back(v);
    }

    Node emitted = node;
    emitted.operands = std::move(operands);
    for (size_t r = 0; r < node.results.size(); ++r) {
      Sharding s = Sharding::Replicated(call.out(r).rank());
      std::vector<char> in_result(rule.factors.size(), 0);
      for (int d = 0; d < call.out(r).rank(); ++d) {
        const int f = rule.out[r][d];
        if (f == Rule::kNone) continue;
        s.dims[d] = axes[f];
        in_result[f] = 1;
      }
      s.pending = kept;
      for (size_t i = 0; i < node.operands.size(); ++i) {
        for (int f : rule.in[i]) {
          if (f == Rule::kNone || in_result[f]) continue;
          for (int axis : axes[f]) {
            if (!Contains(s.pending, axis)) s.pending.push_back(axis);
          }
        }
      }
      std::sort(s.pending.begin(), s.pending.end());
      emitted.results[r] = AddValue(logical_.values[node.results[r]].name, call.out(r), s);
      homes_[node.results[r]] = emitted.results[r];
    }
    out_.nodes.push_back(std::move(emitted));
    return absl::OkStatus();
  }

  static absl::Status CheckRule(const Rule& rule, const OpCall& call) {
    auto fits = [&](const std::vector<std::vector<int>>& maps, const std::vector<TensorType>& types) {
      if (maps.size() != types.size()) return false;
      for (size_t i = 0; i < maps.size(); ++i) {
        if (static_cast<int>(maps[i].size()) != types[i].rank()) return false;
        for (size_t d = 0; d < maps[i].size(); ++d) {
          const int f = maps[i][d];
          if (f == Rule::kNone) continue;
          if (f < 0 || f >= static_cast<int>(rule.factors.size())) return false;
          const Factor& factor = rule.factors[f];
          const bool multiple = factor.even && factor.size > 0 && types[i].dims[d] % factor.size == 0;
          if (factor.size != types[i].dims[d] && !multiple) return false;
        }
      }
      return true;
    };
    if (!fits(rule.in, call.operands) || !fits(rule.out, call.results)) {
      return absl::InternalError("the sharding rule does not fit the operands or results");
    }
    return absl::OkStatus();
  }

  // Axes for each factor, from what the operands are: the largest operand first, so that it stays where it is.
  std::vector<AxisList> AssignFactors(const Node& node, const Rule& rule) const {
    std::vector<size_t> order;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      // A weight enters as it is used (whole over the axes that shard it at rest): the weight is gathered, never the
      // activation.
      if (!EntersWhole(node.operands[i])) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return logical_.type(node.operands[a]).bytes() > logical_.type(node.operands[b]).bytes();
    });
    std::vector<AxisList> axes(rule.factors.size());
    std::map<int, int> owner;  // axis -> factor
    for (size_t i : order) {
      const Sharding& s = sharding(homes_[node.operands[i]]);
      for (size_t d = 0; d < s.dims.size(); ++d) {
        const int f = rule.in[i][d];
        if (f == Rule::kNone || rule.factors[f].replicate || !IsPrefix(axes[f], s.dims[d])) continue;
        for (size_t k = axes[f].size(); k < s.dims[d].size(); ++k) {
          const int axis = s.dims[d][k];
          if (owner.count(axis) != 0 || (rule.factors[f].even && !Divides(rule.factors[f].size, axes[f], axis))) break;
          owner[axis] = f;
          axes[f].push_back(axis);
        }
      }
    }
    return axes;
  }

  // Does splitting the extent over the axes and one more leave no padding?
  bool Divides(int64_t extent, AxisList axes, int axis) const {
    axes.push_back(axis);
    return !IsPadded(extent, axes, mesh_);
  }

  // Weights and copies are used whole in every graph but the update, which works on them where they rest.
  bool EntersWhole(ValueId logical) const {
    const Node* producer = Producer(logical);
    if (logical_.name == kUpdateGraph || producer == nullptr || producer->op != "read") return false;
    const StateKind kind = program_.FindState(producer->symbol)->kind;
    return kind == StateKind::kWeight || kind == StateKind::kCopy;
  }
  const Node* Producer(ValueId logical) const {
    return producers_[logical] < 0 ? nullptr : &logical_.nodes[producers_[logical]];
  }

  // The pending axes that may pass through the node.
  AxisList KeptPending(const Node& node, const Rule& rule, const std::vector<AxisList>& axes) const {
    AxisList kept;
    int64_t result_bytes = 0;
    for (ValueId v : node.results) result_bytes = std::max(result_bytes, logical_.type(v).bytes());
    for (int axis = 0; axis < static_cast<int>(mesh_.axes.size()); ++axis) {
      std::vector<int> pending;
      int64_t pending_bytes = 0;
      for (size_t i = 0; i < node.operands.size(); ++i) {
        if (!sharding(homes_[node.operands[i]]).IsPending(axis)) continue;
        pending.push_back(static_cast<int>(i));
        pending_bytes = std::max(pending_bytes, logical_.type(node.operands[i]).bytes());
      }
      if (pending.empty()) continue;
      const bool held = std::any_of(axes.begin(), axes.end(), [axis](const AxisList& a) { return Contains(a, axis); });
      const bool linear = std::find(rule.linear_in.begin(), rule.linear_in.end(), pending) != rule.linear_in.end();
      if (!held && linear && result_bytes <= pending_bytes) kept.push_back(axis);
    }
    return kept;
  }

  // Zeroes what padding an operand carries on factors that the node sums over.
  ValueId MaskReducedPadding(ValueId v, const Rule& rule, int operand, const OpCall& call,
                             const std::vector<AxisList>& axes) {
    for (size_t d = 0; d < rule.in[operand].size(); ++d) {
      const int f = rule.in[operand][d];
      if (f == Rule::kNone || axes[f].empty()) continue;
      const bool reduced = std::any_of(rule.out.begin(), rule.out.end(), [f](const std::vector<int>& dims) {
        return std::find(dims.begin(), dims.end(), f) == dims.end();
      });
      if (!reduced || !IsPadded(call.in(operand).dims[d], axes[f], mesh_)) continue;
      return Emit("mask_padding", v, call.in(operand), sharding(v), {});
    }
    return v;
  }

  // The value in the sharding asked for, by the fewest collectives; made once a graph.
  ValueId Reshard(ValueId logical, const Sharding& target) {
    auto& made = resharded_[logical];
    for (const auto& [s, v] : made) {
      if (s == target) return v;
    }
    ValueId v = homes_[logical];
    if (sharding(v) == target) return v;
    const TensorType& global = logical_.type(logical);
    if (const Node* producer = Producer(logical); producer != nullptr && CanBeMadeAnywhere(*producer, target)) {
      v = EmitLeaf(*producer, target);
      made.emplace_back(target, v);
      return v;
    }
    v = ResolvePending(v, global, target, is_gradient_[logical] != 0);
    v = MoveAxes(v, global, target);
    v = SliceFree(v, global, target);
    v = GatherExtra(v, global, target);
    v = SliceFree(v, global, target);
    made.emplace_back(target, v);
    return v;
  }

  // What is summed over ranks on the way to a gradient, or read from one.
  void FindGradients() {
    is_gradient_.assign(logical_.values.size(), 0);
    for (const Node& node : logical_.nodes) {
      if (node.op != "read" && node.op != "store") continue;
      const State* state = program_.FindState(node.symbol);
      if (state == nullptr || state->kind != StateKind::kGradient) continue;
      const ValueId v = node.op == "read" ? node.results[0] : node.operands[0];
      is_gradient_[v] = 1;
      if (const Node* producer = Producer(v); producer != nullptr && producer->op == "add") {
        for (ValueId operand : producer->operands) is_gradient_[operand] = 1;
      }
    }
  }

  // The summands as they travel; unchanged unless a gradient is asked to travel narrower.
  ValueId Narrowed(ValueId v, const TensorType& global, bool gradient, Attrs* attrs) {
    if (!gradient || ByteSize(options_.reduce_dtype) >= ByteSize(global.dtype)) return v;
    (*attrs)["dtype"] = std::string(Name(global.dtype));
    return Emit("cast", v, {options_.reduce_dtype, global.dims}, sharding(v),
                {{"dtype", std::string(Name(options_.reduce_dtype))}, {"of_summands", true}});
  }

  // A node without operands (a constant, a table) is made in the sharding that is needed. Only zero may be made
  // pending.
  static bool CanBeMadeAnywhere(const Node& node, const Sharding& target) {
    if (!node.operands.empty() || !node.symbol.empty() || node.results.size() != 1) return false;
    return target.pending.empty() || (node.op == "constant" && GetAttr<double>(node.attrs, "value") == 0.0);
  }

  ValueId ResolvePending(ValueId v, const TensorType& global, const Sharding& target, bool gradient) {
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
      v = Narrowed(v, global, gradient, &attrs);
      v = Emit("reduce_scatter", v, global, s, std::move(attrs));
    }
    Sharding s = sharding(v);
    AxisList over;
    for (int axis : s.pending) {
      if (!Contains(target.pending, axis)) over.push_back(axis);
    }
    if (over.empty()) return v;
    for (int axis : over) Remove(s.pending, axis);
    Attrs attrs = {{"over", AxisNames(mesh_, over)}};
    v = Narrowed(v, global, gradient, &attrs);
    return Emit("all_reduce", v, global, s, std::move(attrs));
  }

  // An axis that only moves from one dim to another: all_to_all.
  ValueId MoveAxes(ValueId v, const TensorType& global, const Sharding& target) {
    for (size_t from = 0; from < target.dims.size(); ++from) {
      Sharding s = sharding(v);
      if (s.dims[from].empty()) continue;
      const int axis = s.dims[from].back();
      if (Contains(target.dims[from], axis)) continue;
      for (size_t to = 0; to < target.dims.size(); ++to) {
        if (to == from || !IsPrefix(s.dims[to], target.dims[to]) || target.dims[to].size() <= s.dims[to].size())
          continue;
        if (target.dims[to][s.dims[to].size()] != axis) continue;
        s.dims[from].pop_back();
        s.dims[to].push_back(axis);
        v = Emit("all_to_all", v, global, s,
                 {{"over", AxisNames(mesh_, {axis})},
                  {"split_dim", static_cast<int64_t>(to)},
                  {"concat_dim", static_cast<int64_t>(from)}});
        break;
      }
    }
    return v;
  }

  // Takes the own part along axes that the value does not use yet.
  ValueId SliceFree(ValueId v, const TensorType& global, const Sharding& target) {
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
      v = Emit("shard_slice", v, global, s, {{"over", AxisNames(mesh_, over)}, {"dim", static_cast<int64_t>(d)}});
    }
    return v;
  }

  ValueId GatherExtra(ValueId v, const TensorType& global, const Sharding& target) {
    for (size_t d = 0; d < target.dims.size(); ++d) {
      Sharding s = sharding(v);
      const size_t common = CommonPrefix(s.dims[d], target.dims[d]);
      if (common == s.dims[d].size()) continue;
      const AxisList over(s.dims[d].begin() + common, s.dims[d].end());
      s.dims[d].resize(common);
      v = Emit("all_gather", v, global, s, {{"over", AxisNames(mesh_, over)}, {"dim", static_cast<int64_t>(d)}});
    }
    return v;
  }

  ValueId AddValue(const std::string& hint, const TensorType& global, const Sharding& s) {
    const ValueId v = out_.AddValue(hint, {global.dtype, LocalDims(global.dims, s, mesh_)});
    out_.values[v].placement = Placement{global, s};
    return v;
  }

  ValueId Emit(const char* op, ValueId operand, const TensorType& global, const Sharding& s, Attrs attrs) {
    Node node;
    node.op = op;
    node.operands = {operand};
    node.attrs = std::move(attrs);
    node.module = node_->module;
    node.recompute = node_->recompute;
    node.results = {AddValue(op, global, s)};
    out_.nodes.push_back(std::move(node));
    return out_.nodes.back().results[0];
  }

  ValueId EmitLeaf(const Node& node, const Sharding& s) {
    Node leaf = node;
    leaf.results = {AddValue(logical_.values[node.results[0]].name, logical_.type(node.results[0]), s)};
    out_.nodes.push_back(leaf);
    return leaf.results[0];
  }

  void EmitEnd(const Node& node, ValueId value) {
    Node end = node;
    end.operands = {value};
    out_.nodes.push_back(std::move(end));
  }

  const Graph& logical_;
  const Program& program_;  // states have their shardings
  const OpTable& ops_;
  const PartitionOptions& options_;
  const Mesh& mesh_;
  const Node* node_ = nullptr;
  Graph out_;
  std::vector<ValueId> homes_;  // logical value -> the partitioned value it was made as
  std::map<ValueId, std::vector<std::pair<Sharding, ValueId>>> resharded_;
  std::vector<char> is_gradient_;
  std::vector<int> producers_;  // logical value -> index of its node
};

}  // namespace

Sharding AtRestSharding(const Dims& dims, const Mesh& mesh, const AxisList& axes) {
  Sharding s = Sharding::Replicated(static_cast<int>(dims.size()));
  const int64_t shards = NumShards(mesh, axes);
  if (shards == 1 || dims.empty()) return s;
  size_t best = 0;
  double best_waste = 1e30;
  for (size_t d = 0; d < dims.size(); ++d) {
    Sharding candidate = Sharding::Replicated(static_cast<int>(dims.size()));
    candidate.dims[d] = axes;
    const double waste =
        static_cast<double>(LocalDims(dims, candidate, mesh)[d]) * shards / std::max<int64_t>(dims[d], 1);
    if (waste <= 1.01) {
      best = d;
      break;
    }
    if (waste < best_waste) {
      best = d;
      best_waste = waste;
    }
  }
  s.dims[best] = axes;
  return s;
}

absl::StatusOr<Program> Partition(const Program& program, const OpTable& ops, const PartitionOptions& requested) {
  PartitionOptions options = requested;
  for (AxisList* axes : {&options.batch_axes, &options.at_rest_axes}) {
    std::erase_if(*axes, [&](int axis) { return options.mesh.axes[axis].size == 1; });
  }
  Program out = program;
  out.level = Level::kPartitioned;
  out.mesh = options.mesh;
  out.graphs.clear();
  for (State& state : out.states) {
    const Dims& dims = state.placement.global.dims;
    if (state.kind == StateKind::kCounter) {
      state.placement.sharding.pending = options.batch_axes;
    } else {
      state.placement.sharding = AtRestSharding(dims, options.mesh, options.at_rest_axes);
      if (state.kind == StateKind::kGradient) {
        for (int axis : options.batch_axes) {
          if (!state.placement.sharding.Uses(axis)) state.placement.sharding.pending.push_back(axis);
        }
      }
    }
    AxisList& pending = state.placement.sharding.pending;
    std::sort(pending.begin(), pending.end());
    state.type.dims = LocalDims(dims, state.placement.sharding, options.mesh);
  }
  for (const Graph& graph : program.graphs) {
    TACC_ASSIGN_OR_RETURN(Graph partitioned, GraphPartitioner(graph, out, ops, options).Run());
    out.graphs.push_back(std::move(partitioned));
  }
  return out;
}

}  // namespace tacc::graph
