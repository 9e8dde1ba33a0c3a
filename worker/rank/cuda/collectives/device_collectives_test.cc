#include "worker/rank/cuda/collectives/device_collectives.h"

#include <atomic>
#include <deque>
#include <functional>
#include <random>
#include <thread>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "worker/rank/cuda/testing/device_ranks.h"
#include "worker/rank/cuda/testing/simulated_gpu.h"
#include "worker/rank/device/device_clock.h"
#include "worker/rank/testing/collective_case.h"

namespace tacc::worker {
namespace {

using kernels::DType;
using Kind = CollectiveCall::Kind;
using Slow = SimulatedCommunication::Slow;
using Sums = DeviceCollectives::Sums;

class DeviceCollectiveTexts : public testing::TestWithParam<CollectiveText> {};

TEST_P(DeviceCollectiveTexts, MoveAndAddWhatTheTypesSay) {
  const std::tuple<Slow, int, Sums> kWays[] = {
      {Slow::kCompute, 0, Sums::kInOrder},       {Slow::kCommunication, 0, Sums::kInOrder},
      {Slow::kCompute, 2, Sums::kInOrder},       {Slow::kCommunication, 3, Sums::kInOrder},
      {Slow::kCommunication, 0, Sums::kLibrary}, {Slow::kCompute, 2, Sums::kLibrary}};
  for (const auto& [slow, ranks_a_machine, sums] : kWays) {
    CollectiveCase(GetParam())
        .Check([=, slow = slow, ranks_a_machine = ranks_a_machine, sums = sums](
                   int world, const std::function<void(RankUnderTest)>& body) {
          const auto run = [&](DeviceRank rank) {
            body({rank.rank, rank.collectives, [&] { return rank.collectives.Open(); },
                  [&] { return rank.communication.Synchronize(); }});
          };
          // Large tensors take several rounds.
          RunRanks(world, slow, 4 << 20, run, ranks_a_machine, sums);
        });
  }
}

INSTANTIATE_TEST_SUITE_P(Every, DeviceCollectiveTexts, testing::ValuesIn(kCollectiveTexts),
                         [](const auto& info) { return std::string(info.param.name); });

// The bytes of all memory after the call, by Collectives and here: equal.
void ExpectAsOnCpu(int world, int64_t staging_bytes, const std::function<BoundCall(int)>& make,
                   int ranks_a_machine = 0) {
  for (const Slow slow : {Slow::kCompute, Slow::kCommunication}) {
    const auto run = [&](DeviceRank rank) {
      BoundCall want = make(rank.rank), got = make(rank.rank);
      {
        Collectives host(rank.rank, world);
        host.Connect(&rank.transport);
        ASSERT_EQ(host.Run(want.call), absl::OkStatus());
        ASSERT_EQ(host.Barrier(), absl::OkStatus());
      }
      ASSERT_EQ(rank.collectives.Prepare(&got.call), absl::OkStatus());
      ASSERT_EQ(rank.collectives.Open(), absl::OkStatus());
      EXPECT_LE(rank.collectives.staging_bytes(), staging_bytes);
      ASSERT_EQ(rank.collectives.Run(got.call), absl::OkStatus());
      ASSERT_EQ(rank.communication.Synchronize(), absl::OkStatus());
      EXPECT_EQ(got.memory, want.memory) << "rank " << rank.rank;
    };
    RunRanks(world, slow, staging_bytes, run, ranks_a_machine);
  }
}

TEST(DeviceCollectives, SumsAreTheBitsOfTheCpu) {
  const std::pair<DType, DType> kTypes[] = {{DType::kF32, DType::kF32},  {DType::kBF16, DType::kF32},
                                            {DType::kF32, DType::kBF16}, {DType::kBF16, DType::kBF16},
                                            {DType::kF64, DType::kF64},  {DType::kF64, DType::kF32},
                                            {DType::kI32, DType::kI32},  {DType::kI64, DType::kI64}};
  for (const auto& [in, out] : kTypes) {
    for (const int64_t send_runs : {1, 5}) {
      for (const int64_t receive_runs : {1, 3}) {
        ExpectAsOnCpu(3, 32 << 10, [&, in = in, out = out](int me) {
          return MakeReduceScatter(me, {1500, 15, 3000}, send_runs, receive_runs, in, out);
        });
      }
    }
  }
}

TEST(DeviceCollectives, PartsMayBeEmptyAndOddlyPlaced) {
  ExpectAsOnCpu(4, 16 << 10,
                [](int me) { return MakeReduceScatter(me, {0, 33, 0, 1001}, 1, 1, DType::kBF16, DType::kF32); });
}

TEST(DeviceCollectives, ExchangesAreThoseOfTheCpu) {
  // [from][to], uneven; the rounds of two ranks differ.
  const std::vector<std::vector<int64_t>> elements = {{60, 0, 9000}, {30, 6000, 15}, {0, 45, 30}};
  for (const int64_t send_runs : {1, 3}) {
    for (const int64_t receive_runs : {1, 5}) {
      ExpectAsOnCpu(3, 16 << 10, [&](int me) { return MakeExchange(me, elements, send_runs, receive_runs); });
    }
  }
}

TEST(DeviceCollectives, AllReducesAreTheBitsOfTheCpu) {
  for (const auto& [in, out] : {std::pair(DType::kF32, DType::kF32), std::pair(DType::kBF16, DType::kF32),
                                std::pair(DType::kF32, DType::kBF16), std::pair(DType::kI64, DType::kI64)}) {
    for (const int64_t elements : {1, 77, 40'001})
      ExpectAsOnCpu(3, 64 << 10, [&, in = in, out = out](int me) { return MakeAllReduce(me, 3, elements, in, out); });
  }
}

// Their order is another than that of one machine.
TEST(DeviceCollectives, SumsOfSeveralMachinesAreTheBitsOfTheCpu) {
  const std::pair<DType, DType> kTypes[] = {
      {DType::kF32, DType::kF32}, {DType::kBF16, DType::kF32}, {DType::kF32, DType::kBF16}, {DType::kI64, DType::kI64}};
  for (const auto& [in, out] : kTypes) {
    for (const int64_t runs : {1, 3}) {
      ExpectAsOnCpu(
          4, 32 << 10,
          [&, in = in, out = out](int me) {
            return MakeReduceScatter(me, {1500, 15, 0, 3000}, runs, 4 - runs, in, out);
          },
          2);
    }
    for (const int64_t elements : {5, 40'001}) {
      ExpectAsOnCpu(
          4, 64 << 10, [&, in = in, out = out](int me) { return MakeAllReduce(me, 4, elements, in, out); }, 2);
    }
    // Four machines of two: on CPUs and on GPUs whole, in pieces on CPUs, in pieces on both.
    for (const int64_t elements : {700, 4'003, 9'001, 11'000}) {
      ExpectAsOnCpu(8, 4 << 20, [&, in = in, out = out](int me) { return MakeAllReduce(me, 8, elements, in, out); }, 2);
    }
  }
}

TEST(DeviceCollectives, AllReduceInPlace) {
  for (const int64_t elements : {5, 40'001}) {
    ExpectAsOnCpu(3, 64 << 10, [&](int me) {
      BoundCall bound = MakeAllReduce(me, 3, elements, DType::kF32, DType::kF32);
      bound.call.receive = bound.call.send;
      return bound;
    });
  }
}

// Compute writes what is sent just before, and reads what has come just after; between, it goes on.
TEST(DeviceCollectives, FollowComputeAndAreFollowedByIt) {
  for (const Slow slow : {Slow::kCompute, Slow::kCommunication}) {
    RunRanks(2, slow, 1 << 20, [&](DeviceRank rank) {
      constexpr int kCalls = 6;
      std::vector<float> in(kCalls, -1), out(kCalls, -1), read(kCalls, -1);
      std::vector<CollectiveCall> calls(kCalls);
      for (int i = 0; i < kCalls; ++i) {
        calls[i].kind = Kind::kAllReduce;
        calls[i].members = {0, 1};
        calls[i].me = rank.rank;
        calls[i].send = {Flat(&in[i], 4)};
        calls[i].receive = {Flat(&out[i], 4)};
        ASSERT_EQ(rank.collectives.Prepare(&calls[i]), absl::OkStatus());
      }
      ASSERT_EQ(rank.collectives.Open(), absl::OkStatus());
      const int num_allocations = rank.communication.num_allocations();
      for (int step = 0; step < 2; ++step) {
        std::vector<CollectiveQueue::Ticket> tickets;
        for (int i = 0; i < kCalls; ++i) {
          rank.communication.Compute([&, i, step] { in[i] = static_cast<float>(10 * step + i + rank.rank); });
          tickets.push_back(*rank.collectives.Start(&calls[i]));
        }
        for (int i = kCalls - 1; i >= 0; --i) {
          ASSERT_EQ(rank.collectives.Wait(tickets[i]), absl::OkStatus());
          rank.communication.Compute([&, i] { read[i] = out[i]; });
        }
        // Nothing has been waited for: the queues have not begun.
        if (step == 0) {
          EXPECT_EQ(read, std::vector<float>(kCalls, -1));
        }
        ASSERT_EQ(rank.communication.Synchronize(), absl::OkStatus());
        for (int i = 0; i < kCalls; ++i) EXPECT_EQ(read[i], static_cast<float>(2 * (10 * step + i) + 1));
      }
      EXPECT_EQ(rank.communication.num_allocations(), num_allocations);
      EXPECT_EQ(rank.communication.num_begun(), 2 * kCalls);
      EXPECT_EQ(rank.communication.num_ended(), 2 * kCalls);
    });
  }
}

// Both ranks send before they receive, on two channels that the other takes in another order, and a collective runs
// while the messages are under way.
TEST(DeviceCollectives, MessagesTravelBesideEverythingElse) {
  for (const Slow slow : {Slow::kCompute, Slow::kCommunication}) {
    RunRanks(2, slow, 1 << 20, [&](DeviceRank rank) {
      const int peer = 1 - rank.rank;
      std::vector<std::vector<float>> out(2), in(2);
      std::vector<CollectiveCall> sends(2), receives(2);
      float sum = 1;
      CollectiveCall all;
      all.kind = Kind::kAllReduce;
      all.members = {0, 1};
      all.me = rank.rank;
      all.send = all.receive = {Flat(&sum, 4)};
      ASSERT_EQ(rank.collectives.Prepare(&all), absl::OkStatus());
      for (int c = 0; c < 2; ++c) {
        out[c].assign(100, static_cast<float>(10 * c + rank.rank));
        in[c].assign(100, -1);
        sends[c].kind = Kind::kSend;
        sends[c].send.push_back(Flat(out[c].data(), 400));
        receives[c].kind = Kind::kReceive;
        receives[c].receive.push_back(Flat(in[c].data(), 400));
        for (CollectiveCall* call : {&sends[c], &receives[c]}) {
          call->members = {peer};
          call->channel = c;
          ASSERT_EQ(rank.collectives.Prepare(call), absl::OkStatus());
        }
      }
      ASSERT_EQ(rank.collectives.Open(), absl::OkStatus());
      const std::vector<int> order = rank.rank == 0 ? std::vector<int>{0, 1} : std::vector<int>{1, 0};
      std::vector<CollectiveQueue::Ticket> sent(2), received(2);
      for (int c : order) sent[c] = *rank.collectives.Start(&sends[c]);
      ASSERT_EQ(rank.collectives.Run(all), absl::OkStatus());
      for (int c : {0, 1}) received[c] = *rank.collectives.Start(&receives[c]);
      for (int c : {0, 1}) {
        ASSERT_EQ(rank.collectives.Finish(receives[c], received[c]), absl::OkStatus());
        ASSERT_EQ(rank.collectives.Finish(sends[c], sent[c]), absl::OkStatus());
      }
      ASSERT_EQ(rank.communication.Synchronize(), absl::OkStatus());
      EXPECT_EQ(sum, 2);
      for (int c : {0, 1}) EXPECT_EQ(in[c], std::vector<float>(100, static_cast<float>(10 * c + peer)));
    });
  }
}

// A recording holds whole collectives, and gives what they give, any number of times.
TEST(DeviceCollectives, AreRecorded) {
  RunRanks(2, Slow::kCommunication, 1 << 20, [](DeviceRank rank) {
    float in = 0, out = 0, read = 0;
    CollectiveCall call;
    call.kind = Kind::kAllReduce;
    call.members = {0, 1};
    call.me = rank.rank;
    call.send = {Flat(&in, 4)};
    call.receive = {Flat(&out, 4)};
    ASSERT_EQ(rank.collectives.Prepare(&call), absl::OkStatus());
    ASSERT_EQ(rank.collectives.Open(), absl::OkStatus());
    const auto start = [&] { return rank.collectives.Start(&call).status(); };
    EXPECT_EQ(rank.communication.Record(start).status().message(),
              "compute does not follow a queue at the recording's end");
    const auto ticket = rank.collectives.Start(&call);
    ASSERT_TRUE(ticket.ok());
    EXPECT_EQ(rank.communication.Record([&] { return rank.collectives.Wait(*ticket); }).status().message(),
              "a wait across the end of a recording");
    ASSERT_EQ(rank.collectives.Wait(*ticket), absl::OkStatus());

    const auto recording = rank.communication.Record([&]() -> absl::Status {
      rank.communication.Compute([&] { in += static_cast<float>(rank.rank + 1); });
      absl::Status status = rank.collectives.Run(call);
      rank.communication.Compute([&] { read = out; });
      return status;
    });
    ASSERT_TRUE(recording.ok()) << recording.status();
    ASSERT_EQ(rank.communication.Synchronize(), absl::OkStatus());
    EXPECT_EQ(read, 0);
    for (int i = 0; i < 2; ++i) (*recording)();
    ASSERT_EQ(rank.communication.Synchronize(), absl::OkStatus());
    EXPECT_EQ(read, 6);
    EXPECT_EQ(rank.communication.num_begun(), 3);
    EXPECT_EQ(rank.communication.num_ended(), 3);
  });
}

// Rank 1 comes to the collective only when rank 0 computes beside it, which rank 0 does until rank 1 has its part.
TEST(DeviceCollectives, TimesAreWhenTheQueuesWereThere) {
  const NoKernels kernels;
  for (const Slow slow : {Slow::kCompute, Slow::kCommunication}) {
    std::deque<absl::Notification> computes(2), has_ended(2);  // By step.
    RunRanks(2, slow, 1 << 20, [&](DeviceRank rank) {
      std::vector<float> in(100, 1), out(100);
      CollectiveCall call;
      call.kind = Kind::kExchange;
      call.members = {0, 1};
      call.me = rank.rank;
      call.send = {Flat(in.data(), 200), Flat(in.data() + 50, 200)};
      call.receive = {Flat(out.data(), 200), Flat(out.data() + 50, 200)};
      ASSERT_EQ(rank.collectives.Prepare(&call), absl::OkStatus());
      ASSERT_EQ(rank.collectives.Open(), absl::OkStatus());
      ASSERT_EQ(rank.collectives.Run(call), absl::OkStatus());
      ASSERT_EQ(rank.communication.Synchronize(), absl::OkStatus());
      EXPECT_EQ(rank.communication.num_timed_marks(), 0);

      SimulatedGpu device(&kernels, &rank.communication);
      Marks marks([&] { return device.CreateMark(); });
      DeviceClock clock;
      for (int step = 0; step < 2; ++step) {
        marks.Clear();
        ASSERT_EQ(clock.Align(device), absl::OkStatus());
        ASSERT_EQ(rank.collectives.StartTiming(), absl::OkStatus());
        if (rank.rank == 1) rank.communication.Compute([&, step] { computes[step].WaitForNotification(); });
        const Device::Mark& before = **marks.Set();
        const auto ticket = rank.collectives.Start(&call);
        ASSERT_TRUE(ticket.ok()) << ticket.status();
        const Device::Mark& begins = **marks.Set();
        if (rank.rank == 0) {
          rank.communication.Compute([&, step] {
            computes[step].Notify();
            has_ended[step].WaitForNotification();
          });
        }
        const Device::Mark& ends = **marks.Set();
        ASSERT_EQ(rank.collectives.Wait(*ticket), absl::OkStatus());
        const Device::Mark& after = **marks.Set();
        if (rank.rank == 1) rank.communication.Compute([&, step] { has_ended[step].Notify(); });
        ASSERT_EQ(rank.communication.Synchronize(), absl::OkStatus());

        const auto times = rank.collectives.TakeTimes(clock);
        ASSERT_TRUE(times.ok()) << times.status();
        ASSERT_EQ(times->size(), 1u);
        const CollectiveTime& time = times->front();
        EXPECT_EQ(time.sent_bytes, 200);
        EXPECT_LE(*clock.SecondsAt(before), time.begin);
        EXPECT_LT(time.begin, time.end);
        EXPECT_LE(time.end, *clock.SecondsAt(after));
        if (rank.rank == 0) {
          EXPECT_LT(*clock.SecondsAt(begins), time.end);
          EXPECT_LT(time.begin, *clock.SecondsAt(ends));
        }
        EXPECT_EQ(rank.communication.num_timed_marks(), 2);  // The second step's are the first one's.
      }
      ASSERT_EQ(rank.collectives.Run(call), absl::OkStatus());
      ASSERT_EQ(rank.communication.Synchronize(), absl::OkStatus());
      EXPECT_TRUE(rank.collectives.TakeTimes(clock)->empty());
    });
  }
}

// A parameter that two adjacent pairs of stages share: the middle one is in two groups at the same distance.
TEST(DeviceCollectives, GroupsOfARankMayOverlap) {
  RunRanks(
      3, Slow::kCommunication, 1 << 20,
      [](DeviceRank rank) {
        std::vector<CollectiveCall> calls;
        std::vector<float> values(2, static_cast<float>(1 << rank.rank));
        for (int first = 0; first < 2; ++first) {
          if (rank.rank < first || rank.rank > first + 1) continue;
          CollectiveCall& call = calls.emplace_back();
          call.kind = Kind::kAllReduce;
          call.members = {first, first + 1};
          call.me = rank.rank - first;
          call.node = 7 + rank.rank;  // Each stage has a program of its own.
          call.across_stages = true;
          call.send = call.receive = {Flat(&values[first], 4)};
        }
        for (const CollectiveCall& call : calls) ASSERT_EQ(rank.collectives.Prepare(&call), absl::OkStatus());
        ASSERT_EQ(rank.collectives.Open(), absl::OkStatus());
        for (const CollectiveCall& call : calls) ASSERT_EQ(rank.collectives.Run(call), absl::OkStatus());
        ASSERT_EQ(rank.communication.Synchronize(), absl::OkStatus());
        if (rank.rank < 2) EXPECT_EQ(values[0], 3);
        if (rank.rank > 0) EXPECT_EQ(values[1], 6);
      },
      0, Sums::kLibrary);
}

TEST(DeviceCollectives, ErrorsAreSaidAtTheNextCall) {
  RunRanks(1, Slow::kCompute, 1 << 20, [](DeviceRank rank) {
    BoundCall bound = MakeAllReduce(0, 1, 10, DType::kF32, DType::kF32);
    ASSERT_EQ(rank.collectives.Prepare(&bound.call), absl::OkStatus());
    EXPECT_EQ(rank.collectives.Start(&bound.call).status().code(), absl::StatusCode::kInternal);  // Not connected.
    ASSERT_EQ(rank.collectives.Open(), absl::OkStatus());
    const CollectiveCall other = bound.call;
    EXPECT_EQ(rank.collectives.Start(&other).status().code(), absl::StatusCode::kInternal);  // Not prepared.
    EXPECT_EQ(rank.collectives.Prepare(&other).code(), absl::StatusCode::kFailedPrecondition);
    ASSERT_EQ(rank.collectives.Run(bound.call), absl::OkStatus());
    ASSERT_EQ(rank.communication.Synchronize(), absl::OkStatus());
    EXPECT_EQ(bound.memory[1], bound.memory[0]);  // A sum of one.
    rank.communication.Fail(absl::UnavailableError("rank 7"));
    EXPECT_EQ(rank.collectives.Check().message(), "rank 7");
    EXPECT_EQ(rank.collectives.Start(&bound.call).status().message(), "rank 7");
    EXPECT_EQ(rank.collectives.Wait(0).message(), "rank 7");
  });
}

}  // namespace
}  // namespace tacc::worker
