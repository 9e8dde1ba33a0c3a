#include "graph/ir/sequence_order.h"

#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

using Ints = std::vector<int64_t>;

TEST(SequenceOrder, ZigzagPairsEarlyWithLateChunks) {
  EXPECT_EQ(Positions({8, 0}, {2, 5}), (Ints{2, 3, 4}));
  EXPECT_EQ(Positions({8, 2}, {0, 8}), (Ints{0, 1, 6, 7, 2, 3, 4, 5}));
  EXPECT_EQ(Positions({12, 3}, {4, 8}), (Ints{2, 3, 8, 9}));
}

// Under a causal mask every pair of blocks has half of its products to do, but for the diagonal, which every block has.
TEST(SequenceOrder, ZigzagGivesEachBlockTheSameWork) {
  const SequenceOrder order{24, 3};
  for (int64_t queries = 0; queries < 3; ++queries) {
    for (int64_t keys = 0; keys < 3; ++keys) {
      int64_t seen = 0;
      for (int64_t q : Positions(order, {queries * 8, queries * 8 + 8})) {
        for (int64_t k : Positions(order, {keys * 8, keys * 8 + 8})) seen += k <= q;
      }
      EXPECT_EQ(seen, queries == keys ? 36 : 32);
    }
  }
}

TEST(SequenceOrder, RunsFollowTheOrderTheBlocksAndTheShift) {
  EXPECT_EQ(PositionRuns({8, 0}, {2, 5}, 0, 0), (std::vector<PositionRun>{{3, 2, 0}}));
  EXPECT_EQ(PositionRuns({8, 2}, {0, 8}, 0, 0), (std::vector<PositionRun>{{2, 0, 0}, {2, 6, 0}, {4, 2, 0}}));
  EXPECT_EQ(PositionRuns({8, 2}, {0, 8}, 4, 0), (std::vector<PositionRun>{{2, 0, 0}, {2, 6, 0}, {4, 2, 1}}));
  EXPECT_EQ(PositionRuns({8, 2}, {0, 4}, 4, 1), (std::vector<PositionRun>{{4, 2, 0}}));
  EXPECT_EQ(PositionRuns({8, 2}, {4, 8}, 4, 1), (std::vector<PositionRun>{{2, 0, 1}, {2, 6, 1}}));
}

}  // namespace
}  // namespace tacc::graph
