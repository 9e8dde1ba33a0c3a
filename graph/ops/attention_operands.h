// Which operands an op of attention's family has, and where.
#ifndef TACC_GRAPH_OPS_ATTENTION_OPERANDS_H_
#define TACC_GRAPH_OPS_ATTENTION_OPERANDS_H_

#include <optional>

#include "absl/strings/string_view.h"
#include "graph/ir/graph.h"

namespace tacc::graph {

// Index of each operand, in the order in which they stand; -1: there is none.
struct AttentionOperands {
  int dout = -1;                           // of a gradient
  int q = -1, k = -1, v = -1;              // the same one where they are heads of one tensor
  int sinks = -1;                          // with the attribute sinks
  int earlier_out = -1, earlier_lse = -1;  // of attention_continue
  int out = -1, lse = -1;                  // of a gradient: the forward's results
  int step = -1, sample = -1;              // with the attribute dropout
  int key_bias = -1;                       // with the attribute key_bias
  int bias = -1;                           // with the attribute bias
  int document_start = -1;                 // behind all others, in data with documents apart
  int count = 0;                           // of them all, document_start left out
  bool is_gradient = false, is_joined = false;
};

// Absent for ops of other families. `num_operands` of the node tells whether document_start is there.
std::optional<AttentionOperands> AttentionOperandsOf(absl::string_view op, const Attrs& attrs, size_t num_operands);

// Makes the node, of attention or its gradient, what it is without dropout. Nothing for nodes of other ops.
void RemoveAttentionDropout(Node& node);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_OPS_ATTENTION_OPERANDS_H_
