#ifndef TACC_GRAPH_IR_CAPTURE_H_
#define TACC_GRAPH_IR_CAPTURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "graph/ir/program.h"

namespace tacc::graph {

// Where collectives and messages between ranks are done: by the host, or queued on the device.
enum class TalkPlace { kHost, kDevice };

// Nodes of a graph that a GPU captures as one (a CUDA graph) at their second run and replays from then on, or that the
// host queues one by one each time.
struct GraphPart {
  int begin = 0, end = 0;    // nodes
  std::string not_captured;  // why; empty: it is captured
  bool operator==(const GraphPart&) const = default;
};

// All nodes of a graph as parts, in order. A collective by the host is not captured. One on the device is, but not a
// message, which may outlast the graph, nor a collective that is under way meanwhile with what lies under it: what is
// started in a capture must end in it. Nodes that run nothing as a rule (read, store) go with those before them.
std::vector<GraphPart> CutForCapture(const Graph& graph, const Mesh& mesh, TalkPlace place);

// A part as people are told of it.
struct CapturePart {
  std::string graph;
  int64_t num_nodes = 0;
  std::string first_node;  // that runs something: "einsum @model.layers.0.mlp"
  std::string not_captured;
  bool operator==(const CapturePart&) const = default;
};
// The parts of the graphs that steps and evaluations call, each graph once, in the order of the calls.
std::vector<CapturePart> CapturePlan(const Program& program, TalkPlace place);

// A line: "CUDA graphs: forward_backward (812 nodes), update (120 nodes); not captured: ...".
std::string InWords(const std::vector<CapturePart>& parts);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_CAPTURE_H_
