#include "graph/planner/lessons.h"

#include <cmath>

namespace tacc::graph {
namespace {

int NumDifferences(const Layout& a, const Layout& b) {
  return (a.pp != b.pp) + (a.schedule != b.schedule) + (a.chunks != b.chunks) + (a.tp != b.tp) + (a.cp != b.cp) +
         (a.ep != b.ep) + (a.fsdp != b.fsdp) + (a.zero_stage != b.zero_stage) +
         (a.reduce_each_micro_batch != b.reduce_each_micro_batch) + (a.recompute != b.recompute) +
         (a.reshard != b.reshard) + (a.micro_batch != b.micro_batch);
}

// What is believed before the first lesson counts as much as so many.
constexpr double kBefore = 2;

}  // namespace

void Lessons::Add(const Layout& layout, double step_factor, double memory_factor) {
  lessons_.push_back({layout, std::log(step_factor), std::log(memory_factor)});
}

double Lessons::LeastStepFactor(const Layout& layout) const { return LeastFactor(layout, &Lesson::step, kStepError); }

double Lessons::LeastMemoryFactor(const Layout& layout) const {
  return LeastFactor(layout, &Lesson::memory, kMemoryError);
}

double Lessons::LeastFactor(const Layout& layout, double Lesson::*of, double error) const {
  double weights = kBefore, sum = 0;
  for (const Lesson& lesson : lessons_) {
    const double weight = std::ldexp(1.0, -NumDifferences(layout, lesson.layout));
    weights += weight;
    sum += weight * lesson.*of;
  }
  return std::exp(sum / weights + std::log1p(-error) * std::sqrt(kBefore / weights));
}

}  // namespace tacc::graph
