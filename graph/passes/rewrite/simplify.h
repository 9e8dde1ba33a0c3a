#ifndef TACC_GRAPH_PASSES_REWRITE_SIMPLIFY_H_
#define TACC_GRAPH_PASSES_REWRITE_SIMPLIFY_H_

#include "graph/ir/graph.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// Removes nodes whose results nobody reads and that have no side effect. Returns whether anything changed.
bool EliminateDeadCode(Graph& graph, const OpTable& ops);

// Merges nodes that compute the same from the same operands within one module and one recompute number: later ones use
// the first's results. Leaves merge over the whole graph; reads only while nothing stores to the state in between, and
// constants that are stored not at all.
// Returns whether anything changed.
bool EliminateCommonSubexpressions(Graph& graph, const OpTable& ops);

// A sum of pads that fill the parts of one dim, each once, becomes their concat: the gradient of a value that was taken
// apart by slices (fused q, k and v). Saves the padded buffers and the adds. Returns whether anything changed.
bool ConcatenatePads(Graph& graph, const OpTable&);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_REWRITE_SIMPLIFY_H_
