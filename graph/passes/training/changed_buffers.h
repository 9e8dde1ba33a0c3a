// Buffers that a model's forward changes, as the running statistics of batch norms: outputs "buffer:NAME" of its graph.
#ifndef TACC_GRAPH_PASSES_TRAINING_CHANGED_BUFFERS_H_
#define TACC_GRAPH_PASSES_TRAINING_CHANGED_BUFFERS_H_

#include <map>
#include <string>
#include <vector>

#include "graph/ir/graph.h"

namespace tacc::graph {

// What a forward makes of the buffers that it changes, by their names.
std::map<std::string, ValueId> ChangedBuffers(const Graph& forward);

// How running statistics go on becomes a node of its own, so that those of the batch, which a backward may make again,
// depend on no state that changes.
void SeparateRunningStatistics(Graph& forward);

// Puts nodes that only changed buffers need behind the last of their operands. So a pipeline's stage that reads a
// buffer stores it as well.
void MakeChangesEarly(Graph& forward);

// In an evaluation, which reads the running statistics and leaves them as they are: appends to `nodes` what stands in
// place of `moments`, a batch_moments with running ones, and says what replaces its results.
void ReadRunningStatistics(const Node& moments, Graph& graph, std::vector<ValueId>& replacement,
                           std::vector<Node>& nodes);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_TRAINING_CHANGED_BUFFERS_H_
