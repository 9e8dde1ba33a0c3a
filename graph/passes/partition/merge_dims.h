#ifndef TACC_GRAPH_PASSES_PARTITION_MERGE_DIMS_H_
#define TACC_GRAPH_PASSES_PARTITION_MERGE_DIMS_H_

#include "graph/ir/program.h"
#include "graph/ops/op.h"
#include "graph/passes/partition/place_states.h"

namespace tacc::graph {

// Rewrites a logical graph for states whose leading dims are one (State::merged_from): what is read of them, and what
// narrows it or adds to it, has their dims, and a reshape stands between that and the rest of the graph. The update
// works on the dims that the optimizer's states have; there what lies otherwise is reshaped as it is read and stored.
void MergeDims(Graph& graph, const StateIndex& states, const ParameterForms& forms);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_PARTITION_MERGE_DIMS_H_
