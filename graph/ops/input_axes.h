// Which dims of a graph's inputs hold the samples of a micro-batch, and the positions of each.
#ifndef TACC_GRAPH_OPS_INPUT_AXES_H_
#define TACC_GRAPH_OPS_INPUT_AXES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "graph/ir/graph.h"

namespace tacc::graph {

enum class InputAxis {
  kBatch,     // the samples of a micro-batch, over all ranks
  kSequence,  // the positions of a sample's sequence
  kNone,      // the same on all ranks
};

// The name in an input's attribute `axes`.
std::string Name(InputAxis axis);

// Returns what each dim of the input node holds: what its attribute `axes` says, one name a dim; without it dim 0 is
// the batch and dim 1 the sequence, as of tokens and targets. Other names than those above are kNone.
std::vector<InputAxis> InputAxes(const Graph& graph, const Node& input);

// The extent of that axis in the first input that has it; 0: none has.
int64_t ExtentOf(const Graph& graph, InputAxis axis);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_OPS_INPUT_AXES_H_
