#ifndef TACC_GRAPH_PLANNER_REPORT_HTML_H_
#define TACC_GRAPH_PLANNER_REPORT_HTML_H_

#include <string>
#include <vector>

#include "graph/planner/report/finalist.h"

namespace tacc::graph {

struct ReportFacts {
  std::string job;
  int64_t max_steps = 1;
  const Finalist* best = nullptr;
  const Planned* planned = nullptr;  // what `best` is the first of
};

// A plan as one page for a browser, for people who would rather look than read: what the job will do, the layout over
// the nodes, memory and timeline of a step, where the time goes, why the others lost. Nothing is loaded from anywhere;
// light or dark as the reader's system is; 360 px wide and up.
std::string ReportHtml(const ReportFacts& facts, const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_REPORT_HTML_H_
