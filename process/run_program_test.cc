#include "process/run_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace tacc {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<ProgramResult> Shell(const std::string& script, const RunLimits& limits,
                                    const std::atomic<bool>& cancel) {
  return RunProgram({.argv = {"/bin/sh", "-c", script}}, limits, [&cancel] { return cancel.load(); });
}

const std::atomic<bool> kNoCancel{false};

TEST(RunProgramTest, GivesExitCodeAndOutputs) {
  auto result = Shell("echo out; echo err >&2; exit 3", RunLimits(), kNoCancel);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->end.exit_code, 3);
  EXPECT_EQ(result->out, "out\n");
  EXPECT_EQ(result->err, "err\n");
}

TEST(RunProgramTest, KillsAtTheDeadlineTogetherWithItsChildren) {
  RunLimits limits;
  limits.seconds = 0.2;
  auto result = Shell("sleep 60 & sleep 60", limits, kNoCancel);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->timed_out);
  EXPECT_EQ(result->end.signal, 9);
  EXPECT_LT(result->seconds, 10);
}

TEST(RunProgramTest, StopsWhenCancelled) {
  std::atomic<bool> cancel{false};
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    cancel = true;
  });
  auto result = Shell("sleep 60", RunLimits(), cancel);
  later.join();
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->cancelled);
}

TEST(RunProgramTest, LimitsMemory) {
  RunLimits limits;
  limits.memory_bytes = 64 << 20;
  // The limit is set from outside, a moment after the start.
  auto result = Shell("sleep 0.3; x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}", limits, kNoCancel);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->out.find("200000000"), std::string::npos);
}

TEST(RunProgramTest, LimitsCpuTimeAndCoreFiles) {
  RunLimits limits;
  limits.seconds = 7.5;
  limits.memory_bytes = int64_t{1} << 30;
  // As above. The kernel keeps to them also when nobody watches the clock any more.
  auto result = Shell("sleep 0.3; ulimit -S -t; ulimit -H -t; ulimit -S -c; ulimit -H -c", limits, kNoCancel);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->out, "9\n10\n0\n0\n");
}

TEST(RunProgramTest, LimitsOutput) {
  RunLimits limits;
  limits.output_bytes = 1000;
  auto result = Shell("while true; do echo too much of it; done", limits, kNoCancel);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->output_too_long);
}

TEST(RunProgramTest, SaysWhatCannotStart) {
  auto result = RunProgram({.argv = {"/no/such/tool"}}, RunLimits(), [] { return false; });
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("/no/such/tool: cannot be started: No such file"));
}

}  // namespace
}  // namespace tacc
