#include "coordinator/compile/compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <vector>

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

  const TestDirectory dir_;

 private:
  std::string Runs() const { return dir_.path() + "/count"; }
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

TEST_F(CompilerTest, PlansAreFewAndStandBehindJobs) {
  const std::string began = dir_.path() + "/began", go = dir_.path() + "/go";
  Compiler::Options options;
  options.jobs_dir = dir_.path() + "/jobs";
  options.data_binary = dir_.Script("tacc-data", FakeData());
  options.plan_binary = dir_.Script(
      "tacc-plan", absl::StrCat("touch ", began, "\nwhile [ ! -e ", go, " ]; do sleep 0.02; done\n", FakePlan(1)));
  std::filesystem::create_directory(options.jobs_dir);
  std::vector<std::string> ended;  // Of the compiler's thread, until it is gone.
  {
    Compiler compiler(options);
    const v1::JobSpec spec = TestSpec("toy", dir_.path() + "/runs", 1);
    const auto plan = [&](const std::string& name, const std::shared_ptr<std::atomic<bool>>& cancel) {
      compiler.Plan(spec, {1, {}, ""}, cancel, [&ended, name](const absl::StatusOr<Compiler::Plans>& planned) {
        ended.push_back(absl::StrCat(name, " ", absl::StatusCodeToString(planned.status().code())));
      });
    };
    const auto go_on = std::make_shared<std::atomic<bool>>(false), stop = std::make_shared<std::atomic<bool>>(false);
    plan("first", go_on);
    ASSERT_TRUE(WaitUntil([&] { return std::filesystem::exists(began); }));
    for (int i = 0; i < 100; ++i) plan("waiting", stop);
    EXPECT_THAT(ended, testing::IsEmpty());
    plan("too many", go_on);
    EXPECT_THAT(ended, testing::ElementsAre("too many RESOURCE_EXHAUSTED"));
    *stop = true;
    plan("last", go_on);
    EXPECT_EQ(ended.size(), 101) << "those for which nobody waits make room";
    ended.clear();
    std::promise<void> done;
    StartCompile start;
    start.job = "toy-1";
    start.world = 1;
    compiler.Start(start, spec, [&](const Input& input) {
      ended.push_back(std::holds_alternative<CompileDone>(input) ? "job" : std::get<CompileFailed>(input).message);
      done.set_value();
    });
    std::ofstream(go).flush();
    done.get_future().wait();
  }
  ASSERT_GE(ended.size(), 2U);
  EXPECT_EQ(ended[0], "first OK");
  EXPECT_EQ(ended[1], "job");
}

}  // namespace
}  // namespace tacc::coordinator
