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

TEST(RankEnvironmentTest, NcclUsesTheWorkersInterfaceUnlessTheUserSaysWhich) {
  unsetenv("NCCL_SOCKET_IFNAME");
  EXPECT_THAT(NetworkEnvironment("eth1"), ::testing::ElementsAre(Pair("NCCL_SOCKET_IFNAME", "=eth1")));
  EXPECT_THAT(NetworkEnvironment(""), ::testing::IsEmpty());
  setenv("NCCL_SOCKET_IFNAME", "ib0", 1);
  EXPECT_THAT(NetworkEnvironment("eth1"), ::testing::IsEmpty());
  unsetenv("NCCL_SOCKET_IFNAME");
}

TEST(RankEnvironmentTest, RanksInheritWhatTheirLibrariesReadAndNoSecrets) {
  for (const char* variable : {"PATH", "HOME", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG",
                               "OMP_WAIT_POLICY", "TACC_CPU_ISA"})
    EXPECT_TRUE(RankInherits(variable)) << variable;
  for (const char* variable : {"TACC_TOKEN", "TACC_ADDRESS", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "GITHUB_TOKEN",
                               "SSH_AUTH_SOCK", "LD_PRELOAD", "PATHS", "", "XNCCL_DEBUG"})
    EXPECT_FALSE(RankInherits(variable)) << variable;
}

}  // namespace
}  // namespace tacc::worker
