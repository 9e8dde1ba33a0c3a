// What launch.h knows of a GPU's limits, on a GPU; skipped without one.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "kernels/cuda/launch/launch.h"

namespace tacc::kernels::cuda {
namespace {

// Every word that the team shares, and a sum, which takes memory of its own.
struct SumOfAllShared {
  int num_words;
  int* sum;

  TACC_DEVICE void operator()(Team& team, int64_t) const {
    int* words = team.shared<int>();
    for (int i = team.rank(); i < num_words; i += team.size()) words[i] = i;
    team.Sync();
    int mine = 0;
    for (int i = num_words - 1 - team.rank(); i >= 0; i -= team.size()) mine += words[i];
    const int all = team.Sum(mine);
    if (team.rank() == 0) *sum = all;
  }
};

TEST(LaunchOnGpu, SharesAsMuchAsIsSaidAndRefusesMore) {
  int num_gpus = 0;
  if (cudaGetDeviceCount(&num_gpus) != cudaSuccess || num_gpus == 0) GTEST_SKIP() << "no GPU";
  EXPECT_GE(SharedBytesOfDevice(), kMaxSharedBytes);
  int* sum = nullptr;
  ASSERT_EQ(cudaMalloc(&sum, sizeof(int)), cudaSuccess);
  constexpr int kWords = kMaxSharedBytes / sizeof(int);
  ForEachTeam(1, 128, kMaxSharedBytes, SumOfAllShared{kWords, sum});
  int got = 0;
  ASSERT_EQ(cudaMemcpy(&got, sum, sizeof(int), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(got, kWords * (kWords - 1) / 2);
  try {
    ForEachTeam(1, 128, SharedBytesOfDevice() + 1, SumOfAllShared{0, sum});
    FAIL() << "more than there is was launched";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("SumOfAllShared: a team that shares"), std::string::npos) << error.what();
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // Refused before the launch, which would have left an error.
  EXPECT_EQ(cudaFree(sum), cudaSuccess);
}

}  // namespace
}  // namespace tacc::kernels::cuda
