// The check finds nothing in collectives that are right, and each fault in those that are not.
#include "worker/rank/cuda/collectives/check_collectives.h"

#include <barrier>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/rank/cuda/collectives/device_collectives.h"
#include "worker/rank/cuda/testing/simulated_communication.h"
#include "worker/rank/cuda/testing/simulated_gpu.h"
#include "worker/rank/device/host_device.h"
#include "worker/rank/testing/in_process_transport.h"

namespace tacc::worker {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Kind = CollectiveCall::Kind;
using Sums = DeviceCollectives::Sums;
using Slow = SimulatedCommunication::Slow;

constexpr absl::Duration kTimeout = absl::Seconds(20);
constexpr int64_t kElements = 700;

class NoKernels : public KernelTable {
  absl::StatusOr<Kernel> Prepare(const KernelRequest&) const override { return absl::UnimplementedError("a kernel"); }
};

// Hands calls on as `spoil` has changed them: once for those that are run, again for what is recorded.
class Spoiled : public CollectiveQueue {
 public:
  using Spoil = std::function<void(CollectiveCall&)>;
  struct Faults {
    Spoil always = [](CollectiveCall&) {};
    Spoil from_second_start = [](CollectiveCall&) {};
  };
  Spoiled(CollectiveQueue* queue, Faults faults) : queue_(*queue), faults_(std::move(faults)) {}

  absl::Status Prepare(const CollectiveCall* call) override {
    for (const bool is_later : {false, true}) {
      CollectiveCall& bad = calls_.emplace_back(*call);
      faults_.always(bad);
      if (is_later) faults_.from_second_start(bad);
      of_[call].push_back(&bad);
      if (absl::Status status = queue_.Prepare(&bad); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  absl::Status Open() override { return queue_.Open(); }
  absl::StatusOr<Ticket> Start(const CollectiveCall* call) override {
    return queue_.Start(of_.at(call)[std::min<int>(num_starts_[call]++, 1)]);
  }
  absl::Status Wait(Ticket ticket) override { return queue_.Wait(ticket); }
  absl::Status Finish(const CollectiveCall& call, Ticket ticket) override {
    return queue_.Finish(*of_.at(&call)[std::min<int>(num_starts_[&call] - 1, 1)], ticket);
  }
  absl::Status Run(const CollectiveCall& call) override {
    const absl::StatusOr<Ticket> ticket = Start(&call);
    return ticket.ok() ? Wait(*ticket) : ticket.status();
  }
  absl::Status Check() override { return queue_.Check(); }
  absl::Status StartTiming() override { return absl::UnimplementedError("times"); }
  absl::StatusOr<std::vector<CollectiveTime>> TakeTimes(const DeviceClock&) override {
    return absl::UnimplementedError("times");
  }
  bool is_on_device() const override { return queue_.is_on_device(); }

 private:
  CollectiveQueue& queue_;
  const Faults faults_;
  std::deque<CollectiveCall> calls_;
  std::map<const CollectiveCall*, std::vector<CollectiveCall*>> of_;
  std::map<const CollectiveCall*, int> num_starts_;
};

struct World {
  int size = 1;
  Sums sums = Sums::kInOrder;
  int ranks_a_machine = 0;
  Slow slow = Slow::kCommunication;
  std::function<Spoiled::Faults(int rank)> faults = [](int) { return Spoiled::Faults(); };
};

// Each rank's outcomes, agreed on.
std::vector<std::vector<CollectiveOutcome>> Check(const World& world) {
  std::vector<std::vector<CollectiveOutcome>> outcomes(world.size);
  auto transports = MakeInProcessTransports(world.size, kTimeout, world.ranks_a_machine);
  std::barrier ended(world.size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world.size; ++rank) {
    threads.emplace_back([&, rank] {
      Collectives host(rank, world.size);
      if (world.size > 1) host.Connect(transports[rank].get());
      auto communication = std::make_unique<SimulatedCommunication>(transports[rank].get(), world.slow);
      const NoKernels kernels;
      SimulatedGpu gpu(&kernels, communication.get());
      DeviceCollectives collectives(std::move(communication), world.sums, 64 << 10);
      Spoiled queue(&collectives, world.faults(rank));
      const auto found = CheckCollectives({&gpu, &queue, rank, world.size, kElements});
      EXPECT_TRUE(found.ok()) << found.status();
      EXPECT_GT(gpu.num_replays(), 0);
      ended.arrive_and_wait();  // What the host says comes beside nothing else.
      if (found.ok()) {
        const auto agreed = AgreeOnOutcomes(host, *found);
        EXPECT_TRUE(agreed.ok()) << agreed.status();
        if (agreed.ok()) outcomes[rank] = *agreed;
      }
      ended.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// Names of the calls that are wrong, as rank 0 has them, with what is wrong.
std::map<std::string, std::string> WrongIn(const std::vector<CollectiveOutcome>& outcomes) {
  std::map<std::string, std::string> wrong;
  for (const CollectiveOutcome& outcome : outcomes) {
    if (!outcome.error.empty()) wrong[outcome.name] = outcome.error;
  }
  return wrong;
}

using Errors = std::map<std::string, std::string>;

TEST(CheckCollectives, FindsNothingInThoseThatAreRight) {
  for (const Sums sums : {Sums::kInOrder, Sums::kLibrary}) {
    for (const auto& [size, ranks_a_machine] : {std::pair(1, 0), std::pair(2, 0), std::pair(3, 0), std::pair(4, 2)}) {
      const auto outcomes = Check({size, sums, ranks_a_machine, size == 2 ? Slow::kCompute : Slow::kNone});
      for (const auto& of_rank : outcomes) {
        EXPECT_EQ(WrongIn(of_rank), Errors()) << size;
        EXPECT_EQ(of_rank.size(), size == 1 ? 27u : size == 4 ? 34u : 28u);
        std::set<std::string> names;
        for (const CollectiveOutcome& outcome : of_rank) names.insert(outcome.name);
        EXPECT_EQ(names.size(), of_rank.size());
      }
    }
  }
}

// Ranks on CPUs, whose collectives cannot be recorded.
TEST(CheckCollectives, TakesTheHostsToo) {
  auto transports = MakeInProcessTransports(2, kTimeout);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Collectives host(rank, 2);
      host.Connect(transports[rank].get());
      const NoKernels kernels;
      HostDevice cpu(&kernels);
      const auto outcomes = CheckCollectives({&cpu, &host, rank, 2, kElements});
      ASSERT_TRUE(outcomes.ok()) << outcomes.status();
      EXPECT_EQ(WrongIn(*outcomes), Errors());
      EXPECT_EQ(outcomes->size(), 28u);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The numbers that a rank sends to a sum, taken from elsewhere: it sends what it does not have.
TEST(CheckCollectives, FindsASummandThatIsAnother) {
  std::vector<std::vector<char>> zeros(3, std::vector<char>(1 << 20));
  const auto outcomes = Check({3, Sums::kLibrary, 0, Slow::kNone, [&](int rank) {
                                 Spoiled::Faults faults;
                                 faults.always = [&zeros, rank](CollectiveCall& call) {
                                   if (rank != 2 || call.kind != Kind::kAllReduce) return;
                                   if (call.send[0].data == call.receive[0].data) return;
                                   call.send[0].data = zeros[rank].data();
                                 };
                                 return faults;
                               }});
  const Errors wrong = WrongIn(outcomes[0]);
  EXPECT_EQ(wrong.size(), 8u);  // All sums to everyone but the one in place.
  for (const auto& [name, error] : wrong) {
    EXPECT_THAT(name, StartsWith("all_reduce"));
    EXPECT_THAT(error, HasSubstr("rank 0, as it is: element "));
  }
  EXPECT_EQ(WrongIn(outcomes[1]).size(), wrong.size());
}

TEST(CheckCollectives, FindsPartsThatChangedPlaces) {
  const auto outcomes = Check({3, Sums::kInOrder, 0, Slow::kNone, [](int rank) {
                                 Spoiled::Faults faults;
                                 faults.always = [rank](CollectiveCall& call) {
                                   const bool is_even =
                                       call.receive.size() == 3 && call.receive[1].bytes() == call.receive[2].bytes();
                                   if (rank == 0 && is_even && call.receive[0].IsContiguous())
                                     std::swap(call.receive[1], call.receive[2]);
                                 };
                                 return faults;
                               }});
  const Errors wrong = WrongIn(outcomes[0]);
  EXPECT_EQ(wrong.size(), 3u);
  for (const auto& [name, error] : wrong) {
    EXPECT_THAT(error, HasSubstr("of part 1 is"));
    EXPECT_TRUE(name.rfind("all_gather", 0) == 0 || name.rfind("exchange", 0) == 0) << name;
  }
  // The other ranks hear of it.
  for (const auto& [name, error] : WrongIn(outcomes[1])) EXPECT_EQ(error, "wrong on rank 0");
  EXPECT_EQ(WrongIn(outcomes[1]).size(), wrong.size());
}

// One element further on: its end lies where nothing belongs.
TEST(CheckCollectives, FindsWhatIsWrittenBeside) {
  const auto outcomes = Check({2, Sums::kLibrary, 0, Slow::kNone, [](int) {
                                 Spoiled::Faults faults;
                                 faults.always = [](CollectiveCall& call) {
                                   const bool is_one =
                                       call.kind == Kind::kReduceScatter && call.send_dtype == kernels::DType::kI64;
                                   if (is_one) call.receive[0].data += 8;
                                 };
                                 return faults;
                               }});
  const Errors wrong = WrongIn(outcomes[1]);
  ASSERT_EQ(wrong.size(), 1u);
  EXPECT_EQ(wrong.begin()->first, "reduce_scatter i64, 700 elements, among 0 1");
  EXPECT_THAT(wrong.begin()->second, HasSubstr("element 0 of 700"));

  const auto longer = Check({2, Sums::kLibrary, 0, Slow::kNone, [](int) {
                               Spoiled::Faults faults;
                               faults.always = [](CollectiveCall& call) {
                                 if (call.kind != Kind::kAllReduce || call.send[0].data != call.receive[0].data) return;
                                 for (Region* region : {&call.send[0], &call.receive[0]})
                                   *region = Flat(region->data, region->bytes() + 4);
                               };
                               return faults;
                             }});
  const Errors beside = WrongIn(longer[0]);
  ASSERT_EQ(beside.size(), 1u);
  EXPECT_EQ(beside.begin()->first, "all_reduce f32, 700 elements, in place, among 0 1");
  EXPECT_THAT(beside.begin()->second, HasSubstr("which is no part of the result"));
}

// Right as it is run, and another call in what is recorded.
TEST(CheckCollectives, FindsWhatIsWrongOnlyWhenReplayed) {
  std::vector<std::vector<char>> stale(2, std::vector<char>(1 << 20));
  const auto outcomes = Check({2, Sums::kLibrary, 0, Slow::kCompute, [&](int rank) {
                                 Spoiled::Faults faults;
                                 faults.from_second_start = [&stale, rank](CollectiveCall& call) {
                                   const bool is_one = call.kind == Kind::kAllGather && call.send[0].bytes() == 1400 &&
                                                       call.receive[0].IsContiguous();
                                   if (is_one) call.send[0].data = stale[rank].data();
                                 };
                                 return faults;
                               }});
  const Errors wrong = WrongIn(outcomes[0]);
  ASSERT_EQ(wrong.size(), 1u);
  EXPECT_EQ(wrong.begin()->first, "all_gather bf16, 700 elements, among 0 1");
  EXPECT_THAT(wrong.begin()->second, HasSubstr("rank 0, replay 1: byte "));
}

TEST(CheckCollectives, FindsMessagesOfAnother) {
  std::vector<std::vector<char>> other(3, std::vector<char>(1 << 20));
  const auto outcomes = Check({3, Sums::kInOrder, 0, Slow::kNone, [&](int rank) {
                                 Spoiled::Faults faults;
                                 faults.from_second_start = [&other, rank](CollectiveCall& call) {
                                   if (call.kind == Kind::kSend && rank == 1) call.send[0].data = other[rank].data();
                                 };
                                 return faults;
                               }});
  const Errors wrong = WrongIn(outcomes[2]);
  ASSERT_EQ(wrong.size(), 1u);
  EXPECT_THAT(wrong.begin()->second, StartsWith("rank 2, as it is: byte "));
}

TEST(CheckCollectives, SumsAreTheSameBitsOnAllRanks) {
  auto transports = MakeInProcessTransports(2, kTimeout);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Collectives host(rank, 2);
      host.Connect(transports[rank].get());
      const uint64_t of_this_rank = 10 + rank;
      const auto agreed =
          AgreeOnOutcomes(host, {{"a", "", 7}, {"b", "", of_this_rank}, {"c", rank == 1 ? "bad" : "", 0}});
      ASSERT_TRUE(agreed.ok()) << agreed.status();
      EXPECT_EQ((*agreed)[0].error, "");
      EXPECT_EQ((*agreed)[1].error,
                rank == 0 ? "rank 1 has other bits than rank 0" : "rank 0 has other bits than rank 1");
      EXPECT_EQ((*agreed)[2].error, rank == 0 ? "wrong on rank 1" : "bad");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tacc::worker
