#ifndef TACC_GRAPH_PASSES_TRAINING_NARROW_RESIDUAL_H_
#define TACC_GRAPH_PASSES_TRAINING_NARROW_RESIDUAL_H_

#include <vector>

#include "graph/ir/program.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// Which values of a training graph are its forward's residual stream: what a norm is taken of, and the summands of such
// a value, if they have its dims. `forward`: see ForwardNodes. Parameters and inputs are none.
std::vector<char> ResidualStream(const Graph& graph, const std::vector<char>& forward);

// What the backward keeps of a residual stream that is wider than `dtype` becomes a copy in `dtype`: the forward casts
// where it first reads such a value, and all readers outside of the forward, clones of rematerialization too, read the
// copy, cast back. The forward's own values, so the loss, keep each bit. What the backward itself makes again, as the
// stream within a layer that is computed anew, is not kept, and stays wide.
//
// A cast back holds one value at a time and its source is half as large, so that is what lives from forward to backward
// and what a pipeline stashes. Must come after remat, which decides what is kept, and before partition.
//
// Returns whether anything changed.
bool NarrowResidual(Program& program, const OpTable&, DType dtype);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_TRAINING_NARROW_RESIDUAL_H_
