#include "graph/planner/report/timeline.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "graph/planner/report/words.h"
#include "page/svg.h"

namespace tacc::graph {
namespace {

using svg::Escaped;
using svg::kWidth;

// Consecutive pieces that are too narrow to see become one.
std::vector<TimelinePiece> Thinned(const std::vector<TimelinePiece>& pieces, double resolution) {
  std::vector<TimelinePiece> thin;
  for (const TimelinePiece& piece : pieces) {
    if (!thin.empty() && piece.css == thin.back().css && piece.begin - thin.back().end < resolution &&
        (piece.end - thin.back().begin < resolution || piece.label == thin.back().label)) {
      thin.back().end = piece.end;
    } else if (piece.end - piece.begin >= resolution / 4 || thin.empty() ||
               piece.begin - thin.back().end >= resolution) {
      thin.push_back(piece);
    }
  }
  return thin;
}

// Pieces that begin and end within `width` of one another become one, which looks like the longest of them.
std::vector<TimelinePiece> Grouped(const std::vector<TimelinePiece>& pieces, double width) {
  std::vector<TimelinePiece> groups;
  double longest = 0;  // of the last group
  for (const TimelinePiece& piece : pieces) {
    const double seconds = piece.end - piece.begin;
    if (groups.empty() || piece.end - groups.back().begin >= width) {
      groups.push_back(piece);
      longest = seconds;
      continue;
    }
    const TimelinePiece group = groups.back();
    if (seconds > longest) groups.back() = piece;
    longest = std::max(longest, seconds);
    groups.back().begin = group.begin;
    groups.back().end = piece.end;
  }
  return groups;
}

// Of all rows: fine enough to be zoomed into; where that is too much, groups, which are finer in tall rows.
std::vector<std::vector<TimelinePiece>> Drawn(const std::vector<TimelineRow>& rows, double seconds) {
  const double fine = seconds / (kWidth * 4);
  std::vector<std::vector<TimelinePiece>> drawn;
  for (const TimelineRow& row : rows) drawn.push_back(Thinned(row.pieces, fine));
  const auto num_pieces = [&] {
    size_t sum = 0;
    for (const auto& pieces : drawn) sum += pieces.size();
    return sum;
  };
  constexpr double kFinerInTallRows = 8;
  for (double width = fine; num_pieces() > std::max(kMaxPieces, rows.size()) && width < kFinerInTallRows * seconds;
       width *= 1.5) {
    for (size_t i = 0; i < rows.size(); ++i)
      drawn[i] = Grouped(drawn[i], rows[i].height >= kTallRow ? width / kFinerInTallRows : width);
  }
  return drawn;
}

}  // namespace

std::string UnitOf(const std::string& module) {
  const std::vector<std::string> parts = absl::StrSplit(module, '.');
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].empty() && absl::ascii_isdigit(parts[i][0]))
      return absl::StrJoin(parts.begin(), parts.begin() + static_cast<int64_t>(i) + 1, ".");
  }
  return parts.size() > 1 ? absl::StrCat(parts[0], ".", parts[1]) : module;
}

std::string TimelineSvg(const std::vector<TimelineRow>& rows, double seconds) {
  std::string body;
  double y = 18;
  const std::vector<std::vector<TimelinePiece>> pieces = Drawn(rows, seconds);
  const auto x_of = [&](double at) { return at / seconds * kWidth; };
  for (size_t i = 0; i < rows.size(); ++i) {
    const TimelineRow& row = rows[i];
    if (row.height >= kTallRow && i > 0) y += 6;
    y += 15;
    body += svg::Text(0, y - 4, "tick", row.title);
    for (const TimelinePiece& piece : pieces[i]) {
      absl::StrAppendFormat(&body,
                            "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" class=\"%s\" "
                            "data-l=\"%s\"><title>%s: %s</title></rect>\n",
                            x_of(piece.begin), y, std::max(0.25, x_of(piece.end) - x_of(piece.begin)), row.height,
                            piece.css, Escaped(piece.label), Escaped(piece.title),
                            SecondsText(piece.end - piece.begin));
    }
    y += row.height + 2;
  }
  y += 6;
  std::string axis;
  for (int i = 0; i <= 8; ++i) {
    const double x = x_of(seconds * i / 8);
    absl::StrAppendFormat(&axis, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"16\" y2=\"%.1f\" class=\"grid\"/>\n", x, x, y);
    axis += svg::Text(std::clamp(x, 14.0, kWidth - 24), 11,
                      i == 0   ? "tick"
                      : i == 8 ? "tick end"
                               : "tick middle",
                      SecondsText(seconds * i / 8));
  }
  return absl::StrCat(svg::Open(y + 4, "the timeline of a step"), axis, body, "</svg>\n");
}

}  // namespace tacc::graph
