#include "graph/planner/simulate/trace.h"

#include <utility>

#include "graph/trace/step_trace.h"

namespace tacc::graph {
namespace {

// The spans of one call, those that compute by node.
std::vector<TraceSpan> SpansOf(const std::vector<Span>& timeline, size_t begin, size_t end, const Graph& graph,
                               const NodeTimes& times, StepTrace::Detail detail) {
  std::vector<TraceSpan> spans;
  for (size_t i = begin; i < end; ++i) {
    const Span& span = timeline[i];
    if (span.lane == Lane::kCommunication) {
      const NodeTime time = times(span.stage, graph, graph.nodes[span.first_node]);
      spans.push_back({span.first_node, time.communicator, span.begin, span.end, span.exposed, time.sent_bytes});
    } else if (detail == StepTrace::Detail::kCalls) {
      spans.push_back({span.first_node, "", span.begin, span.end});
    } else {
      for (const Span& node : SplitByNode(span, graph, times)) {
        if (node.end > node.begin) spans.push_back({node.first_node, "", node.begin, node.end});
      }
    }
  }
  return spans;
}

}  // namespace

std::string TraceJson(const Simulation& simulation, const std::vector<const Program*>& stages,
                      const std::vector<std::string>& names, const NodeTimes& times, const OpTable& ops) {
  const std::vector<Span>& timeline = simulation.timeline;
  int64_t num_nodes = 0;
  for (const Span& span : timeline) num_nodes += span.last_node - span.first_node + 1;
  const StepTrace::Detail detail = num_nodes <= kMaxTraceSlices ? StepTrace::Detail::kNodes : StepTrace::Detail::kCalls;
  std::vector<std::string> processes;
  size_t begin = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    const int stage = static_cast<int>(s);
    const Program& program = *stages[s];
    StepTrace trace(stage, names[s], &program, &ops, detail);
    while (begin < timeline.size() && timeline[begin].stage == stage) {
      const int call = timeline[begin].call;
      size_t end = begin;
      while (end < timeline.size() && timeline[end].stage == stage && timeline[end].call == call) ++end;
      trace.AddCall(call, SpansOf(timeline, begin, end, *program.FindGraph(program.step[call].graph), times, detail));
      begin = end;
    }
    if (program.level == Level::kPlanned) {
      for (const MemoryPoint& point : MemoryOverTime(simulation, program, stage, times))
        trace.AddMemory(point.seconds, point.bytes);
    }
    processes.push_back(std::move(trace).Events());
  }
  return TraceText(processes);
}

}  // namespace tacc::graph
