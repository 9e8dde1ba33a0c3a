#include "graph/passes/training/mixed_precision.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"

namespace tacc::graph {

absl::StatusOr<bool> MixedPrecision(Graph& forward, const OpTable& ops, DType dtype) {
  Graph graph;
  graph.name = forward.name;
  Builder builder(graph, ops);
  std::vector<ValueId> mapped(forward.values.size(), kNoValue);
  std::map<std::pair<ValueId, DType>, ValueId> casts;  // one cast a value
  auto cast = [&](ValueId v, DType to) {
    if (!IsFloating(builder.type(v).dtype)) return v;
    auto [it, inserted] = casts.try_emplace({v, to}, kNoValue);
    if (inserted) it->second = builder.Cast(v, to);
    return it->second;
  };
  const auto types_of = [&](const std::vector<ValueId>& values) {
    std::vector<TensorType> types;
    for (ValueId v : values) types.push_back(builder.type(v));
    return types;
  };
  for (const Node& node : forward.nodes) {
    const OpDef* def = ops.Find(node.op);
    if (def == nullptr) return absl::InvalidArgumentError(absl::StrCat("unknown op '", node.op.name(), "'"));
    builder.SetModule(node.module);
    std::vector<ValueId> operands;
    for (ValueId v : node.operands) operands.push_back(mapped[v]);
    if (node.op == Op::kOutput) {  // of the type that the graph gives it
      builder.End(Op::kOutput, node.symbol, cast(operands[0], forward.type(node.operands[0]).dtype), node.attrs);
      continue;
    }
    if (node.op == Op::kInput || node.op == Op::kParam) {
      mapped[node.results[0]] = builder.Leaf(node.op, node.symbol, forward.type(node.results[0]), node.attrs);
      continue;
    }
    if (def->is_matmul) {
      const std::vector<int> exact =
          def->exact_operands ? def->exact_operands(CallOf(forward, node)) : std::vector<int>();
      for (size_t i = 0; i < operands.size(); ++i) {
        const bool is_exact = std::find(exact.begin(), exact.end(), static_cast<int>(i)) != exact.end();
        operands[i] = cast(operands[i], is_exact ? forward.type(node.operands[i]).dtype : dtype);
      }
    } else if (node.op == "add" && builder.type(operands[1]).rank() < builder.type(operands[0]).rank() &&
               builder.type(operands[0]).dtype == dtype) {
      operands[1] = cast(operands[1], dtype);  // a bias
    } else if (const std::vector<TensorType> types = types_of(operands); !InferTypes(*def, node.attrs, types).ok()) {
      // It takes one type alone: the widest that it is given.
      DType widest = dtype;
      for (const TensorType& type : types) {
        if (IsFloating(type.dtype) && ByteSize(type.dtype) > ByteSize(widest)) widest = type.dtype;
      }
      for (ValueId& v : operands) v = cast(v, widest);
      if (!InferTypes(*def, node.attrs, types_of(operands)).ok()) {  // Nor that one, as top_k of probabilities.
        for (size_t i = 0; i < operands.size(); ++i)
          operands[i] = cast(operands[i], forward.type(node.operands[i]).dtype);
      }
    }
    const std::vector<ValueId> results =
        builder.AddMany(node.op, std::move(operands), node.attrs, static_cast<int>(node.results.size()));
    TACC_RETURN_IF_ERROR(builder.status());
    for (size_t i = 0; i < results.size(); ++i) mapped[node.results[i]] = results[i];
  }
  TACC_RETURN_IF_ERROR(builder.status());
  const bool changed = graph.nodes.size() > forward.nodes.size();  // by casts
  if (changed) forward = std::move(graph);
  return changed;
}

bool FoldCasts(Graph& graph, const OpTable& ops) {
  std::vector<int> num_uses(graph.values.size(), 0);
  for (const Node& node : graph.nodes) {
    for (ValueId v : node.operands) ++num_uses[v];
  }
  const std::vector<int> producers = graph.Producers();
  std::vector<char> dead(graph.nodes.size(), 0);
  std::vector<ValueId> replacement(graph.values.size(), kNoValue);
  bool changed = false;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    Node& node = graph.nodes[i];
    for (ValueId& v : node.operands) {
      if (replacement[v] != kNoValue) v = replacement[v];
    }
    if (node.op != "cast") continue;
    const ValueId v = node.operands[0];
    if (num_uses[v] != 1 || producers[v] < 0) continue;
    Node& producer = graph.nodes[producers[v]];
    if (producer.op == "cast" || producer.results[0] != v || !IsFloating(graph.type(v).dtype)) continue;
    const OpDef* def = ops.Find(producer.op);
    const bool writes_any_type =
        def != nullptr && std::any_of(def->attrs.begin(), def->attrs.end(),
                                      [](const AttrSpec& a) { return absl::string_view(a.name) == "dtype"; });
    if (!writes_any_type) continue;
    const DType to = graph.type(node.results[0]).dtype;
    producer.attrs["dtype"] = std::string(Name(to));
    graph.values[v].type.dtype = to;
    if (graph.values[v].placement.has_value()) graph.values[v].placement->global.dtype = to;
    replacement[node.results[0]] = v;
    num_uses[v] = num_uses[node.results[0]];
    dead[i] = 1;
    changed = true;
  }
  std::vector<Node> nodes;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!dead[i]) nodes.push_back(std::move(graph.nodes[i]));
  }
  graph.nodes = std::move(nodes);
  return changed;
}

}  // namespace tacc::graph
