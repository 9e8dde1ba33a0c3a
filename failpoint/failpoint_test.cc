#include "failpoint/failpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tacc {
namespace {

using ::testing::HasSubstr;

TEST(FailpointsTest, UnsetNamesDoNothing) {
  auto points = Failpoints::Parse("");
  ASSERT_TRUE(points.ok());
  EXPECT_TRUE((*points)->Hit("anything").ok());
}

TEST(FailpointsTest, ErrorActsAtEachHit) {
  auto points = Failpoints::Parse("a=error; b=error@2");
  ASSERT_TRUE(points.ok()) << points.status();
  EXPECT_THAT(std::string((*points)->Hit("a").message()), HasSubstr("failpoint a"));
  EXPECT_FALSE((*points)->Hit("a").ok());
  EXPECT_TRUE((*points)->Hit("c").ok());
}

TEST(FailpointsTest, CountActsAtThatHitOnly) {
  auto points = Failpoints::Parse("b=error@2");
  ASSERT_TRUE(points.ok());
  EXPECT_TRUE((*points)->Hit("b").ok());
  EXPECT_FALSE((*points)->Hit("b").ok());
  EXPECT_TRUE((*points)->Hit("b").ok());
}

TEST(FailpointsTest, ErrnoIsThatOfTheNamedError) {
  auto points = Failpoints::Parse("a=errno:ESTALE@2;b=error");
  ASSERT_TRUE(points.ok()) << points.status();
  EXPECT_EQ((*points)->Errno("a"), 0);
  EXPECT_EQ((*points)->Errno("a"), ESTALE);
  EXPECT_EQ((*points)->Errno("a"), 0);
  EXPECT_EQ((*points)->Errno("b"), EIO);
  EXPECT_EQ((*points)->Errno("c"), 0);
}

TEST(FailpointsTest, SleepWaits) {
  auto points = Failpoints::Parse("s=sleep:0.05");
  ASSERT_TRUE(points.ok());
  const absl::Time start = absl::Now();
  EXPECT_TRUE((*points)->Hit("s").ok());
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(50));
}

TEST(FailpointsDeathTest, KillKillsThisProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        auto points = Failpoints::Parse("k=kill@2");
        (void)(*points)->Hit("k");
        fprintf(stderr, "alive\n");
        (void)(*points)->Hit("k");
      },
      ::testing::KilledBySignal(SIGKILL), "alive");
}

TEST(FailpointsTest, ReadsTheEnvironment) {
  setenv("TACC_FAILPOINTS", "here=error", 1);
  auto points = Failpoints::FromEnvironment();
  unsetenv("TACC_FAILPOINTS");
  ASSERT_TRUE(points.ok());
  EXPECT_FALSE((*points)->Hit("here").ok());
}

TEST(FailpointsTest, BadTextIsNamed) {
  for (const char* text : {"a", "a=", "=kill", "a=explode", "a=kill@0", "a=kill@x", "a=kill@1@2",
                           "a=errno:", "a=errno:ENOPE", "a=sleep:", "a=sleep:-1", "a=sleep:nan", "a=kill;a=error"}) {
    auto points = Failpoints::Parse(text);
    ASSERT_FALSE(points.ok()) << text;
    EXPECT_THAT(std::string(points.status().message()), HasSubstr("TACC_FAILPOINTS: \"")) << text;
  }
}

}  // namespace
}  // namespace tacc
