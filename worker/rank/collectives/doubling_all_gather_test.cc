#include "worker/rank/collectives/doubling_all_gather.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "graph/ir/collective_limits.h"
#include "gtest/gtest.h"
#include "tests/ranks/counting_transport.h"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/testing/in_process_transport.h"

namespace tacc::worker {
namespace {

using Kind = CollectiveCall::Kind;

// Out of a machine of eight, what a whole sum may send.
static_assert(8 * kMostDoublingBytes <= graph::kWholeBytesOutOfMachine);

CollectiveCall GatherOf(int world, int me, int64_t bytes) {
  CollectiveCall call;
  call.kind = Kind::kAllGather;
  call.me = me;
  for (int r = 0; r < world; ++r) {
    call.members.push_back(r);
    call.receive.push_back(Flat(nullptr, bytes));
  }
  call.send = {Flat(nullptr, bytes)};
  return call;
}

TEST(DoublingAllGather, IsForSmallEqualBlocksOfMany) {
  EXPECT_TRUE(GathersByDoubling(GatherOf(32, 0, 512)));
  EXPECT_FALSE(GathersByDoubling(GatherOf(31, 0, 8)));
  EXPECT_FALSE(GathersByDoubling(GatherOf(32, 0, 513)));
  EXPECT_FALSE(GathersByDoubling(GatherOf(32, 0, 0)));
  CollectiveCall unequal = GatherOf(32, 0, 8);
  unequal.receive.back() = Flat(nullptr, 4);
  EXPECT_FALSE(GathersByDoubling(unequal));
}

// What ranks tell each other at each step, in worlds of every kind of size: on one machine, and on several.
TEST(DoublingAllGather, BringsEveryBlockInFewMessages) {
  for (const auto& [world, ranks_a_machine, messages] :
       {std::tuple(31, 0, 30), {32, 0, 5}, {33, 0, 6}, {48, 8, 6}, {64, 0, 6}, {65, 13, 7}}) {
    auto transports = MakeInProcessTransports(world, absl::Seconds(60), ranks_a_machine);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world; ++rank) {
      threads.emplace_back([&, rank, world = world, messages = messages] {
        CountingTransport transport(std::move(transports[rank]));
        Collectives collectives(rank, world);
        collectives.Connect(&transport);
        for (uint64_t step : {1, 2}) {
          const auto all = collectives.GatherHost({static_cast<uint64_t>(rank), step * 1000 + rank});
          ASSERT_TRUE(all.ok()) << all.status();
          for (int r = 0; r < world; ++r) {
            EXPECT_EQ((*all)[r], (std::vector<uint64_t>{static_cast<uint64_t>(r), step * 1000 + r}));
          }
        }
        EXPECT_EQ(transport.sent_messages(), 2 * messages) << world;
        EXPECT_EQ(transport.sent_bytes(), 2 * 16 * (world - 1)) << world;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// Blocks that are columns of what is gathered, and the own block in its place there.
TEST(DoublingAllGather, TakesBlocksThatAreNotContiguous) {
  constexpr int kWorld = 37;
  constexpr int64_t kRows = 3;
  auto transports = MakeInProcessTransports(kWorld, absl::Seconds(60));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWorld; ++rank) {
    threads.emplace_back([&, rank] {
      Collectives collectives(rank, kWorld);
      collectives.Connect(transports[rank].get());
      std::vector<int32_t> all(kRows * kWorld, -1);
      CollectiveCall call = GatherOf(kWorld, rank, 0);
      for (int r = 0; r < kWorld; ++r)
        call.receive[r] = Region{reinterpret_cast<char*>(&all[r]), kRows, sizeof(int32_t), kWorld * sizeof(int32_t)};
      call.send = {call.receive[rank]};
      for (int64_t row = 0; row < kRows; ++row) all[row * kWorld + rank] = static_cast<int32_t>(row * kWorld + rank);
      ASSERT_EQ(collectives.Run(call), absl::OkStatus());
      for (int32_t i = 0; i < kRows * kWorld; ++i) EXPECT_EQ(all[i], i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tacc::worker
