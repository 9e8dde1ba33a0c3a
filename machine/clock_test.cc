#include "machine/clock.h"

#include "gtest/gtest.h"

namespace tacc {
namespace {

TEST(AwakeClockTest, StandsStillWhileItsOwnerDoes) {
  AwakeClock clock(1);
  EXPECT_EQ(clock.At(50), 50);
  EXPECT_EQ(clock.Tick(100), 100);
  EXPECT_EQ(clock.At(100.5), 100.5);
  EXPECT_EQ(clock.Tick(100.75), 100.75);
  // Stopped for an hour: a second of it counts, whoever asks first.
  EXPECT_EQ(clock.At(3700.75), 101.75);
  EXPECT_EQ(clock.Tick(3700.75), 101.75);
  EXPECT_EQ(clock.At(3701), 102);
}

}  // namespace
}  // namespace tacc
