// Which operands an op has that updates a weight element by element (adamw, adam, sgd, lion, moving_average).
#ifndef TACC_GRAPH_OPS_UPDATE_OPERANDS_H_
#define TACC_GRAPH_OPS_UPDATE_OPERANDS_H_

#include <algorithm>
#include <cstddef>

#include "absl/strings/string_view.h"

namespace tacc::graph {

// The weight, its states, the gradient, and the scalars lr, grad_scale, apply, count. So many are not states.
inline constexpr int kUpdateOperandsBesideStates = 6;

// Index of each operand that follows the weight and its states; -1: there is none. Results of the op: the new weight,
// the new states, and with the attribute `copy` the weight in that type.
struct UpdateOperands {
  int num_states = 0;
  int gradient = 1;
  int momentum = -1;  // a scalar behind the others, in place of the attribute beta1, or momentum of sgd
  int scalar(int i) const { return gradient + 1 + i; }  // lr, grad_scale, apply, count
};

// `num_operands` of the node tells whether there is a momentum: an op that takes one has as many states as it can.
inline UpdateOperands UpdateOperandsOf(absl::string_view op, size_t num_operands) {
  const int most_states = op == "adamw" || op == "adam" ? 2 : op == "moving_average" ? 0 : 1;
  UpdateOperands at;
  at.num_states = std::min(static_cast<int>(num_operands) - kUpdateOperandsBesideStates, most_states);
  at.gradient = 1 + at.num_states;
  if (static_cast<int>(num_operands) > kUpdateOperandsBesideStates + at.num_states) at.momentum = at.scalar(4);
  return at;
}

}  // namespace tacc::graph

#endif  // TACC_GRAPH_OPS_UPDATE_OPERANDS_H_
