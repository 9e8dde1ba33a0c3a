#include "graph/planner/lessons.h"

#include <algorithm>
#include <cmath>

namespace tacc::graph {
namespace {

int NumDifferences(const Layout& a, const Layout& b) {
  int differences = (a.schedule != b.schedule) + (a.chunks != b.chunks) + (a.zero_stage != b.zero_stage) +
                    (a.reduce_each_micro_batch != b.reduce_each_micro_batch) + (a.recompute != b.recompute) +
                    (a.reshard != b.reshard) + (a.micro_batch != b.micro_batch);
  // dp is what the others leave.
  for (Axis axis : kJobAxes) differences += axis != Axis::kDp && a.sizes[axis] != b.sizes[axis];
  return differences;
}

// What is believed before the first lesson counts as much as so many: that the estimate is right, and how far it may be
// off.
constexpr double kRightBefore = 0.5, kOpenBefore = 2;

}  // namespace

void Lessons::Add(const Layout& layout, double step_factor, double memory_factor) {
  lessons_.push_back({layout, std::log(step_factor), std::log(memory_factor)});
}

double Lessons::HopedStepFactor(const Layout& layout) const {
  const Factor factor = FactorOf(layout, &Lesson::step, kStepError);
  return std::exp(factor.expected + factor.open);
}

double Lessons::LeastStepFactor(const Layout& layout) const {
  const Factor factor = FactorOf(layout, &Lesson::step, kStepError);
  return std::exp(std::min(factor.expected, 0.0) + factor.open);
}

double Lessons::HopedMemoryFactor(const Layout& layout) const {
  const Factor factor = FactorOf(layout, &Lesson::memory, kMemoryError);
  return std::exp(factor.expected + factor.open);
}

Lessons::Factor Lessons::FactorOf(const Layout& layout, double Lesson::*of, double error) const {
  double weights = 0, sum = 0;
  for (const Lesson& lesson : lessons_) {
    const double weight = std::ldexp(1.0, -NumDifferences(layout, lesson.layout));
    weights += weight;
    sum += weight * lesson.*of;
  }
  return {sum / (kRightBefore + weights), std::log1p(-error) * std::sqrt(kOpenBefore / (kOpenBefore + weights))};
}

}  // namespace tacc::graph
