#ifndef TACC_GRAPH_PASSES_REWRITE_COMBINE_SQUARES_H_
#define TACC_GRAPH_PASSES_REWRITE_COMBINE_SQUARES_H_

#include "graph/ir/program.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// A sum of scalars, by add and all_reduce, of which several are sums of squares (the norm of all gradients): its
// sum_squares that are pending on the same axes become one, which is reduced once. So a GPU adds up all gradients at a
// time, and their sums cost one collective for each way in which parameters are split, not one for each parameter. Must
// come after partition, which decides what is pending where. Returns whether anything changed.
bool CombineSquares(Program& program, const OpTable&);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_REWRITE_COMBINE_SQUARES_H_
