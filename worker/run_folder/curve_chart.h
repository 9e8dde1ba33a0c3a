#ifndef TACC_WORKER_RUN_FOLDER_CURVE_CHART_H_
#define TACC_WORKER_RUN_FOLDER_CURVE_CHART_H_

#include <string>
#include <utility>
#include <vector>

namespace tacc::worker {

struct Curve {
  std::string colour;                             // Of page/page.h: "forward".
  std::vector<std::pair<double, double>> points;  // x ascending; finite.
  bool has_dots = false;                          // For few points.
};

// The curves over one x as SVG, to stand in a page of page/page.h. Of more than kMaxPoints points means of neighbours
// are drawn, and behind them the band from the least to the largest.
inline constexpr size_t kMaxPoints = 400;
std::string CurveChart(const std::string& title, const std::vector<Curve>& curves, double height);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RUN_FOLDER_CURVE_CHART_H_
