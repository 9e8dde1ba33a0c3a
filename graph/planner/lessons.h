#ifndef TACC_GRAPH_PLANNER_LESSONS_H_
#define TACC_GRAPH_PLANNER_LESSONS_H_

#include <vector>

#include "graph/planner/estimate.h"

namespace tacc::graph {

// What the programs of some layouts teach of the estimates of others: layouts that run alike are misjudged alike. A
// layout that differs in n ways from one whose program is known is told 2^-n of it.
class Lessons {
 public:
  // Factors: what the program says over what was estimated, more than 0.
  void Add(const Layout& layout, double step_factor, double memory_factor);

  // By what to multiply an estimate for the least that the program may say: what is expected, less what is still open.
  // Without lessons 1 - kStepError and 1 - kMemoryError.
  double LeastStepFactor(const Layout& layout) const;
  double LeastMemoryFactor(const Layout& layout) const;

  // How far estimates usually lie from programs.
  static constexpr double kStepError = 0.2, kMemoryError = 0.1;

 private:
  struct Lesson {
    Layout layout;
    double step = 0, memory = 0;  // logarithms of the factors
  };
  double LeastFactor(const Layout& layout, double Lesson::*of, double error) const;

  std::vector<Lesson> lessons_;
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_LESSONS_H_
