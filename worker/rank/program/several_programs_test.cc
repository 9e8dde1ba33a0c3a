// Programs for batches of several lengths on one memory.
#include <string>

#include "absl/strings/str_replace.h"
#include "graph/ir/text.h"
#include "gtest/gtest.h"
#include "worker/rank/device/arena.h"
#include "worker/rank/device/host_device.h"
#include "worker/rank/program/executor.h"
#include "worker/rank/testing/naive_kernels.h"
#include "worker/rank/testing/simulated_device.h"

namespace tacc::worker {
namespace {

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

// The same for batches of two rows.
std::string PlannedForLonger() {
  return absl::StrReplaceAll(
      kPlanned, {{"input \"x\" : f32[4] of f32[4] shard=[-] at=64",
                  "input \"x\" : f32[2,4] of f32[2,4] shard=[-,-] at=64\n"
                  "  %s.4 = reduce_sum %x.1 dims=[0] : f32[4] of f32[4] shard=[-] at=128"},
                 {"add %w.0, %x.1", "add %w.0, %s.4"},
                 {"%n.2 dims=[0] : f32[] of f32[] shard=[] at=128", "%n.2 dims=[0] : f32[] of f32[] shard=[] at=64"}});
}

TEST(Executor, ProgramsForOtherBatchesWorkOnTheSameStates) {
  const auto program = graph::ParseProgram(kPlanned, {}), longer = graph::ParseProgram(PlannedForLonger(), {});
  ASSERT_TRUE(longer.ok()) << longer.status();
  const float a[8] = {1, 2, 3, 4, 100, 200, 300, 400}, b[4] = {10, 20, 30, 40};
  for (const bool on_host : {true, false}) {
    const NaiveKernels kernels;
    HostDevice host(&kernels);
    SimulatedDevice simulated(&kernels);
    Device& device = on_host ? static_cast<Device&>(host) : simulated;
    auto arena = device.CreateArena(program->arena_bytes, program->workspace_bytes);
    ASSERT_TRUE(arena.ok()) << arena.status();
    ExecutorOptions options;
    options.program = &*program;
    options.others = {&*longer};
    options.device = &device;
    options.arena = arena->get();
    auto executor = Executor::Create(options);
    ASSERT_TRUE(executor.ok()) << executor.status();
    EXPECT_EQ((*executor)->inputs(1)[0].value.type.dims, (graph::Dims{2, 4}));
    EXPECT_EQ((*executor)->WhyNotMixed(), "");
    char* const place = (*executor)->state("weights/w").as<char>();
    const auto first_weight = [&] {
      float w[4] = {};
      device.Download(Flat(place, sizeof(w)), w);
      EXPECT_TRUE(device.Synchronize().ok());
      return w[0];
    };
    // Three times: an asynchronous device replays the last one.
    for (int step = 1; step <= 3; ++step) {
      const float ones[4] = {1, 1, 1, 1};
      device.Upload(ones, Flat(place, sizeof(ones)));
      ASSERT_TRUE(device.Synchronize().ok());
      ASSERT_TRUE((*executor)->Launch({{a}, {b}}, {1, 0}).ok());
      ASSERT_TRUE((*executor)->Finish().ok());
      EXPECT_EQ(first_weight(), 1.0f + 10 + 1010);  // The kernels here sum over all dims.
      EXPECT_EQ(*(*executor)->Output("loss"), 4 + 100 + 1010);
    }
    ASSERT_TRUE((*executor)->RunStep({{b}, {a}}).ok());
    EXPECT_EQ(first_weight(), 1021.0f + 1 + 10);
  }
}

TEST(Executor, ProgramsForOtherBatchesMustHaveTheSameStatesAndCalls) {
  struct Case {
    const char* from;
    const char* to;
    const char* message;
  };
  const Case cases[] = {
      {"stored=[4] at=0", "stored=[4] at=16", "state weights/w of a program for other batches lies at another place"},
      {"state \"weights/w\"", "state \"weights/v\"",
       "state weights/v of a program for other batches is not that of the first one"},
      {"call update micro_batch=1", "call update micro_batch=2",
       "a program for other batches has another mesh, stage or other calls"},
      {"input \"x\"", "input \"y\"",
       "graph update, node 1 (input): a program for other batches has an input \"y\" that the first one has not"},
  };
  const auto program = graph::ParseProgram(kPlanned, {});
  const NaiveKernels kernels;
  HostDevice device(&kernels);
  auto arena = Arena::Create(program->arena_bytes, program->workspace_bytes);
  for (const Case& c : cases) {
    const auto longer = graph::ParseProgram(absl::StrReplaceAll(PlannedForLonger(), {{c.from, c.to}}), {});
    ASSERT_TRUE(longer.ok()) << longer.status();
    ExecutorOptions options;
    options.program = &*program;
    options.others = {&*longer};
    options.device = &device;
    options.arena = arena->get();
    EXPECT_EQ(Executor::Create(options).status().message(), c.message);
  }
}

}  // namespace
}  // namespace tacc::worker
