// A step of all stages simulated node by node, as the devices and links of a cluster would run it.
#ifndef TACC_GRAPH_PLANNER_SIMULATE_SIMULATE_H_
#define TACC_GRAPH_PLANNER_SIMULATE_SIMULATE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"
#include "graph/planner/cost/cluster.h"

namespace tacc::graph {

// What a node of a rank's program takes when nothing else runs.
struct NodeTime {
  double seconds = 0;
  // The parts that it takes meanwhile, in [0, 1]; what runs together and takes more than 1 of one is slowed.
  double device = 0;   // of the device's compute units: 1 for what is no collective
  double link = 0;     // of the device's link to the others of its node
  double network = 0;  // of the device's share of its node's network
  double host = 0;     // of the processors that all stages share, by the stage's ranks; may be more than 1
  // The communicator: collectives of one run one after the other, those of different ones at the same time. Empty: no
  // collective.
  std::string communicator;
  // Of a transfer between stages: the n-th node with this name on each of the `parties` stages is one and the same,
  // and starts when all have come to it. Empty: the ranks of one stage, which come at the same time.
  std::string meeting;
  int parties = 1;
  int64_t sent_bytes = 0;  // by this rank, of a collective
  LinkBytes sent;          // the same by link, on average over the group
};

using NodeTimes = std::function<NodeTime(int stage, const Graph& graph, const Node& node)>;

enum class Lane { kCompute, kCommunication };

// Nodes of one graph that ran without a break, or one collective.
struct Span {
  int stage = 0;
  int call = 0;  // index into the stage's step
  Lane lane = Lane::kCompute;
  int first_node = 0;  // indices into the graph's nodes, both included
  int last_node = 0;
  double begin = 0;  // seconds from the start of the step
  double end = 0;
  double exposed = 0;  // of a collective: seconds in which its rank computed nothing
};

// Where a rank's time goes: compute + exposed communication + idle = step.
struct StageTimes {
  double compute_seconds = 0;
  double contention_seconds = 0;     // of compute_seconds: lost to communication that ran beside it
  double communication_seconds = 0;  // in which some collective ran
  double exposed_seconds = 0;        // of those: in which nothing was computed
  double blocking_seconds = 0;       // of collectives that what follows them waits for wherever they run
  double idle_seconds = 0;           // waiting for other stages: the bubble
};

struct Simulation {
  double step_seconds = 0;
  std::vector<StageTimes> stages;
  std::vector<Span> timeline;  // by stage; in each, by call and line
};

// One training step of the stages' programs (scheduled or planned; one, without a pipeline), as a discrete-event
// simulation. The ranks of a stage run the same program on devices alike, so one stands for all of them. In each:
// - Nodes run in line order on the device. A collective waits for the nodes before it and holds up those after it,
//   unless it is async: then it runs beside them, to its `wait`; so does a message between stages, from `send` or
//   `recv` to the `finish` of the same channel and micro-batch.
// - What takes more than there is of a device, its link or its network is slowed in proportion.
//
// Errors: FailedPrecondition when the stages wait for each other in a circle, or do not meet.
absl::StatusOr<Simulation> Simulate(const std::vector<const Program*>& stages, const NodeTimes& times);

// The nodes of a span of compute, each with its part of the span, in line order.
std::vector<Span> SplitByNode(const Span& span, const Graph& graph, const NodeTimes& times);

// Live bytes of a rank over the step: the states, the workspace, and the places of temporaries that hold what is still
// needed. Each point holds until the next; the last is the end of the step. For a planned program.
struct MemoryPoint {
  double seconds = 0;
  int64_t bytes = 0;
};
std::vector<MemoryPoint> MemoryOverTime(const Simulation& simulation, const Program& program, int stage,
                                        const NodeTimes& times);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_SIMULATE_SIMULATE_H_
