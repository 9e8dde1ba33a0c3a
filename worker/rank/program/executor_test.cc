#include "worker/rank/program/executor.h"

#include <cmath>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "graph/ir/text.h"
#include "gtest/gtest.h"
#include "worker/rank/device/host_device.h"
#include "worker/rank/testing/in_process_transport.h"
#include "worker/rank/testing/naive_kernels.h"
#include "worker/rank/testing/simulated_device.h"

namespace tacc::worker {
namespace {

// One linear layer trained by gradient descent on 4 rows: y = x w', loss = sum (y - t)^2. $LOCAL_B rows and $LOCAL_O
// (uneven) rows of w a rank.
constexpr char kSharded[] = R"(tacc.program 1 partitioned
mesh fsdp=2
stage 0 of 1
state "weights/w" : f32[3,3] of f32[5,3] shard=[fsdp,-] kind=weight init=ones stored=[5,3]
state "gradients/w" : f32[3,3] of f32[5,3] shard=[fsdp,-] kind=gradient init=zeros
state "counters/loss" : f32[] of f32[] shard=[] pending=[fsdp] kind=counter init=zeros
graph forward_backward {
  %w = read "weights/w" : f32[3,3] of f32[5,3] shard=[fsdp,-]
  %s = all_gather %w async=true dim=0 over=[fsdp] : f32[5,3] of f32[5,3] shard=[-,-] @layer
  %x = input "x" : f32[2,3] of f32[4,3] shard=[fsdp,-]
  %t = input "t" : f32[2,5] of f32[4,5] shard=[fsdp,-]
  %g = wait %s : f32[5,3] of f32[5,3] shard=[-,-] @layer
  %y = einsum %x, %g spec="bi,oi->bo" : f32[2,5] of f32[4,5] shard=[fsdp,-] @layer
  %d = sub %y, %t : f32[2,5] of f32[4,5] shard=[fsdp,-]
  %q = mul %d, %d : f32[2,5] of f32[4,5] shard=[fsdp,-]
  %l = reduce_sum %q dims=[0,1] : f32[] of f32[] shard=[] pending=[fsdp]
  store "counters/loss" %l
  %dw = einsum %d, %x spec="bo,bi->oi" : f32[5,3] of f32[5,3] shard=[-,-] pending=[fsdp] @layer
  %r = reduce_scatter %dw dim=0 over=[fsdp] : f32[3,3] of f32[5,3] shard=[fsdp,-] @layer
  store "gradients/w" %r
}
graph update {
  %w = read "weights/w" : f32[3,3] of f32[5,3] shard=[fsdp,-]
  %g = read "gradients/w" : f32[3,3] of f32[5,3] shard=[fsdp,-]
  %p = read "counters/loss" : f32[] of f32[] shard=[] pending=[fsdp]
  %l = all_reduce %p over=[fsdp] : f32[] of f32[] shard=[]
  %c = scale %g factor=0.05 : f32[3,3] of f32[5,3] shard=[fsdp,-]
  %n = sub %w, %c : f32[3,3] of f32[5,3] shard=[fsdp,-]
  store "weights/w" %n
  output "loss" %l
}
step {
  call forward_backward micro_batch=0
  call update micro_batch=0
}
)";

std::string Whole() {
  return absl::StrReplaceAll(kSharded, {{"fsdp=2", "fsdp=1"},
                                        {"f32[3,3] of", "f32[5,3] of"},
                                        {"f32[2,3] of", "f32[4,3] of"},
                                        {"f32[2,5] of", "f32[4,5] of"}});
}

std::vector<int> AliasOf(const graph::Graph&, const graph::Node& node) {
  return node.op == graph::Op::kWait || node.op == "reshape" ? std::vector<int>{0} : std::vector<int>();
}

struct Result {
  std::vector<double> losses;
  std::vector<float> weights;  // Logical.
};

std::vector<float> Values(int64_t n, int salt) {
  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>((i * 37 + salt * 11) % 17) / 17 - 0.4f;
  return values;
}

// Trains `steps` steps on every rank of the program's mesh.
Result TrainLayer(const std::string& text, int steps) {
  const auto program = graph::ParseProgram(text, {});
  EXPECT_TRUE(program.ok()) << program.status();
  const int world = static_cast<int>(program->mesh.num_ranks());
  const std::vector<float> x = Values(4 * 3, 1), t = Values(4 * 5, 2), w = Values(5 * 3, 3);
  Result result;
  result.weights.resize(5 * 3);
  auto transports = MakeInProcessTransports(world, absl::Seconds(20));
  const NaiveKernels kernels;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      Collectives collectives(rank, world);
      HostDevice device(&kernels);
      collectives.Connect(transports[rank].get());
      ExecutorOptions options;
      options.program = &*program;
      options.rank = rank;
      options.device = &device;
      options.aliases = AliasOf;
      options.collectives = &collectives;
      auto executor = Executor::Create(options);
      ASSERT_TRUE(executor.ok()) << executor.status();
      ASSERT_EQ((*executor)->inputs().size(), 2u);
      const int64_t rows = 4 / world, first_w = rank * ((5 + world - 1) / world);
      float* weights = (*executor)->state("weights/w").as<float>();
      const int64_t mine = std::min<int64_t>(5 - first_w, (5 + world - 1) / world) * 3;
      std::copy_n(w.data() + first_w * 3, mine, weights);
      // Padding has no defined value.
      for (int64_t i = mine; i < (*executor)->state("weights/w").size(); ++i) weights[i] = NAN;
      for (int step = 0; step < steps; ++step) {
        ASSERT_TRUE((*executor)->RunStep({{x.data() + rank * rows * 3, t.data() + rank * rows * 5}}).ok());
        if (rank == 0) result.losses.push_back(*(*executor)->Output("loss"));
      }
      std::copy_n(weights, mine, result.weights.data() + first_w * 3);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return result;
}

TEST(Executor, TwoRanksTrainAsOne) {
  const Result one = TrainLayer(Whole(), 20), two = TrainLayer(kSharded, 20);
  ASSERT_EQ(two.losses.size(), 20u);
  EXPECT_LT(two.losses.back(), 0.9 * two.losses.front());
  // Sums over the batch are cut at another place: a few units in the last place.
  for (int i = 0; i < 20; ++i) EXPECT_NEAR(two.losses[i], one.losses[i], 1e-6 * std::abs(one.losses[i]) + 1e-7);
  for (size_t i = 0; i < one.weights.size(); ++i) EXPECT_NEAR(two.weights[i], one.weights[i], 1e-6);
}

TEST(Executor, RunsAreRepeatable) {
  const Result a = TrainLayer(kSharded, 5), b = TrainLayer(kSharded, 5);
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.weights, b.weights);
}

// A planned program: states and values at offsets; the store of a value that lies at its state's place costs nothing.
constexpr char kPlanned[] = R"(tacc.program 1 planned
mesh fsdp=1
stage 0 of 1
arena bytes=192 workspace=64
state "weights/w" : f32[4] of f32[4] shard=[-] kind=weight init=ones stored=[4] at=0
graph update {
  %w.0 = read "weights/w" : f32[4] of f32[4] shard=[-] at=0
  %x.1 = input "x" : f32[4] of f32[4] shard=[-] at=64
  %n.2 = add %w.0, %x.1 : f32[4] of f32[4] shard=[-] at=0
  %l.3 = reduce_sum %n.2 dims=[0] : f32[] of f32[] shard=[] at=128
  store "weights/w" %n.2
  output "loss" %l.3
}
step {
  call update micro_batch=1
  call update micro_batch=0
}
)";

absl::StatusOr<std::unique_ptr<Executor>> MakePlanned(const graph::Program& program, Arena* arena, Device* device) {
  ExecutorOptions options;
  options.program = &program;
  options.device = device;
  options.arena = arena;
  return Executor::Create(options);
}

TEST(Executor, PlannedProgramStaysInItsArena) {
  const auto program = graph::ParseProgram(kPlanned, {});
  ASSERT_TRUE(program.ok()) << program.status();
  auto arena = Arena::Create(program->arena_bytes, program->workspace_bytes);
  ASSERT_TRUE(arena.ok()) << arena.status();
  (*arena)->Poison();
  const NaiveKernels kernels;
  HostDevice device(&kernels);
  auto executor = MakePlanned(*program, arena->get(), &device);
  ASSERT_TRUE(executor.ok()) << executor.status();
  EXPECT_EQ((*executor)->num_micro_batches(), 2);
  float* w = (*executor)->state("weights/w").as<float>();
  EXPECT_EQ(reinterpret_cast<char*>(w), (*arena)->data());
  std::fill(w, w + 4, 1.0f);
  const float a[4] = {1, 2, 3, 4}, b[4] = {10, 20, 30, 40};
  StepTimer timer(&device, nullptr);
  (*executor)->SetTimer(&timer);
  ASSERT_TRUE((*executor)->RunStep({{b}, {a}}).ok());
  EXPECT_EQ(w[3], 45.0f);
  EXPECT_EQ(*(*executor)->Output("loss"), 4 + 10 + 100);
  EXPECT_EQ((*arena)->HighestTouched(), 132);
  EXPECT_FALSE((*executor)->Output("grad_norm").ok());
  const auto times = timer.Take();
  ASSERT_TRUE(times.ok()) << times.status();
  std::vector<std::string> timed;
  for (const StepTimes::Instruction& instruction : times->instructions)
    timed.push_back(absl::StrCat(instruction.call, " ", program->graphs[0].nodes[instruction.node].op.name()));
  EXPECT_TRUE(times->copies.empty());
  // Neither read nor store is work.
  EXPECT_EQ(timed, (std::vector<std::string>{"0 input", "0 add", "0 reduce_sum", "0 output", "1 input", "1 add",
                                             "1 reduce_sum", "1 output"}));
}

TEST(Executor, ProgramsThatDoNotFitAreRefused) {
  struct Case {
    const char* from;
    const char* to;
    const char* message;
  };
  const Case cases[] = {
      {"read \"weights/w\"", "read \"weights/v\"", "graph update, node 0 (read): no state is named \"weights/v\""},
      {"shard=[-] at=64", "shard=[-] at=184",
       "graph update, node 1 (input): offset 184 of 16 bytes is not inside the arena of 192 bytes"},
      {"add %w.0", "silu %w.0", "graph update, node 2 (silu): no kernel for silu"},
      {"f32[] of f32[] shard=[] at=128", "f32[] of f32[] shard=[] pending=[fsdp] at=128",
       "graph update, node 5 (output): output \"loss\" is a pending sum; it must be reduced first"},
      {"call update micro_batch=1", "call eval micro_batch=1",
       "a call names the graph 'eval', which the program does not have"},
  };
  const NaiveKernels kernels;
  HostDevice device(&kernels);
  for (const Case& c : cases) {
    const auto program = graph::ParseProgram(absl::StrReplaceAll(kPlanned, {{c.from, c.to}}), {});
    ASSERT_TRUE(program.ok()) << program.status();
    auto arena = Arena::Create(program->arena_bytes, program->workspace_bytes);
    ASSERT_TRUE(arena.ok());
    const auto executor = MakePlanned(*program, arena->get(), &device);
    EXPECT_EQ(executor.status().message(), c.message);
  }
}

TEST(Executor, AKernelThatThrowsNamesItsNode) {
  class Throwing : public KernelTable {
    absl::StatusOr<Kernel> Prepare(const KernelRequest& request) const override {
      return Kernel([] { throw std::runtime_error("no luck"); });
    }
  };
  const auto program = graph::ParseProgram(kPlanned, {});
  ASSERT_TRUE(program.ok());
  auto arena = Arena::Create(program->arena_bytes, program->workspace_bytes);
  const Throwing kernels;
  HostDevice device(&kernels);
  auto executor = MakePlanned(*program, arena->get(), &device);
  ASSERT_TRUE(executor.ok());
  const float x[4] = {};
  EXPECT_EQ((*executor)->RunStep({{x}, {x}}).message(), "graph update, node 2 (add): no luck");
}

// Adds that follow each other are one call, which reads a constant that it has put on the device: their number.
TEST(Executor, NodesInARowMayBecomeOneCall) {
  class Joining : public KernelTable {
   public:
    absl::StatusOr<Kernel> Prepare(const KernelRequest& request) const override { return naive_.Prepare(request); }
    absl::StatusOr<Joint> PrepareFirst(absl::Span<const KernelRequest> requests,
                                       const KeepOnDevice& keep) const override {
      if (requests.front().node->op != "add") return KernelTable::PrepareFirst(requests, keep);
      std::vector<Kernel> kernels;
      for (const KernelRequest& request : requests.first(std::min<size_t>(requests.size(), 2)))
        kernels.push_back(*Prepare(request));
      const auto count = static_cast<char>(kernels.size());
      absl::StatusOr<const void*> kept = keep({count});
      if (!kept.ok()) return kept.status();
      EXPECT_EQ(reinterpret_cast<uintptr_t>(*kept) % 64, 0u);
      const auto run = [this, kernels, count, kept = static_cast<const char*>(*kept)] {
        EXPECT_EQ(*kept, count);
        ++num_calls;
        for (const Kernel& kernel : kernels) kernel();
      };
      return Joint{run, kernels.size()};
    }

    mutable int num_calls = 0;

   private:
    const NaiveKernels naive_;
  };
  const auto program = graph::ParseProgram(R"(tacc.program 1 planned
mesh fsdp=1
stage 0 of 1
arena bytes=640 workspace=0
state "weights/w" : f32[4] of f32[4] shard=[-] kind=weight init=ones stored=[4] at=0
graph g {
  %x = input "x" : f32[4] of f32[4] shard=[-] at=64
  %w = read "weights/w" : f32[4] of f32[4] shard=[-] at=0
  %a = add %x, %x : f32[4] of f32[4] shard=[-] at=128
  %b = add %a, %x : f32[4] of f32[4] shard=[-] at=192
  %c = add %b, %w : f32[4] of f32[4] shard=[-] at=0
  store "weights/w" %c
  %d = mul %c, %a : f32[4] of f32[4] shard=[-] at=256
  %e = add %d, %x : f32[4] of f32[4] shard=[-] at=320
  %l = reduce_sum %e dims=[0] : f32[] of f32[] shard=[] at=384
  output "loss" %l
}
step {
  call g micro_batch=0
}
)",
                                           {});
  ASSERT_TRUE(program.ok()) << program.status();
  const Joining kernels;
  SimulatedDevice device(&kernels);
  const auto arena = device.CreateArena(program->arena_bytes, program->workspace_bytes);
  ASSERT_TRUE(arena.ok()) << arena.status();
  const auto executor = MakePlanned(*program, arena->get(), &device);
  ASSERT_TRUE(executor.ok()) << executor.status();
  const float x[4] = {1, 2, 3, 4};
  double w = 0, wanted = 0;  // Of the step: w grows by 3 x, the loss is the sum of w 2 x + x.
  for (int step = 0; step < 3; ++step) {
    ASSERT_TRUE((*executor)->RunStep({{x}}).ok());
    wanted = 0;
    ++w;
    for (float value : x) wanted += 3 * w * value * 2 * value + value;
    EXPECT_EQ((*executor)->Output("loss").value_or(0), wanted) << step;
  }
  // Two of the first three, the third one, the last one.
  EXPECT_EQ(kernels.num_calls, 3 * 3);
}

// Padded rows are cleared, a slice of a whole value is the rank's own part.
TEST(Executor, MaskPaddingAndShardSlice) {
  const auto program = graph::ParseProgram(R"(tacc.program 1 partitioned
mesh fsdp=2
stage 0 of 1
state "weights/a" : f32[3,2] of f32[5,2] shard=[fsdp,-] kind=weight init=ones stored=[5,2]
state "weights/b" : f32[3,2] of f32[5,2] shard=[fsdp,-] kind=weight init=ones stored=[5,2]
graph g {
  %x = input "x" : f32[5,2] of f32[5,2] shard=[-,-]
  %s = shard_slice %x over=[fsdp] dim=0 : f32[3,2] of f32[5,2] shard=[fsdp,-]
  store "weights/a" %s
  %m = mask_padding %s : f32[3,2] of f32[5,2] shard=[fsdp,-]
  store "weights/b" %m
}
step {
  call g micro_batch=0
}
)",
                                           {});
  ASSERT_TRUE(program.ok()) << program.status();
  const NaiveKernels kernels;
  HostDevice device(&kernels);
  ExecutorOptions options;
  options.program = &*program;
  options.rank = 1;
  options.device = &device;
  auto executor = Executor::Create(options);
  ASSERT_TRUE(executor.ok()) << executor.status();
  const float x[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  float* b = (*executor)->state("weights/b").as<float>();
  std::fill(b, b + 6, 7.0f);
  ASSERT_TRUE((*executor)->RunStep({{x}}).ok());
  EXPECT_EQ(std::vector<float>(b, b + 6), (std::vector<float>{6, 7, 8, 9, 0, 0}));
  EXPECT_EQ((*executor)->state("weights/a").as<float>()[3], 9.0f);
}

// Collectives that are nothing but a piece of work each time that they are started or waited for.
class Talk : public CollectiveQueue {
 public:
  Talk(Device* device, graph::TalkPlace place) : device_(*device), place_(place) {}
  absl::Status Prepare(const CollectiveCall*) override { return absl::OkStatus(); }
  absl::StatusOr<Ticket> Start(const CollectiveCall*) override {
    device_.Clear({});
    return 0;
  }
  absl::Status Wait(Ticket) override { return Start(nullptr).status(); }
  absl::Status Finish(const CollectiveCall&, Ticket) override { return Start(nullptr).status(); }
  absl::Status Run(const CollectiveCall&) override { return Start(nullptr).status(); }
  absl::Status StartTiming() override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<CollectiveTime>> TakeTimes(const DeviceClock&) override {
    return absl::UnimplementedError("nothing takes time");
  }
  bool is_on_device() const override { return place_ == graph::TalkPlace::kDevice; }

 private:
  Device& device_;
  const graph::TalkPlace place_;
};

// Collectives on the device are recorded; messages are not, nor what a recording would have to end in another. The
// device is busy but where it waits for messages or the host.
TEST(Executor, CollectivesOnTheDeviceAreRecordedButNotMessages) {
  const auto program = graph::ParseProgram(R"(tacc.program 1 partitioned
mesh fsdp=2 pp=2
stage 0 of 2
state "weights/w" : f32[2] of f32[4] shard=[fsdp] kind=weight init=ones stored=[4]
state "weights/v" : f32[4] of f32[4] shard=[-] kind=weight init=ones stored=[4]
state "stashes/a" : f32[4] of f32[4] shard=[-] kind=stash init=zeros
graph g {
  %w = read "weights/w" : f32[2] of f32[4] shard=[fsdp]
  %a = all_gather %w async=true dim=0 over=[fsdp] : f32[4] of f32[4] shard=[-]
  %b = wait %a : f32[4] of f32[4] shard=[-]
  store "stashes/a" %b
  send "stashes/a" channel=0 to=1
  %c = neg %b : f32[4] of f32[4] shard=[-]
  %d = all_gather %w async=true dim=0 over=[fsdp] : f32[4] of f32[4] shard=[-]
  %e = neg %c : f32[4] of f32[4] shard=[-]
  finish "stashes/a" channel=0
  %f = wait %d : f32[4] of f32[4] shard=[-]
  store "weights/v" %f
}
step {
  call g micro_batch=0
}
)",
                                           {});
  ASSERT_TRUE(program.ok()) << program.status();
  class Nothing : public KernelTable {
    absl::StatusOr<Kernel> Prepare(const KernelRequest&) const override {
      return Kernel([] {});
    }
  };
  const Nothing kernels;
  ExecutorOptions options;
  options.program = &*program;
  options.aliases = [](const graph::Graph&, const graph::Node& node) {
    return node.op == graph::Op::kWait ? std::vector<int>{0} : std::vector<int>();
  };
  for (const graph::TalkPlace place : {graph::TalkPlace::kDevice, graph::TalkPlace::kHost}) {
    const bool on_device = place == graph::TalkPlace::kDevice;
    SimulatedDevice device(&kernels);
    Talk talk(&device, place);
    options.device = &device;
    options.collectives = &talk;
    const auto executor = Executor::Create(options);
    ASSERT_TRUE(executor.ok()) << executor.status();
    EXPECT_EQ((*executor)->Parts(), graph::CapturePlan(*program, place));
    EXPECT_FALSE((*executor)->busy_seconds().has_value());
    for (int64_t step = 0; step < 3; ++step) {
      ASSERT_TRUE((*executor)->RunStep({{}}).ok());
      // From the second step on: the line up to the send, and a kernel; or two kernels.
      EXPECT_EQ(device.num_replays(), 2 * step);
      EXPECT_EQ((*executor)->num_replays(), step == 0 ? 0 : 2);
      // All but the finish; or two kernels and three copies.
      EXPECT_DOUBLE_EQ((*executor)->busy_seconds().value_or(0), (on_device ? 10 : 5) * SimulatedDevice::kPieceSeconds);
    }
  }
}

}  // namespace
}  // namespace tacc::worker
