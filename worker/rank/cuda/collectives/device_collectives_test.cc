#include "worker/rank/cuda/collectives/device_collectives.h"

#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <thread>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "graph/ir/collective_limits.h"
#include "gtest/gtest.h"
#include "tests/ranks/counting_transport.h"
#include "worker/rank/cuda/testing/simulated_communication.h"
#include "worker/rank/cuda/testing/simulated_gpu.h"
#include "worker/rank/device/device_clock.h"
#include "worker/rank/testing/collective_case.h"
#include "worker/rank/testing/in_process_transport.h"

namespace tacc::worker {
namespace {

using kernels::DType;
using Kind = CollectiveCall::Kind;
using Slow = SimulatedCommunication::Slow;
using Sums = DeviceCollectives::Sums;

constexpr absl::Duration kTimeout = absl::Seconds(20);

struct Rank {
  int rank = 0;
  Transport& transport;
  SimulatedCommunication& communication;
  DeviceCollectives& collectives;
};

// Runs `body` as each of `world` ranks. A rank's queues live until all ranks have ended.
void RunRanks(int world, Slow slow, int64_t staging_bytes, const std::function<void(Rank)>& body,
              int ranks_a_machine = 0, Sums sums = Sums::kInOrder) {
  auto transports = MakeInProcessTransports(world, kTimeout, ranks_a_machine);
  std::barrier ended(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      auto communication = std::make_unique<SimulatedCommunication>(transports[rank].get(), slow);
      SimulatedCommunication& queues = *communication;
      DeviceCollectives collectives(std::move(communication), sums, staging_bytes);
      body({rank, *transports[rank], queues, collectives});
      ended.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

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
          const auto run = [&](Rank rank) {
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

// Memory of a call with regions of `runs` pieces, and what it holds at first.
struct Bound {
  std::vector<std::vector<char>> memory;
  CollectiveCall call;
};

// Numbers of both signs and many sizes, so that the order of a sum shows in its bits.
void Fill(DType dtype, std::mt19937& random, std::vector<char>& memory) {
  std::normal_distribution<float> normal;
  const auto value = [&] { return normal(random) * static_cast<float>(1 << random() % 12); };
  const size_t n = memory.size() / kernels::SizeOf(dtype);
  for (size_t i = 0; i < n; ++i) {
    char* at = memory.data() + i * kernels::SizeOf(dtype);
    const float x = value();
    const double wide = x * 1.000000001;
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint16_t half = static_cast<uint16_t>(bits >> 16);
    const int64_t integer = static_cast<int64_t>(x * 1000);
    if (dtype == DType::kF32) std::memcpy(at, &x, 4);
    if (dtype == DType::kF64) std::memcpy(at, &wide, 8);
    if (dtype == DType::kBF16) std::memcpy(at, &half, 2);
    if (dtype == DType::kI32) std::memcpy(at, &integer, 4);
    if (dtype == DType::kI64) std::memcpy(at, &integer, 8);
  }
}

// A region of `elements` in `runs` equal pieces (rounded down to a multiple), with gaps where there are several.
Region Cut(std::vector<char>& memory, int64_t elements, int64_t runs, int64_t size) {
  const int64_t run_bytes = elements / runs * size, gap = runs > 1 ? 3 * size : 0;
  memory.assign(runs * (run_bytes + gap), 0);
  if (run_bytes == 0) return Region();
  return {memory.data(), runs, run_bytes, run_bytes + gap};
}

Bound MakeReduceScatter(int me, const std::vector<int64_t>& elements, int64_t send_runs, int64_t receive_runs, DType in,
                        DType out) {
  Bound bound;
  const int n = static_cast<int>(elements.size());
  bound.memory.resize(n + 1);
  bound.call.kind = Kind::kReduceScatter;
  bound.call.me = me;
  bound.call.send_dtype = in;
  bound.call.receive_dtype = out;
  std::mt19937 random(me + 1);
  for (int i = 0; i < n; ++i) {
    bound.call.members.push_back(i);
    bound.call.send.push_back(Cut(bound.memory[i], elements[i], send_runs, kernels::SizeOf(in)));
    Fill(in, random, bound.memory[i]);
  }
  bound.call.receive = {Cut(bound.memory[n], elements[me], receive_runs, kernels::SizeOf(out))};
  return bound;
}

Bound MakeExchange(int me, const std::vector<std::vector<int64_t>>& elements, int64_t send_runs, int64_t receive_runs) {
  Bound bound;
  const int n = static_cast<int>(elements.size());
  bound.memory.resize(2 * n);
  bound.call.kind = Kind::kExchange;
  bound.call.me = me;
  std::mt19937 random(me + 1);
  for (int i = 0; i < n; ++i) {
    bound.call.members.push_back(i);
    bound.call.send.push_back(Cut(bound.memory[i], elements[me][i], send_runs, 4));
    Fill(DType::kF32, random, bound.memory[i]);
    bound.call.receive.push_back(Cut(bound.memory[n + i], elements[i][me], receive_runs, 4));
  }
  return bound;
}

Bound MakeAllReduce(int me, int n, int64_t elements, DType in, DType out) {
  Bound bound;
  bound.memory.resize(2);
  bound.call.kind = Kind::kAllReduce;
  bound.call.me = me;
  bound.call.send_dtype = in;
  bound.call.receive_dtype = out;
  for (int i = 0; i < n; ++i) bound.call.members.push_back(i);
  std::mt19937 random(me + 1);
  bound.call.send = {Cut(bound.memory[0], elements, 1, kernels::SizeOf(in))};
  Fill(in, random, bound.memory[0]);
  bound.call.receive = {Cut(bound.memory[1], elements, 1, kernels::SizeOf(out))};
  return bound;
}

// The bytes of all memory after the call, by Collectives and here: equal.
void ExpectAsOnCpu(int world, int64_t staging_bytes, const std::function<Bound(int)>& make, int ranks_a_machine = 0) {
  for (const Slow slow : {Slow::kCompute, Slow::kCommunication}) {
    const auto run = [&](Rank rank) {
      Bound want = make(rank.rank), got = make(rank.rank);
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
      Bound bound = MakeAllReduce(me, 3, elements, DType::kF32, DType::kF32);
      bound.call.receive = bound.call.send;
      return bound;
    });
  }
}

// Compute writes what is sent just before, and reads what has come just after; between, it goes on.
TEST(DeviceCollectives, FollowComputeAndAreFollowedByIt) {
  for (const Slow slow : {Slow::kCompute, Slow::kCommunication}) {
    RunRanks(2, slow, 1 << 20, [&](Rank rank) {
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
    RunRanks(2, slow, 1 << 20, [&](Rank rank) {
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
  RunRanks(2, Slow::kCommunication, 1 << 20, [](Rank rank) {
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

// Of a device that only communicates.
class NoKernels : public KernelTable {
  absl::StatusOr<Kernel> Prepare(const KernelRequest&) const override { return absl::UnimplementedError("a kernel"); }
};

// Rank 1 comes to the collective only when rank 0 computes beside it, which rank 0 does until rank 1 has its part.
TEST(DeviceCollectives, TimesAreWhenTheQueuesWereThere) {
  const NoKernels kernels;
  for (const Slow slow : {Slow::kCompute, Slow::kCommunication}) {
    std::deque<absl::Notification> computes(2), has_ended(2);  // By step.
    RunRanks(2, slow, 1 << 20, [&](Rank rank) {
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

// What a rank has sent of the call, as times say, is what a CPU says.
void ExpectSentBytesOfTheCpu(int world, int ranks_a_machine, const std::function<Bound(int)>& make) {
  const auto run = [&](Rank rank) {
    Bound bound = make(rank.rank), timed = make(rank.rank);
    Collectives host(rank.rank, world);
    host.Connect(&rank.transport);
    ASSERT_EQ(host.Run(bound.call), absl::OkStatus());
    const int64_t sent_bytes = host.stats().bytes_sent;
    ASSERT_EQ(host.Barrier(), absl::OkStatus());
    ASSERT_EQ(rank.collectives.Prepare(&timed.call), absl::OkStatus());
    ASSERT_EQ(rank.collectives.Open(), absl::OkStatus());
    const NoKernels kernels;
    SimulatedGpu device(&kernels, &rank.communication);
    DeviceClock clock;
    ASSERT_EQ(clock.Align(device), absl::OkStatus());
    ASSERT_EQ(rank.collectives.StartTiming(), absl::OkStatus());
    ASSERT_EQ(rank.collectives.Run(timed.call), absl::OkStatus());
    ASSERT_EQ(rank.communication.Synchronize(), absl::OkStatus());
    const auto times = rank.collectives.TakeTimes(clock);
    ASSERT_TRUE(times.ok()) << times.status();
    EXPECT_EQ(times->front().sent_bytes, sent_bytes);
  };
  RunRanks(world, Slow::kNone, 64 << 10, run, ranks_a_machine);
}

// The payload of every kind of call is what a CPU says it has sent.
TEST(DeviceCollectives, SentBytesAreThoseOfTheCpu) {
  const std::function<Bound(int)> cases[] = {
      [](int me) { return MakeReduceScatter(me, {1500, 15, 3000}, 1, 1, DType::kBF16, DType::kF32); },
      [](int me) { return MakeExchange(me, {{60, 0, 9000}, {30, 6000, 15}, {0, 45, 30}}, 3, 1); },
      [](int me) { return MakeAllReduce(me, 3, 77, DType::kF32, DType::kF32); },
      [](int me) { return MakeAllReduce(me, 3, 400'001, DType::kF32, DType::kBF16); }};
  const std::function<Bound(int)> on_two_machines[] = {
      [](int me) { return MakeReduceScatter(me, {1500, 15, 3000, 8}, 1, 1, DType::kBF16, DType::kF32); },
      [](int me) { return MakeAllReduce(me, 4, 77, DType::kF32, DType::kF32); },
      [](int me) { return MakeAllReduce(me, 4, 256'000, DType::kF32, DType::kBF16); }};
  for (const auto& make : on_two_machines) ExpectSentBytesOfTheCpu(4, 2, make);
  for (const auto& make : cases) ExpectSentBytesOfTheCpu(3, 0, make);
}

constexpr int kRanksAMachine = 8;

// A call over n parts of `part` elements of f32 each, and its memory.
Bound MakeOfParts(Kind kind, int me, int n, int64_t part) {
  Bound bound;
  const int64_t bytes = part * 4;
  bound.memory.assign(2, std::vector<char>(n * bytes));
  std::vector<Region> parts, others;
  for (int i = 0; i < n; ++i) {
    bound.call.members.push_back(i);
    parts.push_back(Flat(bound.memory[0].data() + i * bytes, bytes));
    others.push_back(Flat(bound.memory[1].data() + i * bytes, bytes));
  }
  bound.call.kind = kind;
  bound.call.me = me;
  bound.call.send = kind == Kind::kAllGather ? std::vector<Region>{others[me]} : parts;
  bound.call.receive = kind == Kind::kReduceScatter ? std::vector<Region>{others[me]}
                       : kind == Kind::kAllGather   ? parts
                                                    : others;
  if (kind == Kind::kAllReduce) bound.call.send = bound.call.receive = {Flat(bound.memory[0].data(), n * bytes)};
  return bound;
}

// Bytes that leave each machine (the same of all) when `machines` of eight ranks run the call.
int64_t CrossedBytes(Kind kind, int machines, int64_t part, Sums sums) {
  const int n = machines * kRanksAMachine;
  auto transports = MakeInProcessTransports(n, kTimeout, kRanksAMachine);
  std::vector<std::unique_ptr<CountingTransport>> counting;
  for (auto& transport : transports) counting.push_back(std::make_unique<CountingTransport>(std::move(transport)));
  std::barrier open(n), ended(n);
  std::vector<int64_t> before(n);  // What ranks tell each other to open.
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      auto communication = std::make_unique<SimulatedCommunication>(counting[rank].get(), Slow::kNone);
      SimulatedCommunication& queues = *communication;
      DeviceCollectives collectives(std::move(communication), sums, 16 << 20);
      Bound bound = MakeOfParts(kind, rank, n, part);
      EXPECT_EQ(collectives.Prepare(&bound.call), absl::OkStatus());
      EXPECT_EQ(collectives.Open(), absl::OkStatus());
      open.arrive_and_wait();
      before[rank] = counting[rank]->crossed_bytes();
      open.arrive_and_wait();
      EXPECT_EQ(collectives.Run(bound.call), absl::OkStatus());
      EXPECT_EQ(queues.Synchronize(), absl::OkStatus());
      EXPECT_EQ(queues.packed_bytes(), 0);
      ended.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<int64_t> crossed(machines);
  for (int rank = 0; rank < n; ++rank) crossed[rank / kRanksAMachine] += counting[rank]->crossed_bytes() - before[rank];
  for (int machine = 1; machine < machines; ++machine) EXPECT_EQ(crossed[machine], crossed[0]);
  return crossed[0];
}

// Over a ring's link from a machine to the next go n - 1 parts, twice for an all-reduce; sums in order go in two
// levels, n - 8 parts, but small ones whole.
TEST(DeviceCollectives, BytesBetweenMachinesAreThoseOfARing) {
  constexpr int64_t kPart = 2056;  // more than any small sum
  for (const int machines : {2, 4, 16}) {
    const int64_t n = machines * kRanksAMachine, bytes = kPart * 4;
    const int64_t ring = (n - 1) * bytes, levels = (n - kRanksAMachine) * bytes;
    const int64_t header = SimulatedCommunication::kHeaderBytes;
    SCOPED_TRACE(absl::StrCat(machines, " machines"));
    for (const Sums sums : {Sums::kLibrary, Sums::kInOrder}) {
      const bool is_library = sums == Sums::kLibrary;
      EXPECT_EQ(CrossedBytes(Kind::kAllGather, machines, kPart, sums), ring + header);
      EXPECT_EQ(CrossedBytes(Kind::kReduceScatter, machines, kPart, sums), is_library ? ring + header : levels);
      EXPECT_EQ(CrossedBytes(Kind::kAllReduce, machines, kPart, sums), (is_library ? ring : levels) + ring + header);
      EXPECT_EQ(CrossedBytes(Kind::kExchange, machines, kPart, sums), kRanksAMachine * levels);
    }
    // The largest that is sent whole, and the next that is not.
    const int64_t limit = graph::WholeAllReduceElementsOnGpus(n, machines), small = limit / n,
                  next = (small + 8) / 8 * 8;
    const int64_t whole = CrossedBytes(Kind::kAllReduce, machines, small, Sums::kInOrder);
    EXPECT_EQ(whole, (n - kRanksAMachine) * small * n * 4);
    EXPECT_LE(whole, kRanksAMachine * graph::kWholeBytesOutOfGpu);
    EXPECT_EQ(CrossedBytes(Kind::kAllReduce, machines, next, Sums::kInOrder),
              (n - kRanksAMachine + n - 1) * next * 4 + header);
  }
}

// Parts that lie as the library wants them take no staging, whoever sums; strided or unequal ones do.
TEST(DeviceCollectives, TheLibraryTakesMemoryAsItLies) {
  const auto staging_of = [](const std::function<Bound(int)>& make) {
    std::atomic<int64_t> bytes = 0;
    RunRanks(
        3, Slow::kNone, 1 << 20,
        [&](Rank rank) {
          Bound bound = make(rank.rank);
          ASSERT_EQ(rank.collectives.Prepare(&bound.call), absl::OkStatus());
          ASSERT_EQ(rank.collectives.Open(), absl::OkStatus());
          ASSERT_EQ(rank.collectives.Run(bound.call), absl::OkStatus());
          ASSERT_EQ(rank.communication.Synchronize(), absl::OkStatus());
          bytes = rank.collectives.staging_bytes();
        },
        0, Sums::kLibrary);
    return bytes.load();
  };
  // In a row: parts of 3 x `runs` runs of 8 elements of one tensor, along its first dim or another.
  const auto make = [](Kind kind, int me, int64_t runs, int64_t short_by) {
    Bound bound;
    bound.memory.assign(2, std::vector<char>(3 * runs * 32));
    std::vector<Region> parts;
    for (int i = 0; i < 3; ++i) {
      bound.call.members.push_back(i);
      parts.push_back(Region{bound.memory[0].data() + i * 32, runs, 32 - (i == 2 ? short_by : 0), 96});
      if (runs == 1) parts.back().stride_bytes = parts.back().run_bytes;
    }
    bound.call.kind = kind;
    bound.call.me = me;
    const std::vector<Region> mine = {Flat(bound.memory[1].data(), parts[me].bytes())};
    bound.call.send = kind == Kind::kAllGather ? mine : parts;
    bound.call.receive = kind == Kind::kAllGather ? parts : mine;
    return bound;
  };
  for (const Kind kind : {Kind::kAllGather, Kind::kReduceScatter}) {
    EXPECT_EQ(staging_of([&](int me) { return make(kind, me, 1, 0); }), 0);
    EXPECT_EQ(staging_of([&](int me) { return make(kind, me, graph::kMaxRowsInPlace, 0); }), 0);
    EXPECT_GT(staging_of([&](int me) { return make(kind, me, graph::kMaxRowsInPlace + 1, 0); }), 0);
    EXPECT_GT(staging_of([&](int me) { return make(kind, me, 1, 8); }), 0);
    EXPECT_GT(staging_of([&](int me) { return make(kind, me, 4, 8); }), 0);
  }
  EXPECT_EQ(staging_of([&](int me) { return MakeAllReduce(me, 3, 100'000, DType::kBF16, DType::kBF16); }), 0);
  // A result of another type is not the library's.
  EXPECT_GT(staging_of([&](int me) { return MakeAllReduce(me, 3, 100'000, DType::kBF16, DType::kF32); }), 0);
}

// The library's sums are right, the same bits on all ranks, and not those in order, so that nothing can count on them.
TEST(DeviceCollectives, SumsOfTheLibraryHaveAnOrderOfTheirOwn) {
  std::vector<std::vector<char>> sums(3);
  RunRanks(
      3, Slow::kCommunication, 1 << 20,
      [&](Rank rank) {
        Bound want = MakeAllReduce(rank.rank, 3, 40'001, DType::kF32, DType::kF32), got = want;
        got.call.send = {Flat(got.memory[0].data(), 40'001 * 4)};
        got.call.receive = {Flat(got.memory[1].data(), 40'001 * 4)};
        Collectives host(rank.rank, 3);
        host.Connect(&rank.transport);
        ASSERT_EQ(host.Run(want.call), absl::OkStatus());
        ASSERT_EQ(host.Barrier(), absl::OkStatus());
        ASSERT_EQ(rank.collectives.Prepare(&got.call), absl::OkStatus());
        ASSERT_EQ(rank.collectives.Open(), absl::OkStatus());
        ASSERT_EQ(rank.collectives.Run(got.call), absl::OkStatus());
        ASSERT_EQ(rank.communication.Synchronize(), absl::OkStatus());
        EXPECT_NE(got.memory[1], want.memory[1]);
        for (int64_t i = 0; i < 40'001; ++i) {
          float x, y;
          std::memcpy(&x, got.memory[1].data() + i * 4, 4);
          std::memcpy(&y, want.memory[1].data() + i * 4, 4);
          ASSERT_NEAR(x, y, 0.01 + 1e-5 * std::abs(y)) << i;
        }
        sums[rank.rank] = got.memory[1];
      },
      0, Sums::kLibrary);
  EXPECT_EQ(sums[1], sums[0]);
  EXPECT_EQ(sums[2], sums[0]);
}

// A parameter that two adjacent pairs of stages share: the middle one is in two groups at the same distance.
TEST(DeviceCollectives, GroupsOfARankMayOverlap) {
  RunRanks(
      3, Slow::kCommunication, 1 << 20,
      [](Rank rank) {
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

// Of two ranks, what rank 0 is told of what both queue for one group: in a recording, before the group is connected, or
// as steps do.
enum class When { kConnected, kUnconnected, kRecorded };
std::string ErrorOf(const std::function<absl::Status(GroupCollectives&, Rank, char*)>& queue,
                    When when = When::kConnected) {
  std::vector<std::string> errors(2);
  RunRanks(2, Slow::kNone, 1 << 20, [&](Rank rank) {
    const auto group = rank.communication.Group({0, 1});
    ASSERT_TRUE(group.ok()) << group.status();
    if (when != When::kUnconnected) {
      ASSERT_EQ(rank.communication.Connect(), absl::OkStatus());
    }
    std::vector<char> memory(64);
    CommunicationStream& stream = **rank.communication.CollectiveStream();
    const auto end = stream.CreateMark();
    ASSERT_TRUE(end.ok()) << end.status();
    const auto run = [&]() -> absl::Status {
      absl::Status status = stream.FollowCompute();
      status.Update(queue(**group, rank, memory.data()));
      status.Update((*end)->Set());
      status.Update((*end)->LetComputeFollow());
      return status;
    };
    absl::Status status = when == When::kRecorded ? rank.communication.Record(run).status() : run();
    const absl::Status done = rank.communication.Synchronize();
    status.Update(done);
    errors[rank.rank] = std::string(status.message());
  });
  EXPECT_EQ(errors[0].substr(0, 8), errors[1].substr(0, 8));
  return errors[0];
}

constexpr char kDifferent[] = "NCCL: ranks 0 and 1 call different collectives of their group";
constexpr char kOverlaps[] = "NCCL's memory overlaps, and not in place";

// What NCCL would answer with a hang or wrong values is an error here.
TEST(SimulatedCommunication, HoldsCallersToTheLibrarysRules) {
  EXPECT_EQ(ErrorOf([](GroupCollectives& group, Rank rank, char* at) {
              return rank.rank == 0 ? group.AllReduce(at, at, 8, DType::kF32) : group.AllGather(at, at + 32, 32, 1);
            }),
            kDifferent);
  EXPECT_EQ(ErrorOf([](GroupCollectives& group, Rank rank, char* at) {
              return group.AllReduce(at, at, 8, rank.rank == 0 ? DType::kF32 : DType::kI32);
            }),
            kDifferent);
  EXPECT_EQ(ErrorOf([](GroupCollectives& group, Rank, char* at) { return group.AllReduce(at, at, 0, DType::kF32); }),
            "a collective of nothing");
  const auto sum = [](GroupCollectives& group, Rank, char* at) { return group.AllReduce(at, at, 8, DType::kF32); };
  EXPECT_EQ(ErrorOf(sum), "");
  EXPECT_EQ(ErrorOf(sum, When::kUnconnected), "NCCL: a collective of a group that no split has made");
  EXPECT_EQ(ErrorOf(sum, When::kRecorded),
            "NCCL: the first call of a group, in which its members connect, is recorded");
}

TEST(SimulatedCommunication, MemoryOverlapsInPlaceOnly) {
  // Of 64 bytes. In place, apart, and otherwise: parts of 16 bytes, and sums of 32.
  const auto gather = [](int64_t send, int64_t receive) {
    return ErrorOf([=](GroupCollectives& group, Rank rank, char* at) {
      return group.AllGather(at + send + (send == receive ? 16 * rank.rank : 0), at + receive, 16, 1);
    });
  };
  EXPECT_EQ(gather(0, 0), "");
  EXPECT_EQ(gather(32, 0), "");
  EXPECT_EQ(gather(8, 0), kOverlaps);
  EXPECT_EQ(gather(24, 0), kOverlaps);
  const auto scatter = [](int64_t send, int64_t receive) {
    return ErrorOf([=](GroupCollectives& group, Rank rank, char* at) {
      return group.ReduceScatter(at + send, at + receive + (send == receive ? 16 * rank.rank : 0), 4, DType::kF32, 1);
    });
  };
  EXPECT_EQ(scatter(0, 0), "");
  EXPECT_EQ(scatter(0, 32), "");
  EXPECT_EQ(scatter(0, 8), kOverlaps);
  EXPECT_EQ(scatter(16, 8), kOverlaps);
  const auto reduce = [](int64_t send, int64_t receive) {
    return ErrorOf([=](GroupCollectives& group, Rank, char* at) {
      return group.AllReduce(at + send, at + receive, 8, DType::kF32);
    });
  };
  EXPECT_EQ(reduce(0, 0), "");
  EXPECT_EQ(reduce(0, 32), "");
  EXPECT_EQ(reduce(0, 16), kOverlaps);
  EXPECT_EQ(reduce(28, 0), kOverlaps);
}

// Two sums of the same size and type, of two nodes: rank 1 makes the second first.
TEST(SimulatedCommunication, SwappedCallsAreSeen) {
  const auto two_calls = [](bool swaps, bool across_stages) {
    std::vector<CollectiveCall> calls(4);
    for (int i = 0; i < 4; ++i) {
      calls[i].kind = Kind::kAllReduce;
      calls[i].members = {0, 1};
      calls[i].node = i % 2;
      calls[i].me = i / 2;
      calls[i].across_stages = across_stages;
    }
    return ErrorOf([&](GroupCollectives& group, Rank rank, char* at) {
      CommunicationStream& stream = **rank.communication.CollectiveStream();
      absl::Status status;
      for (int i = 0; i < 2; ++i) {
        const int which = swaps && rank.rank == 1 ? 1 - i : i;
        status.Update(stream.BeginCall(&calls[2 * rank.rank + which]));
        status.Update(group.AllReduce(at + 32 * which, at + 32 * which, 8, DType::kF32));
        status.Update(stream.EndCall());
      }
      return status;
    });
  };
  EXPECT_EQ(two_calls(false, false), "");
  EXPECT_EQ(two_calls(true, false), kDifferent);
  // A stage does not know another's nodes.
  EXPECT_EQ(two_calls(true, true), "");
}

// All ranks make the same splits in the same order, and each gets those who gave its color.
TEST(SimulatedCommunication, SplitsAreOfAllRanks) {
  RunRanks(3, Slow::kNone, 1 << 20, [](Rank rank) {
    const auto split = [&](int color, int key) { return *rank.communication.Split(color, key); };
    EXPECT_EQ(split(rank.rank == 1 ? 5 : 3, rank.rank),
              rank.rank == 1 ? std::vector<int>{1} : std::vector<int>({0, 2}));
    EXPECT_EQ(split(7, 2 - rank.rank), std::vector<int>({2, 1, 0}));
    EXPECT_EQ(split(rank.rank == 0 ? -1 : 0, rank.rank),
              rank.rank == 0 ? std::vector<int>() : std::vector<int>({1, 2}));
    EXPECT_EQ(rank.communication.Split(1, 1).status().message(),
              "NCCL: two ranks of a split with color 1 have one key");
  });
}

TEST(DeviceCollectives, ErrorsAreSaidAtTheNextCall) {
  RunRanks(1, Slow::kCompute, 1 << 20, [](Rank rank) {
    Bound bound = MakeAllReduce(0, 1, 10, DType::kF32, DType::kF32);
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
