#ifndef TACC_GRAPH_PLANNER_SIMULATE_TRACE_H_
#define TACC_GRAPH_PLANNER_SIMULATE_TRACE_H_

#include <string>
#include <vector>

#include "graph/planner/simulate/simulate.h"

namespace tacc::graph {

// The simulated step as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: JSON in the trace event
// format, times in microseconds. A process for each stage, named by `names`; in it a thread `compute` with slices for
// calls, in them for modules, in them for nodes; a thread for each communicator; and a counter `memory`, in bytes, for
// a planned program. A trace of more than kMaxTraceSlices slices has none for modules and nodes.
// Source: "Trace Event Format", Google, 2016.
inline constexpr int64_t kMaxTraceSlices = 1'000'000;
std::string TraceJson(const Simulation& simulation, const std::vector<const Program*>& stages,
                      const std::vector<std::string>& names, const NodeTimes& times);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_SIMULATE_TRACE_H_
