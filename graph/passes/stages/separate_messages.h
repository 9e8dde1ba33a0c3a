#ifndef TACC_GRAPH_PASSES_STAGES_SEPARATE_MESSAGES_H_
#define TACC_GRAPH_PASSES_STAGES_SEPARATE_MESSAGES_H_

#include "graph/ir/program.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// Orders a scheduled graph of a pipeline so that collectives are hardly ever under way where a message to or from
// another stage is, for neither can be recorded then (ir/capture.h).
// - Where messages end (`finish`, all of a graph at one place) only the gathers that the first product needs are under
//   way: they use the time in which the rank waits. The others start right before that product.
// - Collectives that are under way at a `send` are waited for before it; the last ones start after it if their operands
//   are made with what is sent, since nothing would have hidden them, and the message need not wait for them.
// Returns whether anything changed.
bool SeparateMessages(Graph& graph, const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_STAGES_SEPARATE_MESSAGES_H_
