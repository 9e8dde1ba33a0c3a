#ifndef TACC_GRAPH_PLANNER_REPORT_CHARTS_H_
#define TACC_GRAPH_PLANNER_REPORT_CHARTS_H_

#include <string>

#include "graph/planner/report/finalist.h"

namespace tacc::graph {

// Pictures of a plan as SVG, to stand in the page that html.h makes: colours and fonts are its classes.

// The nodes with their devices, coloured by the groups of the mesh's largest axis. Of more than kMaxDrawnNodes nodes,
// the first ones and the last. Each device is a <g class="gpu" data-rank="R">.
inline constexpr int64_t kMaxDrawnNodes = 16;
std::string LayoutSvg(const Finalist& finalist);

// A rank's memory over the step, of the stage that needs most: bands for what stays, the curve of what lives on top,
// and a line at what the device has.
std::string MemorySvg(const Finalist& finalist);

// The step of each stage (of more than kMaxDrawnStages, the first ones and the last): what it computes, by unit of the
// model, forward, backward and update; and its collectives below (timeline.h).
inline constexpr int kMaxDrawnStages = 8;
std::string PlannedTimelineSvg(const Finalist& finalist);

// A bar of the step's seconds on the slowest stage: kinds of compute, communication that nothing hides, idle time.
std::string TimeBarSvg(const Finalist& finalist, const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_REPORT_CHARTS_H_
