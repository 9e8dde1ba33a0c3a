#include "worker/rank/collectives/collectives.h"

#include <cmath>
#include <functional>
#include <thread>

#include "graph/ir/text.h"
#include "gtest/gtest.h"
#include "worker/rank/collectives/bind_collective.h"
#include "worker/rank/collectives/sum_kernels.h"
#include "worker/rank/testing/collective_case.h"
#include "worker/rank/testing/in_process_transport.h"

namespace tacc::worker {
namespace {

using kernels::DType;

constexpr absl::Duration kTimeout = absl::Seconds(20);

// Runs `body` as each of `world` ranks.
void RunRanks(int world, const std::function<void(int, Collectives&)>& body, int ranks_a_machine = 0) {
  auto transports = MakeInProcessTransports(world, kTimeout, ranks_a_machine);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      Collectives collectives(rank, world);
      collectives.Connect(transports[rank].get());
      body(rank, collectives);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class CollectiveTexts : public testing::TestWithParam<CollectiveText> {};

TEST_P(CollectiveTexts, MoveAndAddWhatTheTypesSay) {
  for (const int ranks_a_machine : {0, 2, 3}) {
    CollectiveCase(GetParam()).Check([=](int world, const std::function<void(RankUnderTest)>& body) {
      const auto run = [&](int rank, Collectives& collectives) {
        const auto nothing = [] { return absl::OkStatus(); };
        body({rank, collectives, nothing, nothing});
      };
      RunRanks(world, run, ranks_a_machine);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Every, CollectiveTexts, testing::ValuesIn(kCollectiveTexts),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Collectives, AllReduceInPlaceIsTheSameBitsEverywhere) {
  constexpr int kWorld = 3;
  for (const int64_t n : {5, 100'003}) {
    std::vector<std::vector<float>> values(kWorld, std::vector<float>(n));
    std::vector<float> expected(n);
    for (int64_t i = 0; i < n; ++i) {
      for (int r = 0; r < kWorld; ++r) values[r][i] = 1.0f / static_cast<float>(1 + (i * 7 + r * 13) % 101);
      expected[i] = values[0][i] + values[1][i] + values[2][i];
    }
    RunRanks(kWorld, [&](int rank, Collectives& collectives) {
      CollectiveCall call;
      call.kind = CollectiveCall::Kind::kAllReduce;
      call.members = {0, 1, 2};
      call.me = rank;
      const int64_t bytes = n * static_cast<int64_t>(sizeof(float));
      call.send = call.receive = {Region{reinterpret_cast<char*>(values[rank].data()), 1, bytes, bytes}};
      ASSERT_TRUE(collectives.Run(call).ok());
      EXPECT_EQ(values[rank], expected);
    });
  }
}

// Sums of narrow summands are kept in f32: 1 + small + small would stay 1 if each sum were rounded.
void ExpectSumIsKeptInF32(DType dtype, uint16_t one, uint16_t small, float wanted) {
  constexpr int kWorld = 3;
  RunRanks(kWorld, [&](int rank, Collectives& collectives) {
    uint16_t mine[3];
    std::fill(mine, mine + 3, rank == 0 ? one : small);
    float sum = 0;
    CollectiveCall call;
    call.kind = CollectiveCall::Kind::kReduceScatter;
    call.members = {0, 1, 2};
    call.me = rank;
    call.send_dtype = dtype;
    for (uint16_t& x : mine) call.send.push_back({reinterpret_cast<char*>(&x), 1, 2, 2});
    call.receive = {Region{reinterpret_cast<char*>(&sum), 1, 4, 4}};
    ASSERT_TRUE(collectives.Run(call).ok());
    EXPECT_EQ(sum, wanted);
  });
}

TEST(Collectives, NarrowSumsAreKeptInF32) {
  ExpectSumIsKeptInF32(DType::kBF16, 0x3f80, 0x3b00, 1.0f + 0x1p-8f);  // 1, 2^-9
  ExpectSumIsKeptInF32(DType::kF16, 0x3c00, 0x0c00, 1.0f + 0x1p-11f);  // 1, 2^-12
}

// Every f16 is itself after a sum of one, in either type of sum, and what lies between two goes to the even one.
TEST(SumKernels, F16RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    float sum = 0;
    CopyElements(DType::kF16, &half, &sum, 1);
    const bool is_nan = (half & 0x7fff) > 0x7c00;
    ASSERT_EQ(std::isnan(sum), is_nan) << bits;
    uint16_t back = 0;
    RoundElements(DType::kF32, &sum, DType::kF16, &back, 1);
    if (is_nan) {
      ASSERT_GT(back & 0x7fff, 0x7c00) << bits;
      continue;
    }
    ASSERT_EQ(back, half);
    const double wide = sum;
    RoundElements(DType::kF64, &wide, DType::kF16, &back, 1);
    ASSERT_EQ(back, half);
    const auto next = static_cast<uint16_t>(half + 1);
    if ((half & 0x7fff) >= 0x7bff) continue;  // the largest, and infinity
    float larger = 0;
    CopyElements(DType::kF16, &next, &larger, 1);
    const float middle = (sum + larger) / 2;
    RoundElements(DType::kF32, &middle, DType::kF16, &back, 1);
    ASSERT_EQ(back, half % 2 == 0 ? half : next) << bits;
  }
  const float largest[] = {65519.0f, 65520.0f, -1e30f};
  uint16_t rounded[3];
  RoundElements(DType::kF32, largest, DType::kF16, rounded, 3);
  EXPECT_EQ(rounded[0], 0x7bff);
  EXPECT_EQ(rounded[1], 0x7c00);
  EXPECT_EQ(rounded[2], 0xfc00);
}

TEST(Collectives, StartedOnesRunInOrderAndOverlap) {
  RunRanks(2, [&](int rank, Collectives& collectives) {
    std::vector<uint64_t> in(8), out(16);
    std::vector<CollectiveCall> calls(8);
    std::vector<Collectives::Ticket> tickets;
    for (int i = 0; i < 8; ++i) {
      in[i] = 10 * i + rank;
      const auto at = [](uint64_t& x) { return Region{reinterpret_cast<char*>(&x), 1, 8, 8}; };
      calls[i].members = {0, 1};
      calls[i].me = rank;
      calls[i].send = {at(in[i]), at(in[i])};
      calls[i].receive = {at(out[2 * i]), at(out[2 * i + 1])};
      tickets.push_back(*collectives.Start(&calls[i]));
    }
    auto gathered = collectives.GatherHost({100u + rank});  // Behind the started ones.
    ASSERT_TRUE(gathered.ok());
    EXPECT_EQ((*gathered)[1][0], 101u);
    for (int i = 7; i >= 0; --i) ASSERT_TRUE(collectives.Wait(tickets[i]).ok());
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(out[2 * i], 10u * i);
      EXPECT_EQ(out[2 * i + 1], 10u * i + 1);
    }
    EXPECT_EQ(collectives.stats().bytes_sent, 9 * 8);
    EXPECT_EQ(collectives.stats().num_calls, 9);
  });
}

TEST(Collectives, ARankThatDoesNotAnswerIsNamed) {
  auto transports = MakeInProcessTransports(2, absl::Milliseconds(50));
  Collectives collectives(0, 2);
  collectives.Connect(transports[0].get());
  const absl::Status status = collectives.Barrier();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("rank 1"), absl::string_view::npos) << status;
  EXPECT_FALSE(collectives.Barrier().ok());  // The error sticks.
}

TEST(Collectives, OverlapOfOperandAndResultIsRefused) {
  const auto program = graph::ParseProgram(
      "tacc.program 1 partitioned\nmesh fsdp=2\nstage 0 of 1\ngraph g {\n  %x = input \"x\" : f32[2] of f32[4] "
      "shard=[fsdp]\n"
      "  %y = all_gather %x over=[fsdp] dim=0 : f32[4] of f32[4] shard=[-]\n}\nstep {\n}\n",
      {});
  ASSERT_TRUE(program.ok()) << program.status();
  float memory[4];
  const graph::Graph& graph = program->graphs[0];
  const auto call =
      BindCollective(graph, graph.nodes[1], program->mesh, 0, {memory, DType::kF32, {2}}, {memory, DType::kF32, {4}});
  EXPECT_EQ(call.status().message(), "all_gather: operand and result overlap");
}

}  // namespace
}  // namespace tacc::worker
