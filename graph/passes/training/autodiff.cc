#include "graph/passes/training/autodiff.h"

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"

namespace tacc::graph {

absl::StatusOr<std::vector<ValueId>> Differentiate(Graph& graph, const OpTable& ops, ValueId loss, ValueId seed,
                                                   const std::vector<ValueId>& values) {
  if (graph.type(loss).rank() != 0 || !IsFloating(graph.type(loss).dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the loss must be a floating scalar, got ", graph.type(loss).ToString()));
  }
  const int num_forward = static_cast<int>(graph.nodes.size());

  // What depends on the values asked for, in line order.
  std::vector<char> depends(graph.values.size(), 0);
  for (ValueId v : values) depends[v] = 1;
  for (const Node& node : graph.nodes) {
    const OpDef* def = ops.Find(node.op);
    if (def == nullptr) return absl::InvalidArgumentError(absl::StrCat("unknown op '", node.op.name(), "'"));
    if (def->no_gradient) continue;
    char any = 0;
    for (ValueId v : node.operands) any |= depends[v];
    for (ValueId v : node.results) depends[v] |= any;
  }

  Builder builder(graph, ops);
  std::vector<ValueId> cotangent(graph.values.size(), kNoValue);
  cotangent[loss] = seed;
  for (int i = num_forward - 1; i >= 0; --i) {
    const Node node = graph.nodes[i];  // a copy: the builder appends to graph.nodes
    std::vector<ValueId> cotangents;
    bool reached = false;
    for (ValueId v : node.results) {
      cotangents.push_back(depends[v] ? cotangent[v] : kNoValue);
      reached |= cotangents.back() != kNoValue;
    }
    if (!reached) continue;
    std::vector<char> needed;
    bool any_needed = false;
    for (ValueId v : node.operands) {
      needed.push_back(depends[v]);
      any_needed |= depends[v] != 0;
    }
    if (!any_needed) continue;
    const OpDef* def = ops.Find(node.op);
    if (def->no_gradient) continue;
    if (def->derive == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(node.op.name(), " at ", node.module.empty() ? "the top level" : node.module,
                       " has no derivative, but the loss depends on parameters through it"));
    }
    builder.SetModule(node.module);
    std::vector<ValueId> gradients(node.operands.size(), kNoValue);
    VjpCall call{builder, node, cotangents, gradients, needed};
    TACC_RETURN_IF_ERROR(def->derive(call));
    TACC_RETURN_IF_ERROR(builder.status());
    for (size_t k = 0; k < node.operands.size(); ++k) {
      const ValueId v = node.operands[k];
      if (!needed[k] || gradients[k] == kNoValue) continue;
      if (graph.type(gradients[k]).dims != graph.type(v).dims) {
        return absl::InternalError(absl::StrCat("derivative of ", node.op.name(), ": operand ", k, " has type ",
                                                graph.type(v).ToString(), " but its gradient ",
                                                graph.type(gradients[k]).ToString()));
      }
      cotangent[v] = cotangent[v] == kNoValue ? gradients[k] : builder.Add("add", {cotangent[v], gradients[k]});
    }
  }
  TACC_RETURN_IF_ERROR(builder.status());
  std::vector<ValueId> result;
  for (ValueId v : values) result.push_back(cotangent[v]);
  return result;
}

}  // namespace tacc::graph
