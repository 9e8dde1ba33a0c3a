#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/ir/status_macros.h"
#include "graph/verify/checks.h"

namespace tacc::graph {
namespace {

bool Contains(const std::vector<int>& list, int x) { return std::find(list.begin(), list.end(), x) != list.end(); }

std::string AxisText(const Mesh& mesh, const AxisList& axes) {
  if (axes.empty()) return "no axis";
  return absl::StrJoin(axes, "+", [&](std::string* out, int axis) { absl::StrAppend(out, mesh.axes[axis].name); });
}

class PartitionCheck {
 public:
  PartitionCheck(const Graph& graph, const OpTable& ops, const Mesh& mesh)
      : graph_(graph), ops_(ops), mesh_(mesh), producers_(graph.Producers()) {}

  absl::Status Run() {
    for (const Node& node : graph_.nodes) {
      if (absl::Status status = CheckNode(node); !status.ok()) return NodeError(graph_, node, status.message());
    }
    for (ValueId v : started_) {
      return NodeError(graph_, graph_.nodes[producers_[v]], "the asynchronous collective is never waited for");
    }
    return absl::OkStatus();
  }

 private:
  const Sharding& sharding(ValueId v) const { return graph_.values[v].placement->sharding; }
  std::string Text(const Sharding& s) const { return s.ToString(mesh_); }

  absl::Status CheckNode(const Node& node) {
    for (ValueId v : node.results) {
      const Value& value = graph_.values[v];
      if (!value.placement.has_value())
        return absl::InvalidArgumentError(absl::StrCat("%", value.name, " has no `of TYPE shard=[...]`"));
      if (absl::Status status = CheckPlacement(value.type, *value.placement, mesh_); !status.ok()) {
        return absl::InvalidArgumentError(absl::StrCat("%", value.name, ": ", status.message()));
      }
    }
    TACC_RETURN_IF_ERROR(CheckWaits(node));
    if (node.op == Op::kOutput) {
      return sharding(node.operands[0]).pending.empty() ? absl::OkStatus()
                                                        : absl::InvalidArgumentError("an output is still pending");
    }
    if (node.op == Op::kStore || IsMessage(node.op)) return absl::OkStatus();
    if (node.op == Op::kInput || node.op == Op::kRead) {
      if (node.op == Op::kInput && !sharding(node.results[0]).pending.empty())
        return absl::InvalidArgumentError("an input is never pending");
      return absl::OkStatus();
    }
    const OpDef& def = *ops_.Find(node.op);
    if (!def.rule) return CheckMove(node);
    if (!def.sums_operands) return CheckRule(node, def);
    for (ValueId v : node.operands) {
      Node alone = node;
      alone.operands = {v};
      TACC_RETURN_IF_ERROR(CheckRule(alone, def));
    }
    return absl::OkStatus();
  }

  absl::Status CheckWaits(const Node& node) {
    for (ValueId v : node.operands) {
      if (node.op != Op::kWait && started_.count(v) > 0) {
        return absl::InvalidArgumentError(absl::StrCat("%", graph_.values[v].name, " is used before the wait for it"));
      }
      if (node.op != Op::kWait && finished_.count(v) > 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("%", graph_.values[v].name, " is a started collective; use the result of its wait"));
      }
    }
    if (node.op == Op::kWait) {
      const ValueId v = node.operands[0];
      if (finished_.count(v) > 0)
        return absl::InvalidArgumentError(absl::StrCat("%", graph_.values[v].name, " is waited for twice"));
      if (started_.erase(v) == 0)
        return absl::InvalidArgumentError(absl::StrCat("%", graph_.values[v].name, " was not started with async=true"));
      finished_.insert(v);
    }
    if (GetAttr<bool>(node.attrs, "async")) started_.insert(node.results[0]);
    return absl::OkStatus();
  }

  // ---- ops with a rule ----

  absl::Status CheckRule(const Node& node, const OpDef& def) {
    TACC_ASSIGN_OR_RETURN(const Rule rule, def.rule(LogicalCallOf(graph_, node)));
    FactorAxes factors{std::vector<AxisList>(rule.factors.size()), std::vector<Place>(rule.factors.size())};
    for (Extents extents : {Extents::kWhole, Extents::kGroups}) {
      TACC_RETURN_IF_ERROR(TakeAxes(rule, rule.in, node.operands, extents, factors));
      TACC_RETURN_IF_ERROR(TakeAxes(rule, rule.out, node.results, extents, factors));
    }
    for (size_t f = 0; f < rule.factors.size(); ++f) {
      const int whole = rule.factors[f].one_per_shard_of;
      if (whole < 0 || factors.axes[f] == factors.axes[whole]) continue;
      return absl::InvalidArgumentError(absl::StrCat(Text(factors.first[f]), " has one entry for each shard of ",
                                                     Text(factors.first[whole]), "; they must be split alike"));
    }
    for (int axis = 0; axis < static_cast<int>(mesh_.axes.size()); ++axis) {
      TACC_RETURN_IF_ERROR(CheckAxis(node, rule, factors.axes, axis));
    }
    return rule.self_masking ? absl::OkStatus() : CheckMasks(node, rule, factors.axes);
  }

  struct Place {
    ValueId value = kNoValue;
    size_t dim = 0;
  };
  struct FactorAxes {
    std::vector<AxisList> axes;
    std::vector<Place> first;  // where each factor was seen first
  };
  std::string Text(const Place& place) const {
    return absl::StrCat("dim ", place.dim, " of %", graph_.values[place.value].name);
  }

  // What splits each factor, from the values that `maps` belongs to: first where a dim has the factor's extent, then
  // where it has one entry a group.
  enum class Extents { kWhole, kGroups };
  absl::Status TakeAxes(const Rule& rule, const std::vector<std::vector<int>>& maps, const std::vector<ValueId>& values,
                        Extents extents, FactorAxes& factors) const {
    for (size_t i = 0; i < values.size(); ++i) {
      for (size_t d = 0; d < maps[i].size(); ++d) {
        const AxisList& here = sharding(values[i]).dims[d];
        const int64_t extent = graph_.values[values[i]].placement->global.dims[d];
        const Factor* factor = maps[i][d] == Rule::kNone ? nullptr : &rule.factors[maps[i][d]];
        const bool groups =
            factor != nullptr && factor->groups > 0 && extent == factor->groups && extent != factor->size;
        if (groups != (extents == Extents::kGroups)) continue;
        const Place place{values[i], d};
        const int f = maps[i][d];
        const bool is_joined = f != Rule::kNone && rule.factors[f].joined && !IsPadded(extent, here, mesh_);
        if ((f == Rule::kNone || rule.factors[f].replicate) && !here.empty() && !is_joined) {
          return absl::InvalidArgumentError(
              absl::StrCat(Text(place), " is split over ", AxisText(mesh_, here), ", but is needed whole"));
        }
        if (f == Rule::kNone) continue;
        if (rule.factors[f].even && IsPadded(rule.factors[f].size, here, mesh_)) {
          return absl::InvalidArgumentError(absl::StrCat(Text(place), " is split over ", AxisText(mesh_, here),
                                                         ", which does not divide ", rule.factors[f].size));
        }
        if (groups) {
          if (here == DimAxes(rule.factors[f], extent, factors.axes[f], mesh_)) continue;
          return absl::InvalidArgumentError(absl::StrCat(
              Text(place), " is split over ", AxisText(mesh_, here), ", but ", Text(factors.first[f]), " over ",
              AxisText(mesh_, factors.axes[f]), "; it must take as much of that as divides ", extent));
        }
        if (factors.first[f].value == kNoValue) {
          factors.axes[f] = here;
          factors.first[f] = place;
        } else if (factors.axes[f] != here) {
          return absl::InvalidArgumentError(absl::StrCat(Text(factors.first[f]), " is split over ",
                                                         AxisText(mesh_, factors.axes[f]), ", but ", Text(place),
                                                         " over ", AxisText(mesh_, here), "; they must agree"));
        }
      }
    }
    return absl::OkStatus();
  }

  static bool InOperands(const Rule& rule, int factor) {
    return std::any_of(rule.in.begin(), rule.in.end(),
                       [factor](const std::vector<int>& dims) { return Contains(dims, factor); });
  }

  // One axis: who holds it, what is pending on it.
  absl::Status CheckAxis(const Node& node, const Rule& rule, const std::vector<AxisList>& axes, int axis) {
    const std::string& name = mesh_.axes[axis].name;
    int holder = -1;
    for (int f = 0; f < static_cast<int>(axes.size()); ++f) {
      if (!Contains(axes[f], axis) || rule.factors[f].one_per_shard_of >= 0) continue;  // that holds it with another
      if (holder >= 0)
        return absl::InvalidArgumentError(absl::StrCat("axis ", name, " splits two independent dims of one op"));
      holder = f;
    }
    std::vector<int> pending;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (sharding(node.operands[i]).IsPending(axis)) pending.push_back(static_cast<int>(i));
    }
    const bool passes = std::find(rule.linear_in.begin(), rule.linear_in.end(), pending) != rule.linear_in.end();
    for (size_t r = 0; r < node.results.size(); ++r) {
      const Value& result = graph_.values[node.results[r]];
      const bool reduced = holder >= 0 && InOperands(rule, holder) && !result.placement->sharding.Uses(axis);
      const bool got = result.placement->sharding.IsPending(axis);
      if (holder >= 0) {
        const std::vector<int> wanted = reduced ? rule.addends : std::vector<int>();
        if (pending != wanted && r == 0) {
          return absl::InvalidArgumentError(absl::StrCat("axis ", name,
                                                         " splits a factor, so operands pending on it must be ",
                                                         wanted.empty() ? "none" : "the accumulator"));
        }
      } else if (!pending.empty() && !passes) {
        return absl::InvalidArgumentError(absl::StrCat("%", graph_.values[node.operands[pending[0]]].name,
                                                       " is pending on ", name, ", which may not pass through ",
                                                       node.op.name()));
      }
      const bool zero = node.op == Op::kConstant && GetAttr<double>(node.attrs, "value") == 0;
      const bool wanted = reduced || (holder < 0 && !pending.empty());
      if (got != wanted && !(zero && got)) {
        return absl::InvalidArgumentError(
            absl::StrCat("%", result.name, wanted ? " must be" : " must not be", " pending on ", name));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckMasks(const Node& node, const Rule& rule, const std::vector<AxisList>& axes) {
    for (int f = 0; f < static_cast<int>(rule.factors.size()); ++f) {
      const bool reduced = std::any_of(rule.out.begin(), rule.out.end(),
                                       [f](const std::vector<int>& dims) { return !Contains(dims, f); });
      if (!reduced || !InOperands(rule, f) || !IsPadded(rule.factors[f].size, axes[f], mesh_)) continue;
      for (size_t i = 0; i < node.operands.size(); ++i) {
        if (!Contains(rule.in[i], f)) continue;
        if (graph_.nodes[producers_[node.operands[i]]].op != Op::kMaskPadding) {
          return absl::InvalidArgumentError(absl::StrCat("%", graph_.values[node.operands[i]].name, " has padding on ",
                                                         AxisText(mesh_, axes[f]),
                                                         ", which is summed; it must come from mask_padding"));
        }
      }
    }
    return absl::OkStatus();
  }

  // ---- collectives and local moves ----

  absl::Status CheckMove(const Node& node) {
    const Sharding& from = sharding(node.operands[0]);
    const Sharding& to = sharding(node.results[0]);
    if (node.op == Op::kWait || node.op == Op::kMaskPadding || node.op == Op::kStageSum) {
      if (from == to) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat("shard=", Text(to), "; wanted the operand's, ", Text(from)));
    }
    AxisList over;
    for (const std::string& name : GetAttr<std::vector<std::string>>(node.attrs, "over")) {
      const int axis = mesh_.Find(name);
      if (axis < 0)
        return absl::InvalidArgumentError(
            absl::StrCat("over: '", name, "' is no axis of the mesh (", mesh_.ToString(), ")"));
      if (Contains(over, axis)) return absl::InvalidArgumentError(absl::StrCat("over: '", name, "' is given twice"));
      over.push_back(axis);
    }
    if (over.empty()) return absl::InvalidArgumentError("over names no axis");
    Sharding wanted = from;
    if (node.op == Op::kAllGather) {
      TACC_RETURN_IF_ERROR(TakeFromDim(node, "dim", over, wanted));
    } else if (node.op == Op::kAllToAll) {
      TACC_RETURN_IF_ERROR(TakeFromDim(node, "concat_dim", over, wanted));
      TACC_RETURN_IF_ERROR(AddToDim(node, "split_dim", over, wanted));
    } else if (node.op == Op::kShardSlice) {
      for (int axis : over) {
        if (from.Uses(axis) || from.IsPending(axis)) {
          return absl::InvalidArgumentError(
              absl::StrCat("the operand, shard=", Text(from), ", is not whole over ", mesh_.axes[axis].name));
        }
      }
      TACC_RETURN_IF_ERROR(AddToDim(node, "dim", over, wanted));
    } else {
      for (int axis : over) {
        if (!from.IsPending(axis)) {
          return absl::InvalidArgumentError(
              absl::StrCat("the operand, shard=", Text(from), ", is not pending on ", mesh_.axes[axis].name));
        }
        wanted.pending.erase(std::find(wanted.pending.begin(), wanted.pending.end(), axis));
      }
      if (node.op == Op::kReduceScatter) TACC_RETURN_IF_ERROR(AddToDim(node, "dim", over, wanted));
    }
    if (to == wanted) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("shard=", Text(to), ", but the operand, shard=", Text(from), ", becomes ", Text(wanted)));
  }

  absl::Status CheckDim(const Node& node, const char* attr, int64_t* dim) const {
    *dim = GetAttr<int64_t>(node.attrs, attr);
    const int rank = graph_.type(node.operands[0]).rank();
    if (*dim >= 0 && *dim < rank) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(attr, "=", *dim, " of a tensor of ", rank, " dims"));
  }

  absl::Status TakeFromDim(const Node& node, const char* attr, const AxisList& over, Sharding& s) const {
    int64_t dim = 0;
    TACC_RETURN_IF_ERROR(CheckDim(node, attr, &dim));
    AxisList& axes = s.dims[dim];
    if (axes.size() < over.size() ||
        !std::equal(over.begin(), over.end(), axes.end() - static_cast<int64_t>(over.size()))) {
      return absl::InvalidArgumentError(absl::StrCat("dim ", dim, " of the operand is split over ",
                                                     AxisText(mesh_, axes), "; ", AxisText(mesh_, over),
                                                     " are not its minor axes"));
    }
    axes.resize(axes.size() - over.size());
    return absl::OkStatus();
  }

  absl::Status AddToDim(const Node& node, const char* attr, const AxisList& over, Sharding& s) const {
    int64_t dim = 0;
    TACC_RETURN_IF_ERROR(CheckDim(node, attr, &dim));
    s.dims[dim].insert(s.dims[dim].end(), over.begin(), over.end());
    return absl::OkStatus();
  }

  const Graph& graph_;
  const OpTable& ops_;
  const Mesh& mesh_;
  const std::vector<int> producers_;
  std::set<ValueId> started_, finished_;  // results of asynchronous collectives
};

}  // namespace

absl::Status CheckPlacement(const TensorType& local, const Placement& placement, const Mesh& mesh) {
  auto error = [](absl::string_view text) { return absl::InvalidArgumentError(text); };
  const Sharding& s = placement.sharding;
  if (static_cast<int>(s.dims.size()) != placement.global.rank())
    return error("shard= has not as many dims as the type");
  std::vector<int> used(mesh.axes.size(), 0);
  auto use = [&](int axis) { return axis >= 0 && axis < static_cast<int>(used.size()) && used[axis]++ == 0; };
  for (const AxisList& axes : s.dims) {
    for (int axis : axes) {
      if (!use(axis)) return error(absl::StrCat("shard=", s.ToString(mesh), " uses an axis twice"));
    }
  }
  for (int axis : s.pending) {
    if (!use(axis))
      return error(absl::StrCat("shard=", s.ToString(mesh), " is pending on an axis that it uses already"));
  }
  if (!std::is_sorted(s.pending.begin(), s.pending.end())) return error("pending= must be in the order of the mesh");
  const TensorType wanted{placement.global.dtype, LocalDims(placement.global.dims, s, mesh)};
  if (local != wanted) {
    return error(absl::StrCat("the rank's own type is ", local.ToString(), ", but ", placement.global.ToString(),
                              " shard=", s.ToString(mesh), " gives ", wanted.ToString()));
  }
  return absl::OkStatus();
}

absl::Status CheckPartition(const Graph& graph, const OpTable& ops, const Mesh& mesh) {
  return PartitionCheck(graph, ops, mesh).Run();
}

}  // namespace tacc::graph
