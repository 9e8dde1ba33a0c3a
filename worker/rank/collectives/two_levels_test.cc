#include "worker/rank/collectives/two_levels.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
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

TEST(TwoLevels, NeedAsManyRanksOnEachOfSeveralMachines) {
  const auto find = [](const std::vector<int>& members, int me, const std::vector<int>& machine_of) {
    return FindTwoLevels(members, me, [&](int rank) { return machine_of[rank]; });
  };
  EXPECT_FALSE(find({0, 1, 2, 3}, 1, {0, 0, 0, 0}).has_value());
  EXPECT_FALSE(find({0, 1, 2, 3}, 1, {0, 1, 2, 3}).has_value());
  EXPECT_FALSE(find({0, 1, 2}, 1, {0, 0, 1}).has_value());
  EXPECT_FALSE(find({0, 2}, 1, {0, 0, 1, 1}).has_value());
  const auto levels = find({1, 2, 4, 7}, 2, {9, 5, 3, 9, 5, 9, 9, 3});
  ASSERT_TRUE(levels.has_value());
  EXPECT_EQ(levels->machines, (std::vector<std::vector<int>>{{0, 2}, {1, 3}}));
  EXPECT_EQ(levels->machine, 0);
  EXPECT_EQ(levels->place, 1);
}

constexpr int kRanksAMachine = 8;

// Bytes that leave a machine (the same for all) when `machines` of eight ranks run a call over n parts of `part`
// elements of f32 each.
int64_t CrossedBytes(Kind kind, int machines, int64_t part) {
  const int n = machines * kRanksAMachine;
  std::vector<std::atomic<int64_t>> crossed(machines);
  auto transports = MakeInProcessTransports(n, absl::Seconds(60), kRanksAMachine);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      CountingTransport transport(std::move(transports[rank]));
      Collectives collectives(rank, n);
      collectives.Connect(&transport);
      const int64_t bytes = part * 4;
      std::vector<float> whole(n * part, static_cast<float>(rank + 1)), mine(part, static_cast<float>(rank + 1));
      CollectiveCall call;
      call.kind = kind;
      call.me = rank;
      std::vector<Region> parts;
      for (int i = 0; i < n; ++i) {
        call.members.push_back(i);
        parts.push_back(Flat(whole.data() + i * part, bytes));
      }
      const float sum = static_cast<float>(n * (n + 1) / 2);
      if (kind == Kind::kAllGather) {
        call.send = {Flat(mine.data(), bytes)};
        call.receive = parts;
      } else if (kind == Kind::kReduceScatter) {
        call.send = parts;
        call.receive = {Flat(mine.data(), bytes)};
      } else {
        call.send = call.receive = {Flat(whole.data(), n * bytes)};
      }
      ASSERT_EQ(collectives.Run(call), absl::OkStatus());
      ASSERT_EQ(collectives.Barrier(), absl::OkStatus());
      crossed[rank / kRanksAMachine] += transport.crossed_bytes();
      if (kind == Kind::kReduceScatter) {
        ASSERT_EQ(mine[part - 1], sum) << "rank " << rank;
      } else {
        for (int i = 0; i < n; ++i)
          ASSERT_EQ(whole[i * part], kind == Kind::kAllReduce ? sum : i + 1) << "rank " << rank << " part " << i;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int machine = 1; machine < machines; ++machine) EXPECT_EQ(crossed[machine], crossed[0]);
  return crossed[0];
}

// Those of the barrier at the end of CrossedBytes, which gathers a word a rank.
int64_t BarrierBytes(int machines) { return CrossedBytes(Kind::kAllGather, machines, 2) / 2; }

// A ring of n ranks, neighbours on one machine, takes n - 1 parts over each link, also over the one from a machine to
// the next; an all-reduce twice that.
TEST(TwoLevels, SendNoMoreBetweenMachinesThanARing) {
  constexpr int64_t kPart = 1024;
  for (const int machines : {2, 4, 16}) {
    const int n = machines * kRanksAMachine;
    const int64_t barrier = BarrierBytes(machines);
    for (const Kind kind : {Kind::kAllGather, Kind::kReduceScatter, Kind::kAllReduce}) {
      const int64_t crossed = CrossedBytes(kind, machines, kPart) - barrier;
      const int64_t ring = (n - 1) * kPart * 4 * (kind == Kind::kAllReduce ? 2 : 1);
      EXPECT_EQ(crossed, (n - kRanksAMachine) * kPart * 4 * (kind == Kind::kAllReduce ? 2 : 1));
      EXPECT_LE(crossed, ring) << machines << " machines";
    }
  }
}

// Small ones go whole only as long as few bytes leave a machine.
TEST(TwoLevels, SmallSumsSendNoMoreThanARing) {
  for (const int machines : {2, 4, 16}) {
    const int n = machines * kRanksAMachine;
    const int64_t barrier = BarrierBytes(machines), limit = graph::WholeAllReduceElements(n, machines);
    const int64_t small = limit / n, next = small + 1;
    const int64_t whole = CrossedBytes(Kind::kAllReduce, machines, small) - barrier;
    EXPECT_EQ(whole, (n - kRanksAMachine) * small * n * 4) << machines << " machines";
    EXPECT_LE(whole, graph::kWholeBytesOutOfMachine);
    EXPECT_EQ(CrossedBytes(Kind::kAllReduce, machines, next) - barrier, 2 * (n - kRanksAMachine) * next * 4);
  }
}

// Sums go by machines: the ranks of each in their order, then the machines', every rank the same bits.
TEST(TwoLevels, SumsHaveOneOrder) {
  constexpr int kWorld = 4;
  for (const int64_t elements : {3, 5'001, 100'003}) {
    std::vector<std::vector<float>> values(kWorld, std::vector<float>(elements));
    std::vector<float> expected(elements);
    for (int64_t i = 0; i < elements; ++i) {
      for (int r = 0; r < kWorld; ++r) values[r][i] = 1.0f / static_cast<float>(1 + (i * 7 + r * 13) % 101);
      expected[i] = (values[0][i] + values[1][i]) + (values[2][i] + values[3][i]);
    }
    auto transports = MakeInProcessTransports(kWorld, absl::Seconds(20), 2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kWorld; ++rank) {
      threads.emplace_back([&, rank] {
        Collectives collectives(rank, kWorld);
        collectives.Connect(transports[rank].get());
        CollectiveCall call;
        call.kind = Kind::kAllReduce;
        call.members = {0, 1, 2, 3};
        call.me = rank;
        call.send = call.receive = {Flat(values[rank].data(), elements * 4)};
        ASSERT_EQ(collectives.Run(call), absl::OkStatus());
        EXPECT_EQ(values[rank], expected);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace tacc::worker
