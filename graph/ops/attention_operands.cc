#include "graph/ops/attention_operands.h"

namespace tacc::graph {

std::optional<AttentionOperands> AttentionOperandsOf(absl::string_view op, const Attrs& attrs, size_t num_operands) {
  AttentionOperands found;
  found.is_joined = op == "attention_joined" || op == "attention_joined_grad";
  found.is_gradient = op == "attention_grad" || op == "attention_joined_grad" || op == "attention_bias_grad";
  const bool goes_on = op == "attention_continue";
  if (!found.is_joined && !found.is_gradient && !goes_on && op != "attention") return std::nullopt;
  int next = 0;
  if (found.is_gradient) found.dout = next++;
  found.q = found.k = found.v = next++;
  if (!found.is_joined) {
    found.k = next++;
    found.v = next++;
  }
  if (!found.is_gradient && GetAttr<bool>(attrs, "sinks")) found.sinks = next++;
  if (goes_on) {
    found.earlier_out = next++;
    found.earlier_lse = next++;
  }
  if (found.is_gradient) {
    found.out = next++;
    found.lse = next++;
  }
  if (GetAttr<double>(attrs, "dropout") > 0) {
    found.step = next++;
    found.sample = next++;
  }
  if (GetAttr<bool>(attrs, "key_bias")) found.key_bias = next++;
  if (GetAttr<bool>(attrs, "bias")) found.bias = next++;
  found.count = next;
  if (static_cast<int>(num_operands) > next) found.document_start = next;
  return found;
}

void RemoveAttentionDropout(Node& node) {
  const auto at = AttentionOperandsOf(node.op.name(), node.attrs, node.operands.size());
  if (!at.has_value() || at->step < 0) return;
  node.operands.erase(node.operands.begin() + at->step, node.operands.begin() + at->sample + 1);
  for (const char* name : {"dropout", "dropout_key", "dropout_seed"}) node.attrs.erase(name);
}

}  // namespace tacc::graph
