#include "graph/planner/lessons.h"

#include <vector>

#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

TEST(Lessons, BeforeTheFirstAnEstimateMayBeAsWrongAsUsual) {
  const Lessons lessons;
  EXPECT_DOUBLE_EQ(lessons.LeastStepFactor({}), 1 - Lessons::kStepError);
  EXPECT_DOUBLE_EQ(lessons.LeastMemoryFactor({.tp = 4}), 1 - Lessons::kMemoryError);
}

// The more a layout has in common with what is known, the more it is believed to be misjudged as that was.
TEST(Lessons, WhatIsLikeAKnownLayoutIsMisjudgedAlike) {
  const Layout known = {.pp = 4, .fsdp = 2, .micro_batch = 2, .recompute = true};
  Lessons lessons;
  for (int i = 0; i < 20; ++i) lessons.Add(known, 1.5, 0.8);
  EXPECT_NEAR(lessons.LeastStepFactor(known), 1.5, 0.15);
  EXPECT_NEAR(lessons.LeastMemoryFactor(known), 0.8, 0.05);
  Layout other = known;
  double before = lessons.LeastStepFactor(known);
  for (const auto& change : std::vector<void (*)(Layout&)>{
           [](Layout& l) { l.micro_batch = 1; }, [](Layout& l) { l.recompute = false; }, [](Layout& l) { l.tp = 2; },
           [](Layout& l) { l.pp = 2; }, [](Layout& l) { l.zero_stage = 1; }}) {
    change(other);
    EXPECT_LT(lessons.LeastStepFactor(other), before) << other.ToString();
    before = lessons.LeastStepFactor(other);
  }
}

// Each lesson leaves less open, and one that says that the estimate was right does nothing else.
TEST(Lessons, LessonsThatAgreeLeaveLessOpen) {
  Lessons lessons;
  double before = lessons.LeastStepFactor({});
  for (int i = 0; i < 5; ++i) {
    lessons.Add({}, 1, 1);
    EXPECT_GT(lessons.LeastStepFactor({}), before);
    EXPECT_LT(lessons.LeastStepFactor({}), 1);
    before = lessons.LeastStepFactor({});
  }
}

}  // namespace
}  // namespace tacc::graph
