// Traces drawn below each other as a page.
#ifndef TACC_GRAPH_PLANNER_REPORT_TRACE_PAGE_H_
#define TACC_GRAPH_PLANNER_REPORT_TRACE_PAGE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tacc::graph {

struct NamedTrace {
  std::string name;
  std::string text;  // of the file (graph/trace/step_trace.h)
};

struct TracePage {
  std::string html;
  std::string
      warning;  // That the traces are of different layouts, and of which; the page says it too. Empty: they agree.
};

// Traces as one page for a browser, below each other on one scale, as a simulated and a measured step: what each
// process computes by layer and by kernel and what it communicates, and the kernels that take longest. InvalidArgument
// names the trace that is none.
absl::StatusOr<TracePage> TraceHtml(const std::vector<NamedTrace>& traces);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_REPORT_TRACE_PAGE_H_
