#include "graph/planner/report/explainer.h"

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "graph/ir/state_names.h"
#include "graph/ir/text.h"
#include "graph/passes/partition/layout.h"
#include "graph/planner/report/words.h"

namespace tacc::graph {
namespace {

constexpr int64_t kMaxListedRanks = 8;

std::string Bytes(int64_t bytes) { return BytesText(static_cast<double>(bytes)); }

std::string AxisNames(const Mesh& mesh, const AxisList& axes) {
  return absl::StrJoin(axes, " and ", [&](std::string* out, int axis) {
    absl::StrAppend(out, mesh.axes[axis].name, " (", mesh.axes[axis].size, ")");
  });
}

}  // namespace

std::string Explainer::State(const struct State& state) const {
  const TensorType whole{state.type.dtype, state.logical_dims()};
  std::string text = absl::StrCat(state.name, ": ", Name(state.kind), ", ", whole.ToString(), ", ",
                                  Bytes(whole.bytes()), " in all, ", Bytes(state.type.bytes()), " on a rank\n");
  if (state.kind == StateKind::kCopy)
    absl::StrAppend(&text, "  written by the update beside the weight, so that it is not cast where it is used\n");
  if (state.kind == StateKind::kStash) {
    Placement(state.placement, "lies", text);
    return text;
  }
  if (!state.merged_from.empty()) {
    const auto merged = static_cast<int64_t>(whole.dims.size() - state.placement.global.dims.size() + 1);
    absl::StrAppend(&text, "  its first ", merged, " dims are cut as one of ", state.placement.global.dims[0], "\n");
  }
  Placement(state.placement, "rests", text);
  const Sharding& sharding = state.placement.sharding;
  AxisList axes;
  for (const AxisList& dim : sharding.dims) axes.insert(axes.end(), dim.begin(), dim.end());
  if (NumShards(mesh_, axes) > 1) {
    absl::StrAppend(&text, "  why: ", Bytes(whole.bytes() - state.type.bytes()),
                    " less on each rank than a whole copy; ", absl::StrJoin(WhyCutSo(state), "; "), "\n");
  } else {
    absl::StrAppend(&text, "  why: no axis of the mesh ", mesh_.ToString(), " shards what rests, so each rank",
                    OfStage(), " has all of it\n");
  }
  return text;
}

std::vector<std::string> Explainer::WhyCutSo(const struct State& state) const {
  const AxisList at_rest = LayoutOf(mesh_, "").at_rest_axes;
  AxisList in_use;
  std::vector<std::string> why;
  int64_t rows = 1;  // before the dim
  for (size_t d = 0; d < state.type.dims.size(); ++d) {
    AxisList shards;
    for (int axis : state.placement.sharding.dims[d])
      (std::find(at_rest.begin(), at_rest.end(), axis) == at_rest.end() ? in_use : shards).push_back(axis);
    if (NumShards(mesh_, shards) > 1) {
      const bool is_padded = IsPadded(state.placement.global.dims[d], state.placement.sharding.dims[d], mesh_);
      why.push_back(absl::StrCat(AxisNames(mesh_, shards),
                                 is_padded   ? " cuts it with padding, for no leading dims divide"
                                 : rows == 1 ? " cuts it so that shards lie one behind the other and are gathered "
                                               "without a copy"
                                             : " cuts it in rows, for the dims before do not divide"));
    }
    rows *= state.type.dims[d];
  }
  if (NumShards(mesh_, in_use) > 1)
    why.insert(why.begin(), absl::StrCat(AxisNames(mesh_, in_use), " splits it for its use"));
  return why;
}

std::string Explainer::UsesOf(const struct State& state) const {
  std::string text;
  for (const Graph& graph : program_.graphs) {
    if (std::none_of(program_.step.begin(), program_.step.end(),
                     [&](const Call& call) { return call.graph == graph.name; }))
      continue;
    for (const Node& node : graph.nodes) {
      if (node.symbol != state.name) continue;
      if (node.op == Op::kRead) Uses(graph, node.results[0], text);
      if (node.op != Op::kSend && node.op != Op::kRecv) continue;
      absl::StrAppend(&text, "  moved by ", node.op.name(), " in ", Where(graph), "\n");
      Collective(graph, node, text);
    }
  }
  return text;
}

std::string Explainer::Value(const Graph& graph, const Node& node, ValueId v) const {
  const struct Value& value = graph.values[v];
  std::string text = absl::StrCat("%", value.name, " in ", Where(graph), ": ", Print(graph, node, mesh_), "\n");
  if (const OpDef* def = ops_.Find(node.op); def != nullptr && def->is_collective) {
    Collective(graph, node, text);
    return text;
  }
  if (value.placement.has_value()) {
    Placement(*value.placement, "lies", text);
    if (v == node.results[0]) WhySplit(graph, node, text);
    for (int axis : value.placement->sharding.pending)
      absl::StrAppend(&text, "  each rank along ", mesh_.axes[axis].name,
                      " has a summand: ", WhyPending(graph, v, axis), "\n");
  }
  Uses(graph, v, text);
  return text;
}

std::string Explainer::Kind(const std::string& op, std::set<std::string>& told) const {
  std::string text;
  for (const CommunicationRow& row : CommunicationOf(finalist_, stage_)) {
    if (row.op != op) continue;
    const std::string what = absl::StrCat(op, " of ", Name(row.cargo), " over ", row.axes);
    absl::StrAppend(&text, what, IsPipeline() ? absl::StrCat(" on stage ", stage_) : "", ": ", WholeText(row.count),
                    " a step; ", op == "recv" ? "" : absl::StrCat("a rank sends ", Bytes(row.sent_bytes), "; "),
                    SecondsText(row.seconds), " in all, ", SecondsText(row.exposed),
                    " of it not hidden by computation\n");
    if (!told.insert(what).second) continue;
    const auto longest = LongestSpan(row);
    const Graph& graph = *program_.FindGraph(program_.step[longest->call].graph);
    absl::StrAppend(&text, "  the longest: ");
    const Node& node = graph.nodes[longest->first_node];
    absl::StrAppend(&text, node.results.empty() ? node.symbol : absl::StrCat("%", graph.values[node.results[0]].name),
                    " in ", Where(graph), "\n");
    Collective(graph, node, text);
  }
  return text;
}

std::vector<int64_t> Explainer::FirstRank() const {
  std::vector<int64_t> at(mesh_.axes.size(), 0);
  if (stage_axis_ >= 0) at[stage_axis_] = stage_;
  return at;
}

std::vector<int64_t> Explainer::LastRank() const {
  std::vector<int64_t> at = FirstRank();
  for (int axis = 0; axis < static_cast<int>(at.size()); ++axis) {
    if (axis != stage_axis_) at[axis] = mesh_.axes[axis].size - 1;
  }
  return at;
}

void Explainer::Placement(const struct Placement& placement, const char* verb, std::string& text) const {
  const Sharding& sharding = placement.sharding;
  AxisList used;
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    const AxisList& axes = sharding.dims[d];
    const int64_t extent = placement.global.dims[d];
    if (NumShards(mesh_, axes) == 1) continue;
    used.insert(used.end(), axes.begin(), axes.end());
    const Range first = LocalRange(extent, axes, mesh_, FirstRank());
    const Range last = LocalRange(extent, axes, mesh_, LastRank());
    absl::StrAppend(&text, "  ", verb, " with dim ", d, " (", extent, ") split over ", AxisNames(mesh_, axes),
                    IsPipeline() ? ": a stage's first rank" : ": rank 0", " has [", first.begin, ", ", first.end,
                    IsPipeline() ? "), its last [" : "), the last rank [", last.begin, ", ", last.end, ")",
                    IsPadded(extent, axes, mesh_) ? ", some ranks hold padding" : "", "\n");
  }
  AxisList alike;
  for (int axis = 0; axis < static_cast<int>(mesh_.axes.size()); ++axis) {
    if (mesh_.axes[axis].size > 1 && axis != stage_axis_ && std::find(used.begin(), used.end(), axis) == used.end() &&
        !sharding.IsPending(axis))
      alike.push_back(axis);
  }
  if (!alike.empty()) absl::StrAppend(&text, "  ", verb, " alike on the ranks along ", AxisNames(mesh_, alike), "\n");
}

void Explainer::Uses(const Graph& graph, ValueId v, std::string& text) const {
  size_t listed = 0, others = 0;
  for (const Node& user : graph.nodes) {
    if (std::find(user.operands.begin(), user.operands.end(), v) == user.operands.end()) continue;
    const OpDef* def = ops_.Find(user.op);
    if (def != nullptr && def->is_collective && !user.results.empty()) {
      absl::StrAppend(&text, "  moved by %", graph.values[user.results[0]].name, " in ", Where(graph), "\n");
      Collective(graph, user, text);
    } else if (user.op == "cast" || user.op == "reshape") {
      Uses(graph, user.results[0], text);
    } else if (listed++ < kMaxNames) {
      absl::StrAppend(&text, "  used by ",
                      user.results.empty() ? "" : absl::StrCat("%", graph.values[user.results[0]].name, " = "),
                      user.op.name(), user.symbol.empty() ? "" : absl::StrCat(" \"", user.symbol, "\""), " in ",
                      Where(graph), user.module.empty() ? "" : absl::StrCat(" @", user.module), "\n");
    } else {
      ++others;
    }
  }
  if (others > 0) absl::StrAppend(&text, "  and by ", others, " more in ", Where(graph), "\n");
}

void Explainer::WhySplit(const Graph& graph, const Node& node, std::string& text) const {
  const OpDef* def = ops_.Find(node.op);
  if (def == nullptr || !def->rule || node.operands.empty()) return;
  const auto rule = def->rule(LogicalCallOf(graph, node));
  if (!rule.ok() || rule->out.empty()) return;
  const Sharding& sharding = graph.values[node.results[0]].placement->sharding;
  for (size_t d = 0; d < sharding.dims.size() && d < rule->out[0].size(); ++d) {
    if (sharding.dims[d].empty() || rule->out[0][d] == Rule::kNone) continue;
    for (size_t o = 0; o < rule->in.size(); ++o) {
      const auto dim = std::find(rule->in[o].begin(), rule->in[o].end(), rule->out[0][d]);
      if (dim == rule->in[o].end()) continue;
      absl::StrAppend(&text, "  why: dim ", d, " goes with dim ", dim - rule->in[o].begin(), " of %",
                      graph.values[node.operands[o]].name, ", which is split over ", AxisNames(mesh_, sharding.dims[d]),
                      "\n");
      break;
    }
  }
}

std::string Explainer::WhyPending(const Graph& graph, ValueId v, int axis) const {
  const std::vector<int> producers = graph.Producers();
  while (producers[v] >= 0) {
    const Node& node = graph.nodes[producers[v]];
    const auto pending = std::find_if(node.operands.begin(), node.operands.end(), [&](ValueId operand) {
      const auto& placement = graph.values[operand].placement;
      return placement.has_value() && placement->sharding.IsPending(axis);
    });
    if (pending != node.operands.end()) {
      v = *pending;
      continue;
    }
    if (node.op == Op::kRead) return absl::StrCat("it is summed up in ", node.symbol, " until here");
    for (ValueId operand : node.operands) {
      const auto& placement = graph.values[operand].placement;
      if (!placement.has_value()) continue;
      for (size_t d = 0; d < placement->sharding.dims.size(); ++d) {
        const AxisList& axes = placement->sharding.dims[d];
        if (std::find(axes.begin(), axes.end(), axis) == axes.end()) continue;
        return absl::StrCat("%", graph.values[v].name, " (", node.op.name(),
                            node.module.empty() ? "" : absl::StrCat(" @", node.module), ") sums over dim ", d, " of %",
                            graph.values[operand].name, ", which ", mesh_.axes[axis].name, " splits");
      }
    }
    break;
  }
  return "it comes so from outside this graph";
}

std::string Explainer::WhyWhole(const Graph& graph, ValueId v, int dim, const AxisList& axes) const {
  for (const Node& user : graph.nodes) {
    const auto operand = std::find(user.operands.begin(), user.operands.end(), v);
    if (operand == user.operands.end()) continue;
    // A state whose first dims are cut as one has them as dims of their own where it is used.
    if (user.op == Op::kWait || (user.op == "reshape" && dim == 0)) return WhyWhole(graph, user.results[0], dim, axes);
    const OpDef* def = ops_.Find(user.op);
    if (def == nullptr || !def->rule) continue;
    const auto rule = def->rule(LogicalCallOf(graph, user));
    const size_t o = operand - user.operands.begin();
    if (!rule.ok() || o >= rule->in.size() || dim >= static_cast<int>(rule->in[o].size())) continue;
    const std::string who = absl::StrCat(
        user.results.empty() ? "" : absl::StrCat("%", graph.values[user.results[0]].name, " ("), user.op.name(),
        user.module.empty() ? "" : absl::StrCat(" @", user.module), user.results.empty() ? "" : ")");
    const int factor = rule->in[o][dim];
    const bool is_whole = factor == Rule::kNone || (rule->factors[factor].replicate && !rule->factors[factor].joined);
    if (is_whole) return absl::StrCat(who, " needs that dim whole");
    for (size_t other = 0; other < user.operands.size(); ++other) {
      const auto& placement = graph.values[user.operands[other]].placement;
      if (!placement.has_value()) continue;
      for (size_t d = 0; d < placement->sharding.dims.size(); ++d) {
        for (int axis : placement->sharding.dims[d]) {
          if (std::find(axes.begin(), axes.end(), axis) != axes.end())
            return absl::StrCat(who, " has ", mesh_.axes[axis].name, " split dim ", d, " of %",
                                graph.values[user.operands[other]].name, ", so its other operands must be whole there");
        }
      }
    }
    return absl::StrCat(who, " reads it so");
  }
  return "the graph's result is wanted so";
}

void Explainer::Group(const Graph& graph, const Node& node, std::string& text) const {
  AxisList axes;
  for (const std::string& name : GetAttr<std::vector<std::string>>(node.attrs, "over"))
    axes.push_back(mesh_.Find(name));
  const ValueId from = node.operands[0], to = node.results[0];
  const auto among = GetAttr<std::vector<int64_t>>(node.attrs, "stages");
  if (node.op == Op::kAllGather) {
    const int dim = static_cast<int>(GetAttr<int64_t>(node.attrs, "dim"));
    absl::StrAppend(&text, "    why: %", graph.values[from].name, " has dim ", dim, " split over ",
                    AxisNames(mesh_, axes), "; ", WhyWhole(graph, to, dim, axes), "\n");
  } else if (node.op == Op::kReduceScatter || node.op == Op::kAllReduce) {
    for (int axis : axes) absl::StrAppend(&text, "    why: ", WhyPending(graph, from, axis), "\n");
    absl::StrAppend(&text, "    then: ",
                    node.op == Op::kAllReduce ? "every rank has the sum" : "each rank has its part of the sum", "\n");
  } else if (node.op == Op::kStageSum) {
    absl::StrAppend(&text, "    why: stages ", ListText(among), " each know a part of %", graph.values[from].name,
                    " (zero where they know nothing of it), and each of them needs the sum\n");
  } else if (node.op == Op::kRotateBlocks) {
    absl::StrAppend(&text, "    why: the blocks of %", graph.values[from].name,
                    " that the ranks hold go around, so that each rank meets all of them\n");
  } else {
    absl::StrAppend(&text, "    why: the axes ", AxisNames(mesh_, axes), " move from one dim to another\n");
  }
  const std::vector<int64_t> group = among.empty() ? GroupOf(axes, {stage_}) : GroupOf({}, among);
  const auto size = static_cast<int64_t>(group.size());
  const int64_t groups = mesh_.num_ranks() / static_cast<int64_t>(finalist_.stages.size()) / (among.empty() ? size : 1);
  absl::StrAppend(&text, "    who: ");
  if (groups == 1 && among.empty()) {
    absl::StrAppend(&text, "all ", WholeText(size), " ranks", OfStage());
  } else {
    const bool cut = size > kMaxListedRanks;
    const std::vector<int64_t> listed(group.begin(), group.begin() + std::min(size, kMaxListedRanks));
    absl::StrAppend(&text, WholeText(groups), groups == 1 ? " group" : " groups", " of ", size, " ranks",
                    among.empty() ? OfStage() : absl::StrCat(", one of each of the stages ", ListText(among)),
                    "; the first is ", absl::StrJoin(listed, " "), cut ? " ..." : "");
  }
  if (finalist_.cluster.num_nodes == 1) return;
  std::set<int64_t> nodes;
  for (int64_t rank : group) nodes.insert(rank / std::max<int64_t>(finalist_.cluster.machine.devices_per_node, 1));
  absl::StrAppend(&text, nodes.size() == 1 ? "; inside a node" : absl::StrCat("; across ", nodes.size(), " nodes"));
}

void Explainer::Collective(const Graph& graph, const Node& node, std::string& text) const {
  const NodeTime time = finalist_.times(stage_, graph, node);
  std::string cost = absl::StrCat("a rank sends ", Bytes(time.sent_bytes));
  const int64_t packed =
      node.results.empty()
          ? 0
          : PackedBytes(graph, node, mesh_,
                        {finalist_.cluster.machine.shares_cores, finalist_.cluster.machine.sums_in_order,
                         finalist_.cluster.machine.devices_per_node});
  if (packed > 0 && !finalist_.cluster.machine.shares_cores)
    absl::StrAppend(&cost, " (and copies ", Bytes(packed), " around it: its parts do not lie in a row)");
  if (!node.results.empty()) {
    Group(graph, node, text);
  } else {
    const bool sends = node.op == Op::kSend;
    const int64_t other = GetAttr<int64_t>(node.attrs, sends ? "to" : "from");
    absl::StrAppend(&text, "    why: it is made on stage ", sends ? stage_ : other, " and used on stage ",
                    sends ? other : stage_, "\n    who: each rank of stage ", stage_, sends ? ", to" : ", from",
                    " the one in its place on stage ", other);
    if (!sends) cost = absl::StrCat("a rank receives ", Bytes(program_.FindState(node.symbol)->type.bytes()));
  }
  double seconds = 0, exposed = 0;
  int64_t count = 0;
  for (const Span& span : finalist_.simulation.timeline) {
    if (span.stage != stage_ || span.lane != Lane::kCommunication) continue;
    if (&graph.nodes[span.first_node] != &node || program_.step[span.call].graph != graph.name) continue;
    ++count;
    seconds += span.end - span.begin;
    exposed += span.exposed;
  }
  absl::StrAppend(&text, "\n    costs: ", cost, ", ", SecondsText(time.seconds), " alone");
  if (count > 0)
    absl::StrAppend(&text, "; ", count, " a step: ", SecondsText(seconds), ", of which computation hides ",
                    SecondsText(seconds - exposed));
  absl::StrAppend(&text, "\n");
}

std::vector<int64_t> Explainer::GroupOf(const AxisList& axes, const std::vector<int64_t>& stages) const {
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < mesh_.num_ranks(); ++rank) {
    const std::vector<int64_t> coordinates = mesh_.Coordinates(rank);
    bool inside = true;
    for (int axis = 0; axis < static_cast<int>(coordinates.size()); ++axis) {
      if (axis == stage_axis_) {
        inside &= std::find(stages.begin(), stages.end(), coordinates[axis]) != stages.end();
      } else {
        inside &= coordinates[axis] == 0 || std::find(axes.begin(), axes.end(), axis) != axes.end();
      }
    }
    if (inside) ranks.push_back(rank);
  }
  return ranks;
}

const Span* Explainer::LongestSpan(const CommunicationRow& row) const {
  const Span* longest = nullptr;
  for (const Span& span : finalist_.simulation.timeline) {
    if (span.stage != stage_ || span.lane != Lane::kCommunication) continue;
    const Graph& graph = *program_.FindGraph(program_.step[span.call].graph);
    const Node& node = graph.nodes[span.first_node];
    const auto over = GetAttr<std::vector<std::string>>(node.attrs, "over");
    if (node.op.name() != row.op || (!over.empty() && absl::StrJoin(over, " ") != row.axes)) continue;
    if (longest != nullptr && span.end - span.begin <= longest->end - longest->begin) continue;
    if (CargoOf(program_, graph, node) == row.cargo) longest = &span;
  }
  return longest;
}

}  // namespace tacc::graph
