#include "graph/planner/lessons.h"

#include <vector>

#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

TEST(Lessons, BeforeTheFirstAnEstimateMayBeAsWrongAsUsual) {
  const Lessons lessons;
  EXPECT_DOUBLE_EQ(lessons.HopedStepFactor({}), 1 - Lessons::kStepError);
  EXPECT_DOUBLE_EQ(lessons.HopedMemoryFactor({.sizes = {{Axis::kTp, 4}}}), 1 - Lessons::kMemoryError);
}

// The more a layout has in common with what is known, the more it is believed to be misjudged as that was.
TEST(Lessons, WhatIsLikeAKnownLayoutIsMisjudgedAlike) {
  const Layout known = {.sizes = {{Axis::kPp, 4}, {Axis::kFsdp, 2}}, .micro_batch = 2, .recompute = true};
  Lessons lessons;
  for (int i = 0; i < 20; ++i) lessons.Add(known, 1.5, 0.8);
  EXPECT_NEAR(lessons.HopedStepFactor(known), 1.5, 0.15);
  EXPECT_NEAR(lessons.HopedMemoryFactor(known), 0.8, 0.05);
  Layout other = known;
  double before = lessons.HopedStepFactor(known);
  for (const auto& change :
       std::vector<void (*)(Layout&)>{[](Layout& l) { l.micro_batch = 1; }, [](Layout& l) { l.recompute = false; },
                                      [](Layout& l) { l.sizes[Axis::kTp] = 2; },
                                      [](Layout& l) { l.sizes[Axis::kPp] = 2; }, [](Layout& l) { l.zero_stage = 1; }}) {
    change(other);
    EXPECT_LT(lessons.HopedStepFactor(other), before) << other.ToString();
    before = lessons.HopedStepFactor(other);
  }
}

// Each lesson leaves less open, and one that says that the estimate was right does nothing else.
TEST(Lessons, LessonsThatAgreeLeaveLessOpen) {
  Lessons lessons;
  double before = lessons.HopedStepFactor({});
  for (int i = 0; i < 5; ++i) {
    lessons.Add({}, 1, 1);
    EXPECT_GT(lessons.HopedStepFactor({}), before);
    EXPECT_LT(lessons.HopedStepFactor({}), 1);
    before = lessons.HopedStepFactor({});
  }
}

// That like layouts take longer than estimated makes one less hopeful, but it may still be as estimated.
TEST(Lessons, WhatOthersTakeLongerIsNotHeldAgainstALayout) {
  Lessons lessons;
  for (int i = 0; i < 5; ++i) lessons.Add({}, 1.5, 1);
  EXPECT_GT(lessons.HopedStepFactor({.sizes = {{Axis::kTp, 2}}}), 1);
  EXPECT_LT(lessons.LeastStepFactor({.sizes = {{Axis::kTp, 2}}}), 1);
  Lessons faster;
  for (int i = 0; i < 5; ++i) faster.Add({}, 0.7, 1);
  EXPECT_EQ(faster.HopedStepFactor({.sizes = {{Axis::kTp, 2}}}), faster.LeastStepFactor({.sizes = {{Axis::kTp, 2}}}));
}

}  // namespace
}  // namespace tacc::graph
