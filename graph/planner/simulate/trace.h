#ifndef TACC_GRAPH_PLANNER_SIMULATE_TRACE_H_
#define TACC_GRAPH_PLANNER_SIMULATE_TRACE_H_

#include <string>
#include <vector>

#include "graph/planner/simulate/simulate.h"

namespace tacc::graph {

// The simulated step as a trace (graph/trace/step_trace.h): a process for each stage, named by `names`, and for a
// planned program the memory over time. A trace of more than kMaxTraceSlices slices has none for modules and nodes: at
// about 350 bytes each, the text of a compiled job's fits into a message to a daemon (256 MiB).
inline constexpr int64_t kMaxTraceSlices = 250'000;
std::string TraceJson(const Simulation& simulation, const std::vector<const Program*>& stages,
                      const std::vector<std::string>& names, const NodeTimes& times, const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_SIMULATE_TRACE_H_
