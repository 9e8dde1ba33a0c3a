#include "worker/daemon/host/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tacc::worker {
namespace {

using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

TEST(RankEnvironmentTest, ThreadsWaitShortlyUnlessTheUserSaysHow) {
  for (const char* variable : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) unsetenv(variable);
  EXPECT_THAT(RankEnvironment(3), Contains(Pair("OMP_NUM_THREADS", "3")));
  EXPECT_THAT(RankEnvironment(3), Contains(Pair("GOMP_SPINCOUNT", "1000")));
  for (const char* variable : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) {
    setenv(variable, "active", 1);
    EXPECT_THAT(RankEnvironment(3), Not(Contains(Key("GOMP_SPINCOUNT")))) << variable;
    unsetenv(variable);
  }
}

}  // namespace
}  // namespace tacc::worker
