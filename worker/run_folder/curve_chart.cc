#include "worker/run_folder/curve_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "page/svg.h"

namespace tacc::worker {
namespace {

constexpr double kLeft = 70, kRight = 20, kTop = 14, kBottom = 30;
constexpr int kTicks = 5;

struct DrawnPoint {
  double x, mean, least, largest;
};

std::vector<DrawnPoint> Thinned(const std::vector<std::pair<double, double>>& points) {
  std::vector<DrawnPoint> drawn;
  const size_t each = (points.size() + kMaxPoints - 1) / kMaxPoints;
  for (size_t begin = 0; begin < points.size(); begin += each) {
    const size_t end = std::min(begin + each, points.size());
    DrawnPoint point = {0, 0, points[begin].second, points[begin].second};
    for (size_t i = begin; i < end; ++i) {
      point.x += points[i].first / static_cast<double>(end - begin);
      point.mean += points[i].second / static_cast<double>(end - begin);
      point.least = std::min(point.least, points[i].second);
      point.largest = std::max(point.largest, points[i].second);
    }
    drawn.push_back(point);
  }
  return drawn;
}

// 1, 2 or 5 times a power of ten, for about kTicks of them in `range`.
double TickStep(double range) {
  const double rough = range / kTicks, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power) return factor * power;
  }
  return 10 * power;
}

// An axis: values from `least` to `largest` lie between two places.
struct Axis {
  double least, largest, from, to;
  double At(double value) const { return from + (value - least) / (largest - least) * (to - from); }
};

Axis AxisOver(double least, double largest, double from, double to) {
  const double room = largest > least ? 0 : std::max(1e-3, std::abs(least) * 0.05);
  return {least - room, largest + room, from, to};
}

template <typename Draw>
void ForEachTick(const Axis& axis, const Draw& draw) {
  const double step = TickStep(axis.largest - axis.least);
  for (double i = std::ceil(axis.least / step); i * step <= axis.largest; ++i) draw(i * step);
}

std::string Points(const std::vector<DrawnPoint>& points, const Axis& x, const Axis& y, double DrawnPoint::*value) {
  std::string text;
  for (const DrawnPoint& point : points) absl::StrAppendFormat(&text, "%.1f,%.1f ", x.At(point.x), y.At(point.*value));
  return text;
}

}  // namespace

std::string CurveChart(const std::string& title, const std::vector<Curve>& curves, double height) {
  std::vector<std::vector<DrawnPoint>> drawn;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double left = kInfinity, right = -kInfinity, least = kInfinity, largest = -kInfinity;
  for (const Curve& curve : curves) {
    drawn.push_back(Thinned(curve.points));
    for (const DrawnPoint& point : drawn.back()) {
      left = std::min(left, point.x);
      right = std::max(right, point.x);
      least = std::min(least, point.least);
      largest = std::max(largest, point.largest);
    }
  }
  if (left > right) return "<p class=\"note\">There are no points.</p>\n";
  const Axis x = AxisOver(left, right, kLeft, svg::kWidth - kRight);
  const Axis y = AxisOver(least, largest, height - kBottom, kTop);
  std::string text = svg::Open(height, title);
  ForEachTick(y, [&](double value) {
    absl::StrAppendFormat(&text, "<line x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\" class=\"grid\"/>\n", kLeft,
                          svg::kWidth - kRight, y.At(value), y.At(value));
    const bool is_large = std::abs(value) >= 1e4 && std::abs(value) < 1e8;
    text += svg::Text(kLeft - 8, y.At(value) + 4, "tick end",
                      is_large ? absl::StrFormat("%.0f", value) : absl::StrFormat("%.4g", value));
  });
  ForEachTick(x, [&](double value) {
    if (value == std::floor(value))
      text += svg::Text(x.At(value), height - 8, "tick middle", absl::StrFormat("%.0f", value));
  });
  for (size_t i = 0; i < curves.size(); ++i) {
    const std::vector<DrawnPoint>& points = drawn[i];
    if (points.size() < curves[i].points.size()) {
      std::vector<DrawnPoint> back(points.rbegin(), points.rend());
      absl::StrAppend(&text, "<polygon style=\"fill:var(--", curves[i].colour, ");opacity:.2\" points=\"",
                      Points(points, x, y, &DrawnPoint::largest), Points(back, x, y, &DrawnPoint::least), "\"/>\n");
    }
    absl::StrAppend(&text, "<polyline style=\"fill:none;stroke:var(--", curves[i].colour,
                    ");stroke-width:2;stroke-linejoin:round\" points=\"", Points(points, x, y, &DrawnPoint::mean),
                    "\"/>\n");
    if (!curves[i].has_dots && points.size() > 1) continue;
    for (const DrawnPoint& point : points) {
      absl::StrAppendFormat(&text,
                            "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" style=\"fill:var(--%s)\"><title>%.6g at step "
                            "%.0f</title></circle>\n",
                            x.At(point.x), y.At(point.mean), curves[i].colour, point.mean, point.x);
    }
  }
  return text + "</svg>\n";
}

}  // namespace tacc::worker
