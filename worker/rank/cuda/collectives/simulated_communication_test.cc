#include "worker/rank/cuda/testing/simulated_communication.h"

#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "worker/rank/cuda/testing/device_ranks.h"

namespace tacc::worker {
namespace {

using kernels::DType;
using Kind = CollectiveCall::Kind;
using Slow = SimulatedCommunication::Slow;

// Of two ranks, what rank 0 is told of what both queue for one group: in a recording, before the group is connected, or
// as steps do.
enum class When { kConnected, kUnconnected, kRecorded };
std::string ErrorOf(const std::function<absl::Status(GroupCollectives&, DeviceRank, char*)>& queue,
                    When when = When::kConnected) {
  std::vector<std::string> errors(2);
  RunRanks(2, Slow::kNone, 1 << 20, [&](DeviceRank rank) {
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
  EXPECT_EQ(ErrorOf([](GroupCollectives& group, DeviceRank rank, char* at) {
              return rank.rank == 0 ? group.AllReduce(at, at, 8, DType::kF32) : group.AllGather(at, at + 32, 32, 1);
            }),
            kDifferent);
  EXPECT_EQ(ErrorOf([](GroupCollectives& group, DeviceRank rank, char* at) {
              return group.AllReduce(at, at, 8, rank.rank == 0 ? DType::kF32 : DType::kI32);
            }),
            kDifferent);
  EXPECT_EQ(
      ErrorOf([](GroupCollectives& group, DeviceRank, char* at) { return group.AllReduce(at, at, 0, DType::kF32); }),
      "a collective of nothing");
  const auto sum = [](GroupCollectives& group, DeviceRank, char* at) {
    return group.AllReduce(at, at, 8, DType::kF32);
  };
  EXPECT_EQ(ErrorOf(sum), "");
  EXPECT_EQ(ErrorOf(sum, When::kUnconnected), "NCCL: a collective of a group that no split has made");
  EXPECT_EQ(ErrorOf(sum, When::kRecorded),
            "NCCL: the first call of a group, in which its members connect, is recorded");
}

TEST(SimulatedCommunication, MemoryOverlapsInPlaceOnly) {
  // Of 64 bytes. In place, apart, and otherwise: parts of 16 bytes, and sums of 32.
  const auto gather = [](int64_t send, int64_t receive) {
    return ErrorOf([=](GroupCollectives& group, DeviceRank rank, char* at) {
      return group.AllGather(at + send + (send == receive ? 16 * rank.rank : 0), at + receive, 16, 1);
    });
  };
  EXPECT_EQ(gather(0, 0), "");
  EXPECT_EQ(gather(32, 0), "");
  EXPECT_EQ(gather(8, 0), kOverlaps);
  EXPECT_EQ(gather(24, 0), kOverlaps);
  const auto scatter = [](int64_t send, int64_t receive) {
    return ErrorOf([=](GroupCollectives& group, DeviceRank rank, char* at) {
      return group.ReduceScatter(at + send, at + receive + (send == receive ? 16 * rank.rank : 0), 4, DType::kF32, 1);
    });
  };
  EXPECT_EQ(scatter(0, 0), "");
  EXPECT_EQ(scatter(0, 32), "");
  EXPECT_EQ(scatter(0, 8), kOverlaps);
  EXPECT_EQ(scatter(16, 8), kOverlaps);
  const auto reduce = [](int64_t send, int64_t receive) {
    return ErrorOf([=](GroupCollectives& group, DeviceRank, char* at) {
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
    return ErrorOf([&](GroupCollectives& group, DeviceRank rank, char* at) {
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
  RunRanks(3, Slow::kNone, 1 << 20, [](DeviceRank rank) {
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

}  // namespace
}  // namespace tacc::worker
