#ifndef TACC_GRAPH_PASSES_PARTITION_ORDER_SEQUENCE_H_
#define TACC_GRAPH_PASSES_PARTITION_ORDER_SEQUENCE_H_

#include "graph/ir/program.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// Lays the sequence out for context parallelism over a ring of `blocks` ranks: every node that depends on positions,
// inputs included, gets `zigzag=blocks`, so that each rank's block has the same work under a causal mask
// (graph/ir/sequence_order.h). What is computed of inputs of whole numbers alone along the sequence stays in natural
// order, and is gathered by `positions` where it meets the sequence, or weights. blocks=1: natural order, for Ulysses
// alone. The program computes what it did before.
// Returns whether anything changed.
// Errors, with blocks > 1: InvalidArgument when 2 x blocks does not divide the sequence, with the nearest lengths; or
// when a node mixes the sequence with a dim that keeps its natural order.
absl::StatusOr<bool> OrderSequence(Program& program, const OpTable& ops, int64_t blocks);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_PARTITION_ORDER_SEQUENCE_H_
