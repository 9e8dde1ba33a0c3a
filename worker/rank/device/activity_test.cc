#include "worker/rank/device/activity.h"

#include "gtest/gtest.h"

namespace tacc::worker {
namespace {

TEST(ActiveShare, GapsBetweenPiecesAreNoWork) {
  EXPECT_DOUBLE_EQ(ActiveShare({{0, 1}, {2, 4}}, {{0, 4}}).value_or(-1), 0.75);
  EXPECT_EQ(ActiveShare({{0, 2}, {2, 4}}, {{0, 4}}).value_or(-1), 1);
}

// As streams do, and as CUPTI tells it: in the order in which buffers come.
TEST(ActiveShare, WorkOfSeveralQueuesCountsOnce) {
  EXPECT_DOUBLE_EQ(ActiveShare({{5, 6}, {0, 3}, {1, 2}, {2, 4}, {5, 6}}, {{0, 10}}).value_or(-1), 0.5);
}

TEST(ActiveShare, WhatCrossesTheEndsOfAPartCountsInside) {
  EXPECT_DOUBLE_EQ(ActiveShare({{-5, 1}, {7, 20}}, {{0, 8}}).value_or(-1), 0.25);
  EXPECT_EQ(ActiveShare({{-1, 30}}, {{0, 8}, {10, 12}}).value_or(-1), 1);
  EXPECT_EQ(ActiveShare({{-2, -1}, {8, 9}}, {{0, 8}}).value_or(-1), 0);
}

// Between two parts the device waits for messages: what runs there is none of theirs.
TEST(ActiveShare, OfSeveralPartsTheTimeOfAll) {
  const std::vector<TimeSpan> pieces = {{0, 3}, {3.5, 6.5}, {8, 9}};
  EXPECT_DOUBLE_EQ(ActiveShare(pieces, {{6, 8}, {0, 2}}).value_or(-1), (2 + 0.5) / 4);
  EXPECT_DOUBLE_EQ(ActiveShare(pieces, {{0, 2}, {1, 4}}).value_or(-1), 3.5 / 4);
}

TEST(ActiveShare, AnEmptyTraceIsAllIdle) {
  EXPECT_EQ(ActiveShare({}, {{0, 4}}).value_or(-1), 0);
  EXPECT_EQ(ActiveShare({{1, 1}, {3, 2}}, {{0, 4}}).value_or(-1), 0);
}

TEST(ActiveShare, OfNoTimeThereIsNone) {
  EXPECT_FALSE(ActiveShare({{0, 1}}, {}).has_value());
  EXPECT_FALSE(ActiveShare({{0, 1}}, {{1, 1}, {3, 2}}).has_value());
}

}  // namespace
}  // namespace tacc::worker
