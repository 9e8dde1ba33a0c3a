#ifndef TACC_GRAPH_OPS_UPDATE_OPERANDS_H_
#define TACC_GRAPH_OPS_UPDATE_OPERANDS_H_

namespace tacc::graph {

// Operands of an op that updates a weight element by element (adamw, adam, sgd, lion, moving_average): the weight, its
// states, the gradient, and the scalars lr, grad_scale, apply, count. So many are not states. Results: the new weight,
// the new states, and with the attribute `copy` the weight in that type.
inline constexpr int kUpdateOperandsBesideStates = 6;

}  // namespace tacc::graph

#endif  // TACC_GRAPH_OPS_UPDATE_OPERANDS_H_
