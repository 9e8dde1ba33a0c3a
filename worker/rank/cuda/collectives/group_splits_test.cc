#include "worker/rank/cuda/collectives/group_splits.h"

#include <functional>
#include <set>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/testing/in_process_transport.h"

namespace tacc::worker {
namespace {

using Groups = std::vector<std::vector<int>>;

// What each rank is told that asks for `groups(rank)`.
std::vector<absl::StatusOr<Groups>> Ask(int world, const std::function<Groups(int)>& groups) {
  auto transports = MakeInProcessTransports(world, absl::Seconds(20));
  std::vector<absl::StatusOr<Groups>> told(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      Collectives host(rank, world);
      host.Connect(transports[rank].get());
      told[rank] = AgreeOnSplits(rank, groups(rank), [&](const auto& words) { return host.GatherHost(words); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return told;
}

// Of `all`, those with this rank.
Groups With(int rank, const Groups& all) {
  Groups groups;
  for (const std::vector<int>& group : all) {
    if (std::set<int>(group.begin(), group.end()).count(rank) > 0) groups.push_back(group);
  }
  return groups;
}

// As ncclCommSplit: all ranks take part in as many; in each, those that name a group are all of its members; and every
// group that a rank asks for comes of one.
void ExpectSplits(int world, const Groups& all, size_t num_splits) {
  const auto told = Ask(world, [&](int rank) { return With(rank, all); });
  for (int rank = 0; rank < world; ++rank) {
    ASSERT_TRUE(told[rank].ok()) << told[rank].status();
    ASSERT_EQ(told[rank]->size(), num_splits);
    std::set<std::vector<int>> made;
    for (size_t split = 0; split < num_splits; ++split) {
      const std::vector<int>& group = (*told[rank])[split];
      if (group.empty()) continue;
      EXPECT_TRUE(made.insert(group).second);
      EXPECT_EQ(With(rank, {group}).size(), 1u);
      for (const int member : group) EXPECT_EQ((*told[member])[split], group) << "rank " << member;
    }
    const Groups wanted = With(rank, all);
    EXPECT_EQ(made, std::set<std::vector<int>>(wanted.begin(), wanted.end())) << "rank " << rank;
  }
}

TEST(AgreeOnSplits, GroupsAlongTheSameAxesShareOne) {
  ExpectSplits(2, {}, 0);
  ExpectSplits(4, {{0, 1}, {2, 3}}, 1);
  ExpectSplits(8, {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {0, 2}, {1, 3}, {4, 6}, {5, 7}, {0, 4}, {1, 5}, {2, 6}, {3, 7}}, 3);
}

// A rank may have none, or one with members that others have not.
TEST(AgreeOnSplits, RanksAskForGroupsOfTheirOwn) {
  ExpectSplits(4, {{0, 1}}, 1);
  ExpectSplits(4, {{2}, {0, 1, 3}}, 2);
}

// A parameter that stages 0 and 1 share, one of 1 and 2, one of 2 and 3: rank 1 is in two groups at the same distance.
TEST(AgreeOnSplits, GroupsAtTheSameDistancesMayOverlap) {
  ExpectSplits(3, {{0, 1}, {1, 2}}, 2);
  ExpectSplits(4, {{0, 1}, {1, 2}, {2, 3}}, 2);
  // Stages of two ranks, and the groups inside of them.
  ExpectSplits(6, {{0, 2}, {1, 3}, {2, 4}, {3, 5}, {0, 1}, {2, 3}, {4, 5}}, 3);
}

// NCCL would wait for the third.
TEST(AgreeOnSplits, AGroupIsAskedForByAllOfItsMembers) {
  for (const auto& told : Ask(3, [](int rank) { return rank < 2 ? Groups{{0, 1, 2}} : Groups(); }))
    EXPECT_EQ(told.status(), absl::InternalError("only ranks 0, 1 asked for a group, which has other members too"));
}

}  // namespace
}  // namespace tacc::worker
