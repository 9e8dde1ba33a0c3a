// That what a GPU would not forgive shows on the host.
#include "kernels/cuda/launch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/cuda/pack.h"

namespace tacc::kernels::cuda {
namespace {

constexpr int64_t kTeams = 16;

// Each thread tells its neighbour its rank.
template <bool kWaits>
struct PassOn {
  int* heard;

  void operator()(Team& team, int64_t index) const {
    int* said = team.shared<int>();
    said[team.rank()] = team.rank();
    if (kWaits) team.Sync();
    heard[index * team.size() + team.rank()] = said[(team.rank() + 1) % team.size()];
  }
};

TEST(Teams, ThatDoNotWaitForEachOtherGoWrong) {
  std::vector<int> heard(kTeams * 128), want;
  for (size_t i = 0; i < heard.size(); ++i) want.push_back(static_cast<int>((i + 1) % 128));
  ForEachExactTeam<128>(kTeams, 128 * sizeof(int), PassOn<true>{heard.data()});
  EXPECT_EQ(heard, want);
  ForEachExactTeam<128>(kTeams, 128 * sizeof(int), PassOn<false>{heard.data()});
  EXPECT_NE(heard, want);
  // A GPU's threads of a warp do not wait for each other by themselves either.
  want.clear();
  heard.assign(kTeams * 32, 0);
  for (size_t i = 0; i < heard.size(); ++i) want.push_back(static_cast<int>((i + 1) % 32));
  ForEachExactTeam<32>(kTeams, 32 * sizeof(int), PassOn<false>{heard.data()});
  EXPECT_NE(heard, want);
}

struct SumOfShared {
  float* sums;

  void operator()(Team& team, int64_t index) const {
    const float sum = team.Sum(team.shared<float>()[team.rank()]);
    if (team.rank() == 0) sums[index] = sum;
  }
};

TEST(SharedMemory, IsNotZero) {
  std::vector<float> sums(2);
  ForEachTeam(2, 64, 64 * sizeof(float), SumOfShared{sums.data()});
  EXPECT_TRUE(std::isnan(sums[0]) && std::isnan(sums[1]));
}

struct WriteBehind {
  int64_t behind;

  void operator()(Team& team, int64_t) const {
    if (team.rank() == 0) team.shared<char>()[100 + behind] = 1;
  }
};

TEST(SharedMemory, EndsWhereItEnds) {
  ForEachTeam(1, 32, 101, WriteBehind{0});
  EXPECT_DEATH(ForEachTeam(1, 32, 100, WriteBehind{0}), "shared");
  EXPECT_DEATH(ForEachTeam(1, 32, 100, WriteBehind{100}), "shared");
}

struct EndEarly {
  void operator()(Team& team, int64_t) const {
    if (team.rank() == 3) return;
    team.Sync();
  }
};

TEST(Teams, ThatWaitForOneThatHasEndedAreAnError) { EXPECT_DEATH(ForEachTeam(1, 32, 0, EndEarly()), "is_done"); }

struct Nothing {
  void operator()(Team&, int64_t) const {}
};

TEST(Teams, AreAsLargeAsTheirKernelsAllow) {
  EXPECT_DEATH(ForEachTeam<64>(1, 128, 0, Nothing()), "team_size");
  EXPECT_DEATH(ForEachTeam(1, 33, 0, Nothing()), "team_size");
  EXPECT_DEATH(ForEachTeam(1, 32, kMaxSharedBytes + 1, Nothing()), "shared_bytes");
}

struct ExchangeRanks {
  int* heard;

  void operator()(Team& team, int64_t) const { heard[team.rank()] = team.Exchange(team.rank(), 5); }
};

TEST(Teams, ExchangeWithinAWarp) {
  std::vector<int> heard(64);
  ForEachTeam(1, 64, 0, ExchangeRanks{heard.data()});
  for (int i = 0; i < 64; ++i) EXPECT_EQ(heard[i], i ^ 5);
}

TEST(Packs, MustBeAligned) {
  alignas(16) float x[12] = {}, y[4];
  LoadPacked<4, float>(x, 4, y);
  EXPECT_DEATH((LoadPacked<4, float>(x, 1, y)), "alignof");
  EXPECT_DEATH((StorePacked<4, float>(x, 2, y)), "alignof");
}

}  // namespace
}  // namespace tacc::kernels::cuda
