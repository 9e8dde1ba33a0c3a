#include "graph/ir/sharding.h"

#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

const Mesh kMesh{{{"dp", 2}, {"fsdp", 3}}};

TEST(Mesh, CoordinatesAreMajorToMinor) {
  EXPECT_EQ(kMesh.num_ranks(), 6);
  EXPECT_EQ(kMesh.Coordinates(4), (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(kMesh.Find("fsdp"), 1);
  EXPECT_EQ(kMesh.Find("tp"), -1);
  EXPECT_EQ(kMesh.Stride(0), 3);
  EXPECT_EQ(kMesh.Stride(1), 1);
}

TEST(Sharding, UnevenShardsAreContiguousAndCoverTheExtent) {
  for (int64_t extent : {1, 2, 5, 6, 7, 50257}) {
    int64_t covered = 0;
    for (int64_t rank = 0; rank < 6; ++rank) {
      const Range range = LocalRange(extent, {0, 1}, kMesh, kMesh.Coordinates(rank));
      EXPECT_EQ(range.begin, std::min(covered, extent));
      EXPECT_LE(range.end - range.begin, LocalDims({extent}, {{{0, 1}}, {}}, kMesh)[0]);
      covered = range.end;
    }
    EXPECT_EQ(covered, extent);
    EXPECT_EQ(IsPadded(extent, {0, 1}, kMesh), extent % 6 != 0);
  }
}

TEST(Sharding, PrintsAxesPerDim) {
  const Sharding sharding{{{0, 1}, {}}, {}};
  EXPECT_EQ(sharding.ToString(kMesh), "[dp+fsdp,-]");
  EXPECT_EQ((Sharding{{{}}, {0}}).ToString(kMesh), "[-] pending=[dp]");
}

}  // namespace
}  // namespace tacc::graph
