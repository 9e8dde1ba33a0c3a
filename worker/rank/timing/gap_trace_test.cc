#include "worker/rank/timing/gap_trace.h"

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "graph/ir/text.h"
#include "gtest/gtest.h"
#include "worker/rank/testing/naive_kernels.h"
#include "worker/rank/testing/simulated_device.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;

constexpr double kPiece = SimulatedDevice::kPieceSeconds;

class GapTraceTest : public testing::Test {
 protected:
  void SetUp() override {
    // A step: an input that is copied before the part, a kernel, the output.
    auto program = graph::ParseProgram(R"(tacc.program 1 planned
mesh fsdp=1
stage 0 of 1
arena bytes=512 workspace=0
state "weights/w" : f32[4] of f32[4] shard=[-] kind=weight init=ones stored=[4] at=0
graph g {
  %x = input "x" : f32[4] of f32[4] shard=[-] at=64
  %w = read "weights/w" : f32[4] of f32[4] shard=[-] at=0
  %y = add %w, %x : f32[4] of f32[4] shard=[-] at=128
  %l = reduce_sum %y dims=[0] : f32[] of f32[] shard=[] at=192
  output "loss" %l
}
step {
  call g micro_batch=0
}
)",
                                       {});
    ASSERT_TRUE(program.ok()) << program.status();
    program_ = *std::move(program);
    auto arena = device_.CreateArena(program_.arena_bytes, 0);
    ASSERT_TRUE(arena.ok()) << arena.status();
    arena_ = *std::move(arena);
    ExecutorOptions options;
    options.program = &program_;
    options.device = &device_;
    options.arena = arena_.get();
    auto executor = Executor::Create(options);
    ASSERT_TRUE(executor.ok()) << executor.status();
    executor_ = *std::move(executor);
  }
  ~GapTraceTest() override {
    executor_.reset();
    std::fclose(log_);
  }

  void RunStep() {
    const float x[4] = {1, 2, 3, 4};
    ASSERT_TRUE(executor_->RunStep({{x}}).ok());
  }
  void TraceStep(GapTrace& trace) {
    trace.Begin();
    RunStep();
    trace.End(*executor_);
  }
  // What has been logged since the object was made.
  std::string Logged() {
    std::string text(1 << 14, '\0');
    text.resize(static_cast<size_t>(pread(fileno(log_), text.data(), text.size(), 0)));
    return text;
  }

  const NaiveKernels kernels_;
  SimulatedDevice device_{&kernels_};
  std::FILE* const log_ = std::tmpfile();
  EventWriter events_{fileno(log_)};
  graph::Program program_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Executor> executor_;
};

TEST_F(GapTraceTest, WhatAStepShowsHoldsForThoseAfterIt) {
  GapTrace trace(&device_, &events_);
  trace.WarmUp();
  EXPECT_EQ(device_.num_activities(), 1);
  RunStep();
  EXPECT_FALSE(trace.ActiveSeconds(executor_->busy_seconds()).has_value());
  EXPECT_FALSE(trace.is_due(GapTrace::kFirstStep - 1));
  EXPECT_TRUE(trace.is_due(GapTrace::kFirstStep));
  device_.SetActiveShare(0.75);
  TraceStep(trace);
  EXPECT_EQ(device_.num_activities(), 2);
  EXPECT_THAT(Logged(), HasSubstr("of the time of a step's graphs the GPU worked in 75 %"));
  EXPECT_NEAR(trace.ActiveSeconds(8 * kPiece).value_or(-1), 6 * kPiece, 1e-12);
  EXPECT_FALSE(trace.ActiveSeconds(std::nullopt).has_value());
  // The next one is ten times as late, and counts from then on.
  EXPECT_FALSE(trace.is_due(GapTrace::kFirstStep + 1));
  EXPECT_FALSE(trace.is_due(GapTrace::kFactor * GapTrace::kFirstStep - 1));
  EXPECT_TRUE(trace.is_due(GapTrace::kFactor * GapTrace::kFirstStep));
  device_.SetActiveShare(0.5);
  TraceStep(trace);
  EXPECT_NEAR(trace.ActiveSeconds(8 * kPiece).value_or(-1), 4 * kPiece, 1e-12);
  EXPECT_FALSE(trace.is_due(GapTrace::kFactor * GapTrace::kFirstStep));
}

// Copies of inputs before the part, and of outputs behind it, are outside.
TEST_F(GapTraceTest, BusyPartsLieWhereTheStepsWorkDoes) {
  RunStep();
  const auto origin = device_.CreateMark();
  ASSERT_TRUE(origin.ok());
  ASSERT_TRUE(device_.StartActivity(**origin).ok());
  RunStep();
  const auto pieces = device_.StopActivity();
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  const auto parts = executor_->BusyParts(**origin);
  ASSERT_TRUE(parts.ok()) << parts.status();
  ASSERT_EQ(parts->size(), 1u);
  EXPECT_NEAR((*parts)[0].begin, kPiece, 1e-12);
  EXPECT_NEAR((*parts)[0].end - (*parts)[0].begin, executor_->busy_seconds().value_or(0), 1e-12);
  EXPECT_NEAR(pieces->back().end - (*parts)[0].end, kPiece, 1e-12);
}

TEST_F(GapTraceTest, WhatFailsIsSaidOnceAndNothingMoreIsTraced) {
  GapTrace trace(&device_, &events_);
  device_.FailActivity(absl::InternalError("CUPTI, beginning a trace: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"));
  trace.WarmUp();
  EXPECT_THAT(Logged(), HasSubstr("no step is traced, so device_idle_share is left out: CUPTI, beginning a trace"));
  EXPECT_FALSE(trace.is_due(1'000'000'000));
  RunStep();
  EXPECT_FALSE(trace.ActiveSeconds(executor_->busy_seconds()).has_value());
}

TEST_F(GapTraceTest, AfterAFailureTheGapsSeenLastCount) {
  GapTrace trace(&device_, &events_);
  device_.SetActiveShare(0.5);
  TraceStep(trace);
  device_.FailActivity(absl::InternalError("CUPTI has lost 3 records"));
  TraceStep(trace);
  EXPECT_THAT(Logged(), HasSubstr("no step is traced any more, so device_idle_share goes on with the gaps seen last: "
                                  "CUPTI has lost 3 records"));
  EXPECT_FALSE(trace.is_due(1'000'000'000));
  EXPECT_NEAR(trace.ActiveSeconds(2 * kPiece).value_or(-1), kPiece, 1e-12);
}

TEST_F(GapTraceTest, ADeviceThatNotesNothingIsNoFailure) {
  device_.FailActivity(absl::UnimplementedError("it notes no work"));
  GapTrace trace(&device_, &events_);
  trace.WarmUp();
  EXPECT_EQ(Logged(), "");
  EXPECT_FALSE(trace.is_due(1'000'000'000));
}

}  // namespace
}  // namespace tacc::worker
