#include "worker/rank/run/stuck_watch.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tacc::worker {
namespace {

TEST(StuckWatch, StepsWithoutGradientWhoseLossStands) {
  StuckWatch watch(3);
  for (int step = 1; step <= 3; ++step) {
    EXPECT_FALSE(watch.is_stuck());
    watch.Take(4.574711, 0, /*skipped=*/false);
    EXPECT_EQ(watch.num_steps(), step);
    EXPECT_TRUE(watch.is_in_doubt());
  }
  EXPECT_TRUE(watch.is_stuck());
}

TEST(StuckWatch, AGradientOrAnotherLossBeginsAnew) {
  StuckWatch watch(2);
  watch.Take(4, 0, /*skipped=*/false);
  watch.Take(4, 1e-6, /*skipped=*/false);
  EXPECT_FALSE(watch.is_in_doubt());
  watch.Take(4, 0, /*skipped=*/false);
  watch.Take(4.1, 0, /*skipped=*/false);
  EXPECT_FALSE(watch.is_stuck());
  watch.Take(4.1, 0, /*skipped=*/false);
  EXPECT_TRUE(watch.is_stuck());
  EXPECT_EQ(watch.num_steps(), 2);
  EXPECT_EQ(watch.num_bad(), 3);
}

// The first update ruined the weights, the second what was left of their gradient.
TEST(StuckWatch, ALossFarAboveTheFirstCountsAsBad) {
  StuckWatch watch(2);
  watch.Take(4, 1, /*skipped=*/false);
  EXPECT_EQ(watch.num_bad(), 0);
  watch.Take(329325, 1e6, /*skipped=*/false);
  EXPECT_FALSE(watch.is_in_doubt());
  watch.Take(4, 0, /*skipped=*/false);
  watch.Take(std::nan(""), std::nan(""), /*skipped=*/true);
  EXPECT_EQ(watch.num_bad(), 3);
  watch.Take(11.9, 1, /*skipped=*/false);
  EXPECT_EQ(watch.num_bad(), 0);
}

// A learning rate of 0, or weights that stand for another reason: the gradient is there.
TEST(StuckWatch, AFrozenModelIsNotStuck) {
  StuckWatch watch(2);
  for (int step = 0; step < 100; ++step) watch.Take(4, 1, /*skipped=*/false);
  EXPECT_FALSE(watch.is_stuck());
}

TEST(StuckWatch, NothingLeftToLearnIsNotStuck) {
  StuckWatch watch(2);
  for (int step = 0; step < 100; ++step) watch.Take(0, 0, /*skipped=*/false);
  EXPECT_FALSE(watch.is_stuck());
}

TEST(StuckWatch, WhatIsNotFiniteIsNotStuck) {
  StuckWatch watch(2);
  for (int step = 0; step < 100; ++step) {
    watch.Take(std::nan(""), 0, /*skipped=*/false);
    watch.Take(4, std::nan(""), /*skipped=*/false);
  }
  EXPECT_FALSE(watch.is_stuck());
}

TEST(StuckWatch, SkippedStepsCountOnceTheSearchForALossScaleIsOver) {
  StuckWatch watch(3);
  for (int step = 1; step < StuckWatch::kLongestSearch; ++step) watch.Take(4, INFINITY, /*skipped=*/true);
  EXPECT_FALSE(watch.is_stuck());
  watch.Take(4, 1, /*skipped=*/false);
  EXPECT_EQ(watch.num_skipped(), 0);
  for (int step = 1; step <= StuckWatch::kLongestSearch; ++step) {
    EXPECT_FALSE(watch.is_stuck());
    watch.Take(4, INFINITY, /*skipped=*/true);
    EXPECT_EQ(watch.num_skipped(), step);
  }
  EXPECT_TRUE(watch.is_stuck());
  // The weights are those of before.
  EXPECT_FALSE(watch.is_in_doubt());
}

TEST(StuckWatch, ALimitBeyondTheSearchCountsForSkippedSteps) {
  StuckWatch watch(2 * StuckWatch::kLongestSearch);
  for (int step = 1; step < 2 * StuckWatch::kLongestSearch; ++step) watch.Take(4, INFINITY, /*skipped=*/true);
  EXPECT_FALSE(watch.is_stuck());
  watch.Take(4, INFINITY, /*skipped=*/true);
  EXPECT_TRUE(watch.is_stuck());
}

TEST(StuckWatch, NoLimitIsOff) {
  StuckWatch watch(0);
  for (int step = 0; step < 100; ++step) watch.Take(4, 0, /*skipped=*/false);
  for (int step = 0; step < 100; ++step) watch.Take(4, INFINITY, /*skipped=*/true);
  EXPECT_FALSE(watch.is_stuck());
  EXPECT_FALSE(watch.is_in_doubt());
}

}  // namespace
}  // namespace tacc::worker
