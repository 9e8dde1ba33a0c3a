#include "worker/rank/cuda/collectives/choose_collectives.h"

#include <unistd.h>

#include <barrier>
#include <thread>

#include "absl/strings/str_cat.h"
#include "graph/ir/text.h"
#include "gtest/gtest.h"
#include "worker/rank/cuda/testing/simulated_communication.h"
#include "worker/rank/cuda/testing/simulated_gpu.h"
#include "worker/rank/device/host_device.h"
#include "worker/rank/program/executor.h"
#include "worker/rank/testing/in_process_transport.h"
#include "worker/rank/testing/naive_kernels.h"

namespace tacc::worker {
namespace {

using Slow = SimulatedCommunication::Slow;

// Of what ranks on the host tell each other, and of what waits for another rank's message on a device.
constexpr absl::Duration kTimeout = absl::Seconds(20);

// A linear layer of 4 weights, y = w + x, loss = sum(y), w -= 0.1 y: gathered under way, summed by elements and by
// rank.
constexpr char kSharded[] = R"(tacc.program 1 partitioned
mesh fsdp=2
stage 0 of 1
state "weights/w" : f32[2] of f32[4] shard=[fsdp] kind=weight init=ones stored=[4]
state "counters/loss" : f32[] of f32[] shard=[] pending=[fsdp] kind=counter init=zeros
graph forward_backward {
  %w = read "weights/w" : f32[2] of f32[4] shard=[fsdp]
  %s = all_gather %w async=true dim=0 over=[fsdp] : f32[4] of f32[4] shard=[-]
  %x = input "x" : f32[4] of f32[4] shard=[-]
  %g = wait %s : f32[4] of f32[4] shard=[-]
  %y = add %g, %x : f32[4] of f32[4] shard=[-] pending=[fsdp]
  %l = reduce_sum %y dims=[0] : f32[] of f32[] shard=[] pending=[fsdp]
  store "counters/loss" %l
  %r = reduce_scatter %y dim=0 over=[fsdp] : f32[2] of f32[4] shard=[fsdp]
  %c = scale %r factor=0.1 : f32[2] of f32[4] shard=[fsdp]
  %n = sub %w, %c : f32[2] of f32[4] shard=[fsdp]
  store "weights/w" %n
}
graph update {
  %p = read "counters/loss" : f32[] of f32[] shard=[] pending=[fsdp]
  %l = all_reduce %p over=[fsdp] : f32[] of f32[] shard=[]
  output "loss" %l
}
step {
  call forward_backward micro_batch=0
  call update micro_batch=0
}
)";

// Stage 0 sends what stage 1 sums.
constexpr char kFirstStage[] = R"(tacc.program 1 partitioned
mesh pp=2
stage 0 of 2
state "weights/w" : f32[4] of f32[4] shard=[-] kind=weight init=ones stored=[4]
state "stashes/a" : f32[4] of f32[4] shard=[-] kind=stash init=zeros
graph forward {
  %w = read "weights/w" : f32[4] of f32[4] shard=[-]
  %x = input "x" : f32[4] of f32[4] shard=[-]
  %a = add %w, %x : f32[4] of f32[4] shard=[-]
  store "stashes/a" %a
  send "stashes/a" channel=3 to=1
  %n = add %a, %x : f32[4] of f32[4] shard=[-]
  store "weights/w" %n
}
graph finish_forward {
  finish "stashes/a" channel=3
}
step {
  call forward micro_batch=0
  call finish_forward micro_batch=0
}
)";
constexpr char kSecondStage[] = R"(tacc.program 1 partitioned
mesh pp=2
stage 1 of 2
state "weights/v" : f32[4] of f32[4] shard=[-] kind=weight init=ones stored=[4]
state "stashes/a" : f32[4] of f32[4] shard=[-] kind=stash init=zeros
graph receive_forward {
  recv "stashes/a" channel=3 from=0
}
graph forward {
  %x = input "x" : f32[4] of f32[4] shard=[-]
  %v = read "weights/v" : f32[4] of f32[4] shard=[-]
  %u = add %v, %x : f32[4] of f32[4] shard=[-]
  finish "stashes/a" channel=3
  %a = read "stashes/a" : f32[4] of f32[4] shard=[-]
  %b = add %a, %u : f32[4] of f32[4] shard=[-]
  %l = reduce_sum %b dims=[0] : f32[] of f32[] shard=[]
  output "loss" %l
}
step {
  call receive_forward micro_batch=0
  call forward micro_batch=0
}
)";

std::vector<int> AliasOf(const graph::Graph&, const graph::Node& node) {
  return node.op == graph::Op::kWait ? std::vector<int>{0} : std::vector<int>();
}

ExecutorOptions OptionsOf(const graph::Program& program, int rank, Device* device, CollectiveQueue* collectives) {
  ExecutorOptions options;
  options.program = &program;
  options.rank = rank;
  options.device = device;
  options.aliases = AliasOf;
  options.collectives = collectives;
  return options;
}

// x of a rank's step; states at first.
std::vector<float> InputOf(int rank, int step) {
  return {0.3f + static_cast<float>(step), -0.7f, 1.1f * static_cast<float>(rank + 1), 0.1f};
}
void FillStates(const graph::Program& program, int rank, const Executor& executor) {
  for (const graph::State& state : program.states) {
    const kernels::TensorView view = executor.state(state.name);
    for (int64_t i = 0; i < view.size(); ++i)
      view.as<float>()[i] = state.kind == graph::StateKind::kWeight ? 0.1f * static_cast<float>(rank + i + 1) : 0;
  }
}

struct Result {
  std::vector<double> losses;  // Of a rank that has them.
  std::vector<float> weights;
};
bool operator==(const Result& a, const Result& b) { return a.losses == b.losses && a.weights == b.weights; }

constexpr int kSteps = 4;

Result TakeResult(const graph::Program& program, const Executor& executor, std::vector<double> losses) {
  Result result{std::move(losses), {}};
  const kernels::TensorView view = executor.state(program.states[0].name);
  result.weights.assign(view.as<float>(), view.as<float>() + view.size());
  return result;
}

using Programs = std::vector<graph::Program>;  // By rank.

Programs Parse(const std::vector<const char*>& texts) {
  Programs programs;
  for (const char* text : texts) {
    auto program = graph::ParseProgram(text, {});
    EXPECT_TRUE(program.ok()) << program.status();
    programs.push_back(*std::move(program));
  }
  return programs;
}
Programs Sharded() { return Parse({kSharded, kSharded}); }
Programs Staged() { return Parse({kFirstStage, kSecondStage}); }

// As on CPUs.
std::vector<Result> RunOnHosts(const Programs& programs) {
  auto transports = MakeInProcessTransports(2, kTimeout);
  const NaiveKernels kernels;
  std::vector<Result> results(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Collectives host(rank, 2);
      host.Connect(transports[rank].get());
      HostDevice device(&kernels);
      auto executor = Executor::Create(OptionsOf(programs[rank], rank, &device, &host));
      ASSERT_TRUE(executor.ok()) << executor.status();
      FillStates(programs[rank], rank, **executor);
      std::vector<double> losses;
      for (int step = 0; step < kSteps; ++step) {
        const std::vector<float> x = InputOf(rank, step);
        ASSERT_EQ((*executor)->RunStep({{x.data()}}), absl::OkStatus());
        if ((*executor)->Output("loss").ok()) losses.push_back(*(*executor)->Output("loss"));
      }
      results[rank] = TakeResult(programs[rank], **executor, losses);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// A rank with a GPU, from ChooseCollectives to its end, in the order of a rank's life.
struct GpuRank {
  int rank = 0;
  Collectives& host;
  SimulatedGpu& device;
  SimulatedCommunication& queues;
  RankTalk& talk;
  Executor& executor;
};

struct Gpus {
  std::vector<GpuId> ids = {{1, 1}, {1, 2}};
  bool may_be_shared = false;
  Slow slow = Slow::kCommunication;
  absl::Duration timeout = kTimeout;        // Of messages of the transport.
  absl::Duration watch_timeout = kTimeout;  // Of calls on the device.
  absl::Duration patience = kTimeout;       // With the device.
  std::vector<StatusBlock*> status = {nullptr, nullptr};
};

void RunOnGpus(const Programs& programs, const Gpus& gpus, const std::function<void(GpuRank)>& body) {
  auto transports = MakeInProcessTransports(2, gpus.timeout), hosts = MakeInProcessTransports(2, kTimeout);
  const NaiveKernels kernels;
  std::barrier ended(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Collectives host(rank, 2);
      host.Connect(hosts[rank].get());
      auto communication = std::make_unique<SimulatedCommunication>(transports[rank].get(), gpus.slow,
                                                                    gpus.watch_timeout, gpus.status[rank]);
      SimulatedCommunication& queues = *communication;
      SimulatedGpu device(&kernels, &queues);
      RankGpu gpu;
      gpu.device = &device;
      gpu.id = [&] { return gpus.ids[rank]; };
      gpu.make_communication = [&]() -> absl::StatusOr<std::unique_ptr<Communication>> {
        return std::move(communication);
      };
      RankTalkOptions talk_options{&host, gpus.watch_timeout, gpus.status[rank]};
      talk_options.may_share_gpu = gpus.may_be_shared;
      auto talk = ChooseCollectives(talk_options, gpu);
      ASSERT_TRUE(talk.ok()) << talk.status();
      auto watch = DeviceWatch::Create(&device, {gpus.patience, [&talk] { return (*talk->queue).Progress(); },
                                                 [](const absl::Status& error) { ADD_FAILURE() << error; }});
      ASSERT_TRUE(watch.ok()) << watch.status();
      ExecutorOptions options = OptionsOf(programs[rank], rank, &device, talk->queue.get());
      options.watch = watch->get();
      auto executor = Executor::Create(options);
      ASSERT_TRUE(executor.ok()) << executor.status();
      ASSERT_EQ(talk->queue->Open(), absl::OkStatus());
      ASSERT_EQ((*executor)->WarmUp(), absl::OkStatus());
      EXPECT_FALSE((*executor)->Output("loss").ok());  // No step has been.
      FillStates(programs[rank], rank, **executor);
      body({rank, host, device, queues, *talk, **executor});
      executor->reset();
      ended.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void ExpectAsOnHosts(const Programs& programs, const Gpus& gpus, const std::string& detour) {
  const std::vector<Result> want = RunOnHosts(programs);
  RunOnGpus(programs, gpus, [&](GpuRank rank) {
    EXPECT_EQ(rank.talk.queue->is_on_device(), detour.empty());
    EXPECT_EQ(rank.talk.detour, detour);
    std::vector<double> losses;
    const auto finish = [&] {
      ASSERT_EQ(rank.executor.Finish(), absl::OkStatus());
      if (rank.executor.Output("loss").ok()) losses.push_back(*rank.executor.Output("loss"));
    };
    for (int step = 0; step < kSteps; ++step) {
      const std::vector<float> x = InputOf(rank.rank, step);
      ASSERT_EQ(rank.executor.Launch({{x.data()}}), absl::OkStatus());
      if (rank.executor.num_in_flight() == Executor::kMaxInFlight) finish();
    }
    while (rank.executor.num_in_flight() > 0) finish();
    EXPECT_EQ(TakeResult(programs[rank.rank], rank.executor, losses), want[rank.rank]) << "rank " << rank.rank;
    EXPECT_GT(rank.device.num_replays(), 0);
  });
}

TEST(ChooseCollectives, EachRankOnAGpuOfItsOwn) {
  for (const Slow slow : {Slow::kCompute, Slow::kCommunication, Slow::kCopies}) {
    Gpus gpus;
    gpus.slow = slow;
    ExpectAsOnHosts(Sharded(), gpus, "");
    ExpectAsOnHosts(Staged(), gpus, "");
  }
}

TEST(ChooseCollectives, RanksOnOneGpuGoByWayOfTheHostAndSaySo) {
  Gpus gpus;
  gpus.ids = {{1, 1}, {1, 1}};
  const std::string detour =
      "ranks 0 and 1 run on one GPU, which NCCL refuses: collectives go by way of the host's memory, right but slow; "
      "give each rank a GPU of its own";
  ExpectAsOnHosts(Sharded(), gpus, detour);
  ExpectAsOnHosts(Staged(), gpus, detour);
  gpus.may_be_shared = true;  // Of whom NCCL has been told something else.
  ExpectAsOnHosts(Sharded(), gpus, "");
}

// The batch is copied before what takes it, and the outputs behind everything.
void ExpectCopies(const StepTimes& times, bool has_outputs) {
  using Direction = StepTimes::Copy::Direction;
  ASSERT_EQ(times.copies.size(), has_outputs ? 2u : 1u);
  const StepTimes::Copy& up = times.copies[0];
  EXPECT_EQ(up.direction, Direction::kToDevice);
  EXPECT_EQ(up.names, "x");
  EXPECT_EQ(up.bytes, 64);  // 16, and what aligns the next.
  EXPECT_LT(up.begin, up.end);
  EXPECT_LE(up.begin, times.instructions.front().begin);
  if (!has_outputs) return;
  const StepTimes::Copy& down = times.copies[1];
  EXPECT_EQ(down.direction, Direction::kToHost);
  EXPECT_EQ(down.names, "loss");
  EXPECT_EQ(down.bytes, 8);
  EXPECT_LT(down.begin, down.end);
  EXPECT_GE(down.begin, times.instructions.back().end);
}

// A step with a timer gives what others give. Its collectives and messages lie within it, each between the instruction
// before it and the wait for it. Steps without set no marks, and a second one with none that are new.
void ExpectTimes(const Programs& programs, Slow slow) {
  const std::vector<Result> want = RunOnHosts(programs);
  Gpus gpus;
  gpus.slow = slow;
  RunOnGpus(programs, gpus, [&](GpuRank rank) {
    using Role = StepTimes::Role;
    StepTimer timer(&rank.device, rank.talk.queue.get());
    std::vector<double> losses;
    int num_marks = 0;
    for (int step = 0; step < kSteps; ++step) {
      const bool is_timed = step % 2 == 1;
      const int64_t num_replays = rank.device.num_replays();
      rank.executor.SetTimer(is_timed ? &timer : nullptr);
      const std::vector<float> x = InputOf(rank.rank, step);
      ASSERT_EQ(rank.executor.RunStep({{x.data()}}), absl::OkStatus());
      if (rank.executor.Output("loss").ok()) losses.push_back(*rank.executor.Output("loss"));
      if (!is_timed || num_marks > 0) {
        EXPECT_EQ(rank.queues.num_timed_marks(), num_marks);
      }
      if (!is_timed) continue;
      EXPECT_EQ(rank.device.num_replays(), num_replays);
      const auto times = timer.Take();
      ASSERT_TRUE(times.ok()) << times.status();
      EXPECT_TRUE(times->collectives_on_device);
      size_t num_started = 0, num_ended = 0;
      double before = times->instructions.front().begin;
      for (const StepTimes::Instruction& instruction : times->instructions) {
        const bool starts = instruction.role == Role::kStarts || instruction.role == Role::kCommunicates;
        const bool waits = instruction.role == Role::kWaits || instruction.role == Role::kCommunicates;
        if (starts) {
          ASSERT_LT(num_started, times->collectives.size());
          EXPECT_GE(times->collectives[num_started].begin, before);
          EXPECT_GT(times->collectives[num_started].end, times->collectives[num_started].begin);
          ++num_started;
        }
        // These programs wait in the order in which they start.
        if (waits) {
          ASSERT_LT(num_ended, num_started);
          EXPECT_LE(times->collectives[num_ended++].end, instruction.end);
        }
        EXPECT_GE(instruction.begin, before);
        EXPECT_GE(instruction.end, instruction.begin);
        before = instruction.end;
      }
      EXPECT_GT(num_started, 0u);
      EXPECT_EQ(num_started, num_ended);
      ExpectCopies(*times, rank.executor.Output("loss").ok());
      EXPECT_EQ(num_started, times->collectives.size());
      num_marks = 2 * static_cast<int>(num_started);
      EXPECT_EQ(rank.queues.num_timed_marks(), num_marks);
    }
    EXPECT_EQ(TakeResult(programs[rank.rank], rank.executor, losses), want[rank.rank]) << "rank " << rank.rank;
  });
}

TEST(ChooseCollectives, ATimedStepKnowsWhenItsCollectivesRan) {
  for (const Slow slow : {Slow::kCompute, Slow::kCommunication, Slow::kCopies}) {
    ExpectTimes(Sharded(), slow);
    ExpectTimes(Staged(), slow);
  }
}

// All ranks of a world get the error that one has.
TEST(ChooseCollectives, AnErrorOfOneRankIsEverybodys) {
  for (const bool has_id : {false, true}) {
    auto transports = MakeInProcessTransports(2, kTimeout);
    std::vector<absl::Status> statuses(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        Collectives host(rank, 2);
        host.Connect(transports[rank].get());
        RankGpu gpu;
        gpu.id = [&]() -> absl::StatusOr<GpuId> {
          if (rank == 1 && !has_id) return absl::AbortedError("no GPU");
          return GpuId{1, static_cast<uint64_t>(rank)};
        };
        gpu.make_communication = [&]() -> absl::StatusOr<std::unique_ptr<Communication>> {
          if (rank == 1) return absl::AbortedError("no NCCL");
          return std::make_unique<SimulatedCommunication>(transports[rank].get(), Slow::kNone);
        };
        statuses[rank] = ChooseCollectives({&host, kTimeout, nullptr}, gpu).status();
      });
    }
    for (std::thread& thread : threads) thread.join();
    const absl::Status want = absl::AbortedError(has_id ? "rank 1: no NCCL" : "rank 1: no GPU");
    EXPECT_EQ(statuses, (std::vector<absl::Status>{want, want}));
  }
}

// Rank 1 does not come to the third step, which is replayed: rank 0's wait ends, with the ranks that it waited for; its
// status block shows where; the talk has been aborted, and nothing more can be started. That is not its device's fault.
TEST(ChooseCollectives, ARankThatDoesNotComeIsNamedAndTheWaitEnds) {
  auto block = StatusBlock::Create(absl::StrCat("/tacc-choose-collectives-", getpid()), 1);
  ASSERT_TRUE(block.ok()) << block.status();
  Gpus gpus;
  gpus.watch_timeout = absl::Seconds(2);
  gpus.patience = absl::Seconds(1);
  gpus.timeout = absl::Milliseconds(50);
  gpus.slow = Slow::kNone;
  gpus.status = {block->get(), nullptr};
  RunOnGpus(Sharded(), gpus, [&](GpuRank rank) {
    const std::vector<float> x = InputOf(rank.rank, 0);
    for (int step = 0; step < 2; ++step) ASSERT_EQ(rank.executor.RunStep({{x.data()}}), absl::OkStatus());
    if (rank.rank == 1) {
      EXPECT_EQ(rank.talk.queue->Check(), absl::OkStatus());
      return;
    }
    EXPECT_EQ(rank.queues.num_aborts(), 0);
    const int64_t num_replays = rank.device.num_replays();
    ASSERT_EQ(rank.executor.Launch({{x.data()}}), absl::OkStatus());
    EXPECT_GT(rank.device.num_replays(), num_replays);
    const absl::Status want =
        absl::UnavailableError("rank 0 waits for an all-gather with rank 1 (8 bytes) and had no answer for 2s");
    EXPECT_EQ(rank.executor.Finish(), want);
    const RankStatus status = (*block)->Sample();
    EXPECT_EQ(status.call, 0);
    EXPECT_EQ(status.node, 1);  // The gather.
    EXPECT_EQ(status.activity, Activity::kInCollective);
    EXPECT_EQ(rank.queues.num_aborts(), 1);
    EXPECT_EQ(rank.talk.queue->Check(), want);
  });
}

}  // namespace
}  // namespace tacc::worker
