// What collectives of GPUs send and stage, by count.
#include <barrier>
#include <cmath>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "graph/ir/collective_limits.h"
#include "gtest/gtest.h"
#include "tests/ranks/counting_transport.h"
#include "worker/rank/cuda/testing/device_ranks.h"
#include "worker/rank/cuda/testing/simulated_gpu.h"
#include "worker/rank/device/device_clock.h"

namespace tacc::worker {
namespace {

using kernels::DType;
using Kind = CollectiveCall::Kind;
using Slow = SimulatedCommunication::Slow;
using Sums = DeviceCollectives::Sums;

// What a rank has sent of the call, as times say, is what a CPU says.
void ExpectSentBytesOfTheCpu(int world, int ranks_a_machine, const std::function<BoundCall(int)>& make) {
  const auto run = [&](DeviceRank rank) {
    BoundCall bound = make(rank.rank), timed = make(rank.rank);
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
  const std::function<BoundCall(int)> cases[] = {
      [](int me) { return MakeReduceScatter(me, {1500, 15, 3000}, 1, 1, DType::kBF16, DType::kF32); },
      [](int me) { return MakeExchange(me, {{60, 0, 9000}, {30, 6000, 15}, {0, 45, 30}}, 3, 1); },
      [](int me) { return MakeAllReduce(me, 3, 77, DType::kF32, DType::kF32); },
      [](int me) { return MakeAllReduce(me, 3, 400'001, DType::kF32, DType::kBF16); }};
  const std::function<BoundCall(int)> on_two_machines[] = {
      [](int me) { return MakeReduceScatter(me, {1500, 15, 3000, 8}, 1, 1, DType::kBF16, DType::kF32); },
      [](int me) { return MakeAllReduce(me, 4, 77, DType::kF32, DType::kF32); },
      [](int me) { return MakeAllReduce(me, 4, 256'000, DType::kF32, DType::kBF16); }};
  for (const auto& make : on_two_machines) ExpectSentBytesOfTheCpu(4, 2, make);
  for (const auto& make : cases) ExpectSentBytesOfTheCpu(3, 0, make);
}

constexpr int kRanksAMachine = 8;

// A call over n parts of `part` elements of f32 each, and its memory.
BoundCall MakeOfParts(Kind kind, int me, int n, int64_t part) {
  BoundCall bound;
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
  auto transports = MakeInProcessTransports(n, kRanksTimeout, kRanksAMachine);
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
      BoundCall bound = MakeOfParts(kind, rank, n, part);
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
  const auto staging_of = [](const std::function<BoundCall(int)>& make) {
    std::atomic<int64_t> bytes = 0;
    RunRanks(
        3, Slow::kNone, 1 << 20,
        [&](DeviceRank rank) {
          BoundCall bound = make(rank.rank);
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
    BoundCall bound;
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
      [&](DeviceRank rank) {
        BoundCall want = MakeAllReduce(rank.rank, 3, 40'001, DType::kF32, DType::kF32), got = want;
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

}  // namespace
}  // namespace tacc::worker
