#ifndef TACC_GRAPH_PLANNER_LESSONS_H_
#define TACC_GRAPH_PLANNER_LESSONS_H_

#include <vector>

#include "graph/planner/cost/estimate.h"

namespace tacc::graph {

// What the programs of some layouts teach of the estimates of others: layouts that run alike are misjudged alike. A
// layout that differs in n ways from one whose program is known is told 2^-n of it.
class Lessons {
 public:
  // Factors: what the program says over what was estimated, more than 0.
  void Add(const Layout& layout, double step_factor, double memory_factor);

  // By what to multiply an estimate for what the program will say at best: what is expected, less what is still open.
  // Without lessons 1 - kStepError and 1 - kMemoryError. Least: the same, but that others take longer than estimated is
  // not held against a layout.
  double HopedStepFactor(const Layout& layout) const;
  double LeastStepFactor(const Layout& layout) const;
  double HopedMemoryFactor(const Layout& layout) const;

  // How far estimates usually lie from programs.
  static constexpr double kStepError = 0.2, kMemoryError = 0.15;

 private:
  struct Lesson {
    Layout layout;
    double step = 0, memory = 0;  // logarithms of the factors
  };
  struct Factor {
    double expected = 0, open = 0;  // logarithms
  };
  Factor FactorOf(const Layout& layout, double Lesson::*of, double error) const;

  std::vector<Lesson> lessons_;
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_LESSONS_H_
