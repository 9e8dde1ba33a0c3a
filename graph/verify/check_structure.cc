#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/ir/status_macros.h"
#include "graph/verify/checks.h"
#include "text/nearest_name.h"

namespace tacc::graph {
namespace {

bool IsPartitionOp(const Op& op, const OpDef& def) {
  return def.is_collective || op == Op::kShardSlice || op == Op::kMaskPadding || op == Op::kWait;
}

std::string UnknownOp(const std::string& name, const OpTable& ops) {
  std::vector<std::string> names;
  for (const auto& [known, def] : ops.ops()) names.push_back(known);
  return absl::StrCat("no op is named '", name, "'; the nearest is '", NearestName(name, names), "'");
}

const TensorType& LogicalType(const Value& value) {
  return value.placement.has_value() ? value.placement->global : value.type;
}

class StructureCheck {
 public:
  StructureCheck(const Graph& graph, const OpTable& ops, Level level) : graph_(graph), ops_(ops), level_(level) {}

  absl::Status Run() {
    made_.assign(graph_.values.size(), 0);
    std::unordered_set<std::string> names;
    names.reserve(graph_.values.size());
    for (const Value& value : graph_.values) {
      if (!names.insert(value.name).second)
        return absl::InvalidArgumentError(absl::StrCat("two values are named %", value.name));
    }
    for (const Node& node : graph_.nodes) {
      if (absl::Status status = CheckNode(node); !status.ok()) return NodeError(graph_, node, status.message());
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckNode(const Node& node) {
    for (ValueId v : node.operands) {
      if (v < 0 || v >= static_cast<ValueId>(made_.size()) || !made_[v]) {
        return absl::InvalidArgumentError(absl::StrCat("operand ",
                                                       v < 0 ? "(none)" : absl::StrCat("%", graph_.values[v].name),
                                                       " is not made by an earlier line"));
      }
    }
    for (ValueId v : node.results) {
      if (made_[v]) return absl::InvalidArgumentError(absl::StrCat("%", graph_.values[v].name, " is made twice"));
      made_[v] = 1;
    }
    const OpDef* def = ops_.Find(node.op);
    if (def == nullptr) return absl::InvalidArgumentError(UnknownOp(std::string(node.op.name()), ops_));
    TACC_RETURN_IF_ERROR(CheckSymbol(node));
    TACC_RETURN_IF_ERROR(CheckLevel(node, *def));
    return def->infer ? CheckTypes(node, *def) : CheckDeclared(node, *def);
  }

  absl::Status CheckSymbol(const Node& node) {
    if (HasSymbol(node.op) == node.symbol.empty()) {
      return absl::InvalidArgumentError(node.symbol.empty()
                                            ? absl::StrCat("wanted a name in quotes after ", node.op.name())
                                            : absl::StrCat(node.op.name(), " takes no name in quotes"));
    }
    if ((node.op == Op::kParam || node.op == Op::kOutput) &&
        !symbols_.insert(absl::StrCat(node.op.name(), " ", node.symbol)).second) {
      return absl::InvalidArgumentError(absl::StrCat(node.op.name(), " \"", node.symbol, "\" is already there"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckLevel(const Node& node, const OpDef& def) {
    if (level_ != Level::kLogical) {
      return node.op == Op::kParam ? absl::InvalidArgumentError("a partitioned program reads states, not params")
                                   : absl::OkStatus();
    }
    if (IsPartitionOp(node.op, def)) return absl::InvalidArgumentError("only partitioned programs have this op");
    for (ValueId v : node.results) {
      if (graph_.values[v].placement.has_value())
        return absl::InvalidArgumentError("a value of a logical graph has no shard=");
    }
    return absl::OkStatus();
  }

  // Attributes and counts of leaves, whose types are their own.
  absl::Status CheckDeclared(const Node& node, const OpDef& def) {
    if (!node.operands.empty() || node.results.size() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("wanted one result and no operands, got ", node.results.size(), " and ", node.operands.size()));
    }
    for (const auto& [key, value] : node.attrs) {
      const bool known =
          std::any_of(def.attrs.begin(), def.attrs.end(), [&](const AttrSpec& spec) { return key == spec.name; });
      if (!known) return absl::InvalidArgumentError(absl::StrCat("unknown attribute ", key));
    }
    if (node.attrs.count("init") > 0 && !std::holds_alternative<std::string>(node.attrs.at("init"))) {
      return absl::InvalidArgumentError("init must be a word or text such as \"normal(0.02)\"");
    }
    if (node.attrs.count("stored") > 0) {
      const auto* stored = std::get_if<std::vector<int64_t>>(&node.attrs.at("stored"));
      if (stored == nullptr ||
          TensorType{DType::kF32, *stored}.num_elements() != graph_.type(node.results[0]).num_elements()) {
        return absl::InvalidArgumentError(
            absl::StrCat("stored must be dims with as many elements as ", graph_.type(node.results[0]).ToString()));
      }
    }
    if (node.attrs.count("axes") > 0) {
      const auto* axes = std::get_if<std::vector<std::string>>(&node.attrs.at("axes"));
      if (axes == nullptr || static_cast<int>(axes->size()) != graph_.type(node.results[0]).rank()) {
        return absl::InvalidArgumentError(
            absl::StrCat("axes must be one name for each dim of ", graph_.type(node.results[0]).ToString()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckTypes(const Node& node, const OpDef& def) {
    std::vector<TensorType> operands;
    for (ValueId v : node.operands) operands.push_back(LogicalType(graph_.values[v]));
    TACC_ASSIGN_OR_RETURN(const std::vector<TensorType> inferred, InferTypes(def, node.attrs, operands));
    if (inferred.size() != node.results.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(node.op.name(), " has ", inferred.size(), " results, but the line names ", node.results.size()));
    }
    for (size_t i = 0; i < inferred.size(); ++i) {
      const Value& value = graph_.values[node.results[i]];
      if (LogicalType(value) == inferred[i]) continue;
      return absl::InvalidArgumentError(absl::StrCat("%", value.name, " is declared ", LogicalType(value).ToString(),
                                                     ", but ", node.op.name(), " of its operands is ",
                                                     inferred[i].ToString()));
    }
    return absl::OkStatus();
  }

  const Graph& graph_;
  const OpTable& ops_;
  Level level_;
  std::vector<char> made_;
  std::unordered_set<std::string> symbols_;
};

}  // namespace

std::string Describe(const Graph& graph, const Node& node) {
  std::string out = absl::StrJoin(node.results, ", ",
                                  [&](std::string* s, ValueId v) { absl::StrAppend(s, "%", graph.values[v].name); });
  if (!out.empty()) out += " = ";
  absl::StrAppend(&out, node.op.name());
  if (!node.symbol.empty()) absl::StrAppend(&out, " \"", node.symbol, "\"");
  if (!node.module.empty()) absl::StrAppend(&out, " @", node.module);
  return out;
}

absl::Status NodeError(const Graph& graph, const Node& node, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(Describe(graph, node), ": ", what));
}

absl::Status CheckStructure(const Graph& graph, const OpTable& ops, Level level) {
  return StructureCheck(graph, ops, level).Run();
}

namespace {

// send, recv and finish.
absl::Status CheckMessage(const Graph& graph, const Node& node, const Program& program, const State& state) {
  if (state.kind != StateKind::kStash) return NodeError(graph, node, "only a stash travels between stages");
  if (node.op == Op::kFinish) return absl::OkStatus();
  const int64_t other = GetAttr<int64_t>(node.attrs, node.op == Op::kSend ? "to" : "from");
  if (other >= 0 && other < program.num_stages && other != program.stage) return absl::OkStatus();
  return NodeError(graph, node,
                   absl::StrCat(node.op == Op::kSend ? "to=" : "from=", other, " in stage ", program.stage, " of ",
                                program.num_stages, "; wanted another stage"));
}

absl::Status CheckStageSum(const Graph& graph, const Node& node, const Program& program) {
  const auto stages = GetAttr<std::vector<int64_t>>(node.attrs, "stages");
  bool sorted = true;
  for (size_t i = 0; i < stages.size(); ++i) sorted = sorted && (i == 0 ? stages[i] >= 0 : stages[i] > stages[i - 1]);
  const bool has_own = std::find(stages.begin(), stages.end(), program.stage) != stages.end();
  if (sorted && has_own && stages.back() < program.num_stages) return absl::OkStatus();
  return NodeError(graph, node,
                   absl::StrCat("stages=", DimsToString(stages), " in stage ", program.stage, " of ",
                                program.num_stages, "; wanted this stage and others, ascending"));
}

}  // namespace

absl::Status CheckBindings(const Graph& graph, const Program& program, const StateIndex& states) {
  // Those that data folders and the rank give; others come from a client as they are declared.
  static const std::map<std::string, std::pair<DType, int>> kInputs = {{"tokens", {DType::kI32, 2}},
                                                                       {"targets", {DType::kI32, 2}},
                                                                       {"document_start", {DType::kI32, 2}},
                                                                       {"sample", {DType::kI64, 1}},
                                                                       {"step", {DType::kI64, 0}}};
  std::set<std::string> stored;
  for (const Node& node : graph.nodes) {
    if (node.op == Op::kInput) {
      const auto it = kInputs.find(node.symbol);
      const TensorType& type = graph.type(node.results[0]);
      if (it != kInputs.end() && (type.dtype != it->second.first || type.rank() != it->second.second)) {
        return NodeError(graph, node,
                         absl::StrCat("the input is ", Name(it->second.first), " with ", it->second.second,
                                      " dims, not ", type.ToString()));
      }
    }
    if (node.op == Op::kStageSum) TACC_RETURN_IF_ERROR(CheckStageSum(graph, node, program));
    const bool is_message = IsMessage(node.op);
    if (node.op != Op::kRead && node.op != Op::kStore && !is_message) continue;
    const State* state = states.Find(node.symbol);
    if (state == nullptr) return NodeError(graph, node, "no state has this name");
    if (is_message) {
      TACC_RETURN_IF_ERROR(CheckMessage(graph, node, program, *state));
      continue;
    }
    const Value& value = graph.values[node.op == Op::kRead ? node.results[0] : node.operands[0]];
    const Placement placement =
        value.placement.value_or(Placement{value.type, Sharding::Replicated(value.type.rank())});
    const bool same = program.level == Level::kLogical ? placement.global == state->placement.global
                                                       : placement == state->placement && value.type == state->type;
    if (!same) {
      return NodeError(graph, node,
                       absl::StrCat("%", value.name, " is ", value.type.ToString(), " of ", placement.global.ToString(),
                                    " shard=", placement.sharding.ToString(program.mesh), ", but the state is ",
                                    state->type.ToString(), " of ", state->placement.global.ToString(),
                                    " shard=", state->placement.sharding.ToString(program.mesh)));
    }
    if (stored.count(node.symbol) > 0) {
      return NodeError(graph, node,
                       node.op == Op::kRead ? "the state is read after it was stored in this graph"
                                            : "the state is stored twice in this graph");
    }
    if (node.op == Op::kStore) stored.insert(node.symbol);
  }
  return absl::OkStatus();
}

}  // namespace tacc::graph
