#ifndef TACC_GRAPH_PASSES_REWRITE_FUSE_GATES_H_
#define TACC_GRAPH_PASSES_REWRITE_FUSE_GATES_H_

#include "graph/ir/graph.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// Makes swiglu of a silu and the product that alone reads it, silu(gate) * up, as graphs have it that were exported
// from PyTorch or written by hand. That is one kernel each way in place of two, and the activation is not kept for the
// backward: 6 bytes an element of bf16 are moved and not 10, and 4 are kept and not 6. In f32 the result is the same
// to the bit; in narrower types one rounding is left out. Must come after the types are settled, for a swiglu takes
// one type where a product takes two, and before the backward is added, which has the gradient of a gate as one kernel
// too. Returns whether anything changed.
bool FuseGates(Graph& graph, const OpTable&);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_REWRITE_FUSE_GATES_H_
