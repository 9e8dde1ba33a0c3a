#include "worker/rank/program/device_watch.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "graph/ir/text.h"
#include "gtest/gtest.h"
#include "worker/rank/program/executor.h"
#include "worker/rank/testing/naive_kernels.h"
#include "worker/rank/testing/simulated_device.h"

namespace tacc::worker {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);

// What a watch says, and when.
class Listener {
 public:
  std::function<void(const absl::Status&)> callback() {
    return [this](const absl::Status& error) {
      error_ = error;
      stopped_.Notify();
    };
  }
  bool has_heard() const { return stopped_.HasBeenNotified(); }
  // Waits for it.
  absl::Status error() const { return stopped_.WaitForNotificationWithTimeout(kLong) ? error_ : absl::OkStatus(); }

 private:
  absl::Status error_;
  absl::Notification stopped_;
};

// Runs the steps of this program; the sum of micro-batch 0 does not end in step `endless` until the watch has spoken.
constexpr char kProgram[] = R"(tacc.program 1 planned
mesh fsdp=1
stage 0 of 1
arena bytes=192 workspace=0
state "weights/w" : f32[4] of f32[4] shard=[-] kind=weight init=ones stored=[4] at=0
graph begin {
  %w.0 = read "weights/w" : f32[4] of f32[4] shard=[-] at=0
  %c.1 = scale %w.0 factor=0.5 : f32[4] of f32[4] shard=[-] at=0 @optimizer
  store "weights/w" %c.1
}
graph forward {
  %w.0 = read "weights/w" : f32[4] of f32[4] shard=[-] at=0
  %x.1 = input "x" : f32[4] of f32[4] shard=[-] at=64
  %n.2 = add %w.0, %x.1 : f32[4] of f32[4] shard=[-] at=0 @layers.0
  %l.3 = reduce_sum %n.2 dims=[0] : f32[] of f32[] shard=[] at=128 @layers.1
  store "weights/w" %n.2
  output "loss" %l.3
}
step {
  call begin micro_batch=0
  call forward micro_batch=0
}
)";

std::string ErrorOfStep(int endless) {
  const auto program = graph::ParseProgram(kProgram, {});
  EXPECT_TRUE(program.ok()) << program.status();
  Listener listener;
  int sums = 0;
  class Endless : public KernelTable {
   public:
    Endless(Listener* listener, int* sums, int endless) : listener_(*listener), sums_(*sums), endless_(endless) {}
    absl::StatusOr<Kernel> Prepare(const KernelRequest& request) const override {
      absl::StatusOr<Kernel> kernel = naive_.Prepare(request);
      if (!kernel.ok() || request.node->op != "reduce_sum") return kernel;
      return Kernel([this, kernel = *std::move(kernel)] {
        kernel();
        if (++sums_ == endless_) (void)listener_.error();
      });
    }

   private:
    const NaiveKernels naive_;
    Listener& listener_;
    int& sums_;
    const int endless_;
  };
  const Endless kernels(&listener, &sums, endless);
  SimulatedDevice device(&kernels);
  const auto arena = device.CreateArena(program->arena_bytes, program->workspace_bytes);
  EXPECT_TRUE(arena.ok()) << arena.status();
  const auto watch = DeviceWatch::Create(&device, {absl::Milliseconds(500), nullptr, listener.callback()});
  EXPECT_TRUE(watch.ok()) << watch.status();
  ExecutorOptions options;
  options.program = &*program;
  options.device = &device;
  options.arena = arena->get();
  options.watch = watch->get();
  const auto executor = Executor::Create(options);
  EXPECT_TRUE(executor.ok()) << executor.status();
  const float x[4] = {1, 2, 3, 4};
  for (int step = 1; step <= endless; ++step) {
    EXPECT_FALSE(listener.has_heard());
    (*watch)->EnterStep(step);
    EXPECT_TRUE((*executor)->RunStep({{x}}).ok());
  }
  EXPECT_TRUE(listener.has_heard());
  return std::string(listener.error().message());
}

TEST(DeviceWatch, NamesTheNodeThatDoesNotEnd) {
  EXPECT_EQ(ErrorOfStep(1),
            "the device has stopped: nothing has ended on it for 500ms; it is in step 1, call 1, graph forward, node 3 "
            "(reduce_sum @layers.1); what ended last is step 1, call 1, graph forward, node 2 (add @layers.0)");
}

TEST(DeviceWatch, NamesTheRecordingThatDoesNotEnd) {
  EXPECT_EQ(ErrorOfStep(2),
            "the device has stopped: nothing has ended on it for 500ms; it is in step 2, call 1, graph forward, nodes "
            "1 to 5, replayed as one (add @layers.0 to reduce_sum @layers.1); what ended last is step 2, call 0, graph "
            "begin, node 1 (scale @optimizer)");
}

class DeviceWatchTest : public testing::Test {
 protected:
  DeviceWatchTest() {
    graph_.name = "g";
    graph_.nodes.emplace_back().op = "add";
  }
  std::unique_ptr<DeviceWatch> Watch(absl::Duration patience) {
    auto watch = DeviceWatch::Create(
        &device_, {patience, [this] { return CollectiveProgress{num_moves, is_under_way}; }, listener_.callback()});
    EXPECT_TRUE(watch.ok()) << watch.status();
    return *std::move(watch);
  }
  DeviceWatch::Piece PieceOf(bool waits) const { return {0, &graph_, 0, 0, waits}; }

  const NaiveKernels kernels_;
  SimulatedDevice device_{&kernels_};  // Does nothing before it is waited for.
  graph::Graph graph_;
  Listener listener_;
  std::atomic<uint64_t> num_moves = 0;
  std::atomic<bool> is_under_way = false;
};

TEST_F(DeviceWatchTest, AnIdleDeviceHasNotStopped) {
  const auto watch = Watch(absl::Milliseconds(50));
  watch->Queued(PieceOf(false));
  ASSERT_TRUE(device_.Synchronize().ok());
  absl::SleepFor(absl::Milliseconds(500));
  EXPECT_FALSE(listener_.has_heard());
}

TEST_F(DeviceWatchTest, WhatOtherRanksTakeIsNotTheDevices) {
  const auto watch = Watch(absl::Milliseconds(50));
  watch->Queued(PieceOf(true));
  absl::SleepFor(absl::Milliseconds(300));
  is_under_way = true;
  watch->Queued(PieceOf(false));
  ASSERT_TRUE(device_.Synchronize().ok());
  watch->Queued(PieceOf(false));
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_FALSE(listener_.has_heard());
  is_under_way = false;
  EXPECT_EQ(listener_.error().message(),
            "the device has stopped: nothing has ended on it for 50ms; it is in the warm-up, graph g, node 0 (add); "
            "what ended last is the warm-up, graph g, node 0 (add)");
}

TEST_F(DeviceWatchTest, LongStepsNeedMorePatience) {
  const auto watch = Watch(absl::Milliseconds(50));
  constexpr absl::Duration kStep = absl::Milliseconds(250);
  watch->EnterStep(1);
  absl::SleepFor(kStep);
  watch->EnterStep(2);
  const absl::Time begin = absl::Now();
  watch->Queued(PieceOf(false));
  EXPECT_FALSE(listener_.error().ok());
  EXPECT_GE(absl::Now() - begin, DeviceWatch::kStepsOfPatience * kStep);
}

}  // namespace
}  // namespace tacc::worker
