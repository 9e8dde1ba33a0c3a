#ifndef TACC_GRAPH_VERIFY_VERIFY_H_
#define TACC_GRAPH_VERIFY_VERIFY_H_

#include <vector>

#include "absl/status/status.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// Checks what every later part may rely on. Errors: InvalidArgument "graph NAME: %result = op @module: what is wrong";
// the first one.

// A logical graph by itself, as a text graph or the importer makes it:
// - every op is known, has its arity, attributes and symbol, and the types that inference gives;
// - a value is made once, by an earlier line than its uses; params and outputs have distinct names;
// - it has no placements, states or collectives.
absl::Status VerifyGraph(const Graph& graph, const OpTable& ops);

// A program at its level. All levels: the graphs as above; inputs are tokens, targets, sample or step; reads and stores
// name a state of their type; a state is stored once a graph and not read after that; calls name graphs.
// From partitioned on:
// - every value has a placement; its own dims follow from it; no axis is used twice; pending is apart from dims;
// - each result follows from its op's rule, a value is pending only where the rule lets it pass, and reduced padding is
//   masked;
// - a collective changes its operand's placement as its attributes say; an asynchronous one is waited for, once, before
//   its use;
// - a store's placement is its state's; only gradients and counters are pending at rest, and no output is.
// Planned:
// - offsets are multiples of 64 and lie in the arena; states do not overlap;
// - what a line reads is what was written: no value is overwritten while it, an alias or a collective in flight needs
//   it, and a result lies on an operand only where the op's facts allow it. Over the calls of two steps, no state is
//   read after its bytes were used for something else.
absl::Status Verify(const Program& program, const OpTable& ops);

// The programs of all stages of a pipeline, in order (or one program by itself): each as above, and together:
// - a channel has one send and one recv, which agree on stages, stash and type;
// - a stash is read and sent only when its copy holds the call's micro-batch;
// - run against each other, the stages end: no message and no sum over stages is waited for in a circle.
absl::Status VerifyStages(const std::vector<Program>& stages, const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_VERIFY_VERIFY_H_
