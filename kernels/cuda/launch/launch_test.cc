// That what a GPU would not forgive shows on the host.
#include "kernels/cuda/launch/launch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/launch/pack.h"

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

// The same words on a GPU, before anything is launched there.
TEST(Teams, AreAsLargeAsTheirKernelsAllow) {
  const auto error_of = [](const auto& launch) -> std::string {
    try {
      launch();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  const std::string nothing = "tacc::kernels::cuda::(anonymous namespace)::Nothing: ";
  EXPECT_EQ(error_of([] { ForEachTeam<64>(1, 128, 0, Nothing()); }),
            nothing + "a team of 128 threads; it must be of whole warps of 32, and of 64 threads at most");
  EXPECT_EQ(error_of([] { ForEachTeam(1, 33, 0, Nothing()); }),
            nothing + "a team of 33 threads; it must be of whole warps of 32, and of 1024 threads at most");
  EXPECT_EQ(error_of([] { ForEachTeam(1, 32, kMaxSharedBytes + 1, Nothing()); }),
            nothing + "a team that shares 48129 bytes of memory; the device has 48128 for each");
  EXPECT_EQ(error_of([] { ForEachExactTeam<64>(1, kMaxSharedBytes + 1, Nothing()); }),
            nothing + "a team that shares 48129 bytes of memory; the device has 48128 for each");
  EXPECT_EQ(error_of([] { CheckTeam(typeid(Nothing), 64, 64, 16 << 10, (16 << 10) - 1); }),
            nothing + "a team that shares 16384 bytes of memory; the device has 16383 for each");
  EXPECT_EQ(error_of([] { ForEachTeam<64>(1, 64, kMaxSharedBytes, Nothing()); }), "");
  EXPECT_EQ(error_of([] { ForEachTeam(0, 0, kMaxSharedBytes + 1, Nothing()); }), "");  // Nothing is launched.
}

struct Count {
  int* times;
  void operator()(int64_t i) const { ++times[i]; }
};

// As a launch's kernel goes through them.
TEST(Grids, DoEachPieceOnceWithHoweverFewBlocks) {
  for (const int64_t most : {int64_t{1}, int64_t{3}, int64_t{7}, kMaxGrid}) {
    for (const int64_t num : {1, 7, 20}) {
      std::vector<int> times(num);
      const unsigned blocks = GridBlocks(num, most);
      EXPECT_LE(blocks, most);
      for (unsigned block = 0; block < blocks; ++block) DoShare(num, block, blocks, Count{times.data()});
      EXPECT_EQ(times, std::vector<int>(num, 1)) << num << " pieces, at most " << most << " blocks";
    }
  }
}

struct Append {
  std::vector<int64_t>* pieces;
  void operator()(int64_t i) const { pieces->push_back(i); }
};

// More than 2^31 - 1: a launch of so many would fail with no more than "invalid configuration argument".
TEST(Grids, AreNoLargerThanCudas) {
  constexpr int64_t kNum = kMaxGrid + 6;
  EXPECT_EQ(GridBlocks(kMaxGrid), 0x7fffffffu);
  EXPECT_EQ(GridBlocks(kNum), 0x7fffffffu);
  EXPECT_EQ(GridBlocks(int64_t{1} << 40), 0x7fffffffu);
  const auto pieces_of = [](int64_t block) {
    std::vector<int64_t> pieces;
    DoShare(kNum, block, GridBlocks(kNum), Append{&pieces});
    return pieces;
  };
  EXPECT_EQ(pieces_of(0), (std::vector<int64_t>{0, kMaxGrid}));
  EXPECT_EQ(pieces_of(5), (std::vector<int64_t>{5, kMaxGrid + 5}));
  EXPECT_EQ(pieces_of(6), (std::vector<int64_t>{6}));
  EXPECT_EQ(pieces_of(kMaxGrid - 1), (std::vector<int64_t>{kMaxGrid - 1}));
}

TEST(Grids, OfNoPiecesAreNone) {
  ForEach(0, Count{nullptr});
  ForEachTeam(0, 32, 0, EndEarly());
  std::vector<int64_t> pieces;
  DoShare(0, 0, 1, Append{&pieces});
  EXPECT_TRUE(pieces.empty());
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

// Whatever the dtypes, as one after the other.
template <int N, typename T>
void ExpectAllAsEach(const AnyIn (&arrays)[4]) {
  const int64_t at[4] = {8, 16, 0, 8};
  T all[4][N], each[4][N];
  for (T& value : all[3]) value = 42;
  for (T& value : each[3]) value = 42;
  LoadAll(arrays, at, all);
  for (int a = 0; a < 3; ++a) Load<N>(arrays[a], at[a], each[a]);
  for (int a = 0; a < 4; ++a) EXPECT_EQ(std::vector<T>(all[a], all[a] + N), std::vector<T>(each[a], each[a] + N)) << a;
}

TEST(Packs, OfSeveralArraysAreLoadedAtOnce) {
  alignas(16) float f32[24];
  alignas(16) BFloat16 bf16[24];
  alignas(16) Half f16[24];
  for (int i = 0; i < 24; ++i) {
    f32[i] = 1.1f * static_cast<float>(i);
    bf16[i] = ToBFloat16(-2.3f * static_cast<float>(i));
    f16[i] = ToHalf(0.7f - static_cast<float>(i));
  }
  const AnyIn mixed[4] = {{f32, DType::kF32}, {bf16, DType::kBF16}, {f16, DType::kF16}, {}};
  const AnyIn narrow[4] = {{f16, DType::kF16}, {f16, DType::kF16}, {bf16, DType::kBF16}, {}};
  ExpectAllAsEach<8, float>(mixed);
  ExpectAllAsEach<8, float>(narrow);
  ExpectAllAsEach<4, float>(mixed);
  ExpectAllAsEach<1, float>(mixed);
  ExpectAllAsEach<1, double>(mixed);
  int32_t integers[8] = {};
  const AnyIn wrong[1] = {{integers, DType::kI32}};
  float values[1][4];
  EXPECT_DEATH(LoadAll(wrong, {0}, values), "IsFloat");
}

}  // namespace
}  // namespace tacc::kernels::cuda
