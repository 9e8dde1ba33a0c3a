// Which parts of a program's graphs a GPU records and replays as a whole.
#ifndef TACC_GRAPH_IR_CAPTURE_H_
#define TACC_GRAPH_IR_CAPTURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "graph/ir/program.h"

namespace tacc::graph {

// Who carries out collectives and messages between ranks: the host, or the device from its queue.
enum class TalkPlace { kHost, kDevice };

// A range of a graph's nodes. A GPU captures it as one CUDA graph at its second run and replays it from then on, or the
// host queues its nodes one by one each time.
struct GraphPart {
  int begin = 0, end = 0;    // nodes [begin, end)
  std::string not_captured;  // the reason; empty: it is captured
  bool operator==(const GraphPart&) const = default;
};

// Cuts all nodes of a graph into parts, in order. The host's collectives are not captured. The device's are, except a
// message, which may outlast the graph, and a collective that is under way across a message, with the nodes under it: a
// CUDA graph must contain both ends of each collective that it starts. Nodes that as a rule run nothing (read, store)
// stay with those before them.
std::vector<GraphPart> CutForCapture(const Graph& graph, const Mesh& mesh, TalkPlace place);

// A part, as plans and logs tell of it.
struct CapturePart {
  std::string graph;
  int64_t num_nodes = 0;
  std::string first_node;  // the first that runs something: "einsum @model.layers.0.mlp"
  std::string not_captured;
  bool operator==(const CapturePart&) const = default;
};
// The parts of the graphs that steps and evaluations call, each graph once, in the order of the calls.
std::vector<CapturePart> CapturePlan(const Program& program, TalkPlace place);

// One line: "CUDA graphs: forward_backward (812 nodes), update (120 nodes); not captured: ...".
std::string InWords(const std::vector<CapturePart>& parts);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_CAPTURE_H_
