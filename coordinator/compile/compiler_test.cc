#include "coordinator/compile/compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <string>

#include "coordinator/testing/fake_daemon.h"

namespace tacc::coordinator {
namespace {

using ::testing::HasSubstr;

// Compiles with a tacc-plan that runs `script` first; $runs is the number of this run.
class CompilerTest : public ::testing::Test {
 protected:
  Input Compile(const std::string& script) {
    Compiler::Options options;
    options.jobs_dir = dir_.path() + "/jobs";
    options.data_binary = dir_.Script("tacc-data", FakeData());
    options.plan_binary = dir_.Script(
        "tacc-plan", absl::StrCat("echo >> ", Runs(), "\nruns=$(wc -l < ", Runs(), ")\n", script, "\n", FakePlan(1)));
    options.retry_seconds = {0, 0, 0};
    Compiler compiler(options);
    std::promise<Input> done;
    StartCompile start;
    start.job = "toy-1";
    start.world = 1;
    compiler.Start(start, TestSpec("toy", dir_.path() + "/runs", 1), [&done](Input input) { done.set_value(input); });
    return done.get_future().get();
  }
  int NumRuns() const {
    std::ifstream in(Runs());
    const std::string all(std::istreambuf_iterator<char>(in), {});
    return static_cast<int>(all.size());
  }

 private:
  std::string Runs() const { return dir_.path() + "/count"; }

  const TestDirectory dir_;
};

TEST_F(CompilerTest, AKilledToolIsRunAgain) {
  const Input done = Compile("if [ $runs -lt 4 ]; then kill -KILL $$; fi");
  ASSERT_TRUE(std::holds_alternative<CompileDone>(done)) << std::get<CompileFailed>(done).message;
  EXPECT_EQ(NumRuns(), 4);
}

TEST_F(CompilerTest, OneThatIsAlwaysKilledEndsTheJobWithTheReason) {
  const Input done = Compile("kill -TERM $$");
  ASSERT_TRUE(std::holds_alternative<CompileFailed>(done));
  EXPECT_THAT(std::get<CompileFailed>(done).message,
              HasSubstr("tacc-plan compile was killed by signal 15, 4 times in a row"));
  EXPECT_EQ(std::get<CompileFailed>(done).code, v1::FAILURE_CODE_COMPILE);
  EXPECT_EQ(NumRuns(), 4);
}

TEST_F(CompilerTest, ItsOwnFaultsAreNotTriedAgain) {
  const auto message = [&](const std::string& script) { return std::get<CompileFailed>(Compile(script)).message; };
  EXPECT_EQ(
      message("kill -SEGV $$"),
      "tacc-plan compile crashed by signal 11 (SIGSEGV), which is a fault of its own, not of the job or of a limit");
  EXPECT_EQ(NumRuns(), 1);
  EXPECT_EQ(
      message("echo 'Check failed: x' >&2; kill -ABRT $$"),
      "tacc-plan compile crashed by signal 6 (SIGABRT), which is a fault of its own, not of the job or of a limit: "
      "Check failed: x");
  EXPECT_EQ(message("echo 'error: a bug' >&2; exit 1"), "tacc-plan compile: exit 1: a bug");
  EXPECT_EQ(NumRuns(), 3);
}

TEST_F(CompilerTest, AMemoryLimitIsNamedAsSuch) {
  const Input done =
      Compile("echo \"terminate called after throwing an instance of 'std::bad_alloc'\" >&2; kill -ABRT $$");
  EXPECT_EQ(std::get<CompileFailed>(done).message,
            "tacc-plan compile needs more than the 8192 MiB of memory that it may have");
  EXPECT_EQ(NumRuns(), 1);
}

}  // namespace
}  // namespace tacc::coordinator
