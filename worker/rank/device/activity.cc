#include "worker/rank/device/activity.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace tacc::worker {
namespace {

// The same time as spans that do not meet, in order.
std::vector<TimeSpan> Union(std::vector<TimeSpan> spans) {
  std::sort(spans.begin(), spans.end(), [](const TimeSpan& a, const TimeSpan& b) { return a.begin < b.begin; });
  std::vector<TimeSpan> apart;
  for (const TimeSpan& span : spans) {
    if (!(span.end > span.begin)) continue;
    if (apart.empty() || span.begin > apart.back().end) {
      apart.push_back(span);
    } else {
      apart.back().end = std::max(apart.back().end, span.end);
    }
  }
  return apart;
}

double Seconds(const std::vector<TimeSpan>& apart) {
  double seconds = 0;
  for (const TimeSpan& span : apart) seconds += span.end - span.begin;
  return seconds;
}

// What both have; both as Union makes them.
double SharedSeconds(const std::vector<TimeSpan>& a, const std::vector<TimeSpan>& b) {
  double seconds = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    seconds += std::max(0.0, std::min(a[i].end, b[j].end) - std::max(a[i].begin, b[j].begin));
    a[i].end < b[j].end ? ++i : ++j;
  }
  return seconds;
}

}  // namespace

std::optional<double> ActiveShare(std::vector<TimeSpan> pieces, std::vector<TimeSpan> parts) {
  const std::vector<TimeSpan> work = Union(std::move(pieces)), whole = Union(std::move(parts));
  const double seconds = Seconds(whole);
  if (!(seconds > 0)) return std::nullopt;
  return std::min(1.0, SharedSeconds(work, whole) / seconds);
}

}  // namespace tacc::worker
