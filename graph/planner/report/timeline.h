// Timelines drawn as SVG.
#ifndef TACC_GRAPH_PLANNER_REPORT_TIMELINE_H_
#define TACC_GRAPH_PLANNER_REPORT_TIMELINE_H_

#include <cstddef>
#include <string>
#include <vector>

namespace tacc::graph {

// A coloured piece of a timeline; `css` is a class of page.h.
struct TimelinePiece {
  double begin, end;  // seconds
  std::string css, label, title;
};

// What one stage, rank or communicator does: pieces in order and apart.
struct TimelineRow {
  std::string title;
  double height;
  std::vector<TimelinePiece> pieces;
};
inline constexpr double kTallRow = 26, kLowRow = 14;

// Pieces of all rows together: each is some 150 bytes of the page.
inline constexpr size_t kMaxPieces = 4000;

// The rows below each other over a step of `seconds`. Each piece is a <rect data-l="label">, which the page can zoom.
// Pieces too narrow to be seen become one; of more than kMaxPieces neighbours do, as many as must.
std::string TimelineSvg(const std::vector<TimelineRow>& rows, double seconds);

// The part of a module path that is a layer ("model.layers.3.mlp" -> "model.layers.3"), else its first two words.
std::string UnitOf(const std::string& module);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_REPORT_TIMELINE_H_
