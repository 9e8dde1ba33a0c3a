#include "worker/rank/run/cpu_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tacc::worker {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Waits = std::map<int, double>;

TEST(CpuWatch, TheThreadThatWaitsLongestCounts) {
  Waits waits = {{10, 5}, {11, 100}};
  int num_readings = 0;
  CpuWatch watch([&] { return ++num_readings, waits; });
  EXPECT_EQ(watch.Take(1000), 0);
  waits = {{10, 17}, {11, 101}};
  EXPECT_EQ(watch.Take(1029.9), 0);
  EXPECT_EQ(num_readings, 1) << "within a window nothing is read";
  EXPECT_EQ(watch.Take(1030), 12. / 30);
  // It stays until the next window is over, which may be longer.
  waits = {{10, 17}, {11, 104}};
  EXPECT_EQ(watch.Take(1045), 12. / 30);
  EXPECT_EQ(watch.Take(1080), 3. / 50);
}

TEST(CpuWatch, AThreadThatCameInBetweenDoesNotCount) {
  Waits waits = {{10, 5}, {11, 7}};
  CpuWatch watch([&] { return waits; });
  watch.Take(0);
  waits = {{10, 6}, {12, 29}};
  EXPECT_EQ(watch.Take(30), 1. / 30);
}

TEST(CpuWatch, WhatTheRankDoesBesideStepsDoesNotCount) {
  Waits waits = {{10, 0}};
  CpuWatch watch([&] { return waits; });
  watch.Take(0);
  waits = {{10, 20}};
  watch.BeginAnew();
  EXPECT_EQ(watch.Take(30), 0);
  EXPECT_EQ(watch.Take(59), 0);
  EXPECT_EQ(watch.Take(60), 0);
  waits = {{10, 29}};
  EXPECT_EQ(watch.Take(90), 0.3);
}

// However many steps are done while a checkpoint is written.
TEST(CpuWatch, NothingIsReadWhileSaving) {
  Waits waits = {{10, 0}};
  int num_readings = 0;
  CpuWatch watch([&] { return ++num_readings, waits; });
  watch.Take(0);
  waits = {{10, 12}};
  EXPECT_EQ(watch.Take(30), 12. / 30);
  for (int second = 31; second < 100; ++second) EXPECT_EQ(watch.Take(second, /*is_saving=*/true), 12. / 30);
  EXPECT_EQ(num_readings, 2);
  waits = {{10, 50}};
  watch.Take(100);
  EXPECT_EQ(watch.Take(130), 0);
  EXPECT_EQ(num_readings, 4);
}

TEST(CpuWatch, ASystemThatDoesNotSay) {
  CpuWatch watch([] { return Waits(); });
  watch.Take(0);
  EXPECT_EQ(watch.Take(100), 0);
}

TEST(CpuWatch, Words) {
  EXPECT_EQ(CpuWatch::Warning(3, 0.249), "");
  EXPECT_THAT(CpuWatch::Warning(3, 0.375),
              AllOf(HasSubstr("rank 3 had work and waited for a processor in 38 % of the last"),
                    HasSubstr("its own threads do, where they are more")));
}

}  // namespace
}  // namespace tacc::worker
