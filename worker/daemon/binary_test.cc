// tacc-worker itself, as others start it: beside a tacc-rank made for the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "machine/machine.h"
#include "machine/testing/test_directory.h"
#include "process/child_process.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/daemon/testing/fake_worker_service.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Writes its process id beside itself; ends with its stdin, or never when there is a file `stubborn`.
constexpr char kRankScript[] = R"(#!/bin/bash
here=$(dirname "$0")
case "$1 $3" in
"--look cuda:0" | "--probe cuda:0")
  echo '{"name":"cuda:0","kind":"cuda","model":"NVIDIA H100 80GB HBM3","total_memory_bytes":85899345920,"free_memory_bytes":10737418240,'
  echo '"compute_capability":"9.0","links":{"cuda:1":"nvlink"},"driver":"580.1","threads":1,"memory_bytes":1,'
  echo '"matmul_flops_per_second":{"f32":5e13,"bf16":7e14},"memory_bytes_per_second":3e12,"link_bytes_per_second":3e11,'
  echo '"link_latency_seconds":5e-6,"matmul_fraction":0.8,"attention_flops_per_second":{"flash":3e14},"cpus":16}'
  exit;;
*" cuda:"*)
  echo "error: no GPU ${3#cuda:}; this machine has 2: cuda:0, cuda:1" >&2
  exit 2;;
esac
if [ "$1" = --probe ]; then
  echo '{"name":"cpu","kind":"cpu","model":"test","threads":1,"memory_bytes":1,"matmul_flops_per_second":{"f32":1e9},"matmul_fraction":1,'
  echo '"memory_bytes_per_second":1e9,"link_bytes_per_second":1e9,"link_latency_seconds":1e-4,"cpus":2,"multiplies_bf16":false}'
  exit
fi
echo $$ >"$here/pid"
echo '{"event":"started"}'
if [ -e "$here/stubborn" ]; then exec sleep 1000; fi
while read -r line; do :; done
)";

class BinaryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    signal(SIGPIPE, SIG_IGN);
    coordinator_.Start();
    const char* build = std::getenv("TACC_BUILD");
    ASSERT_NE(build, nullptr) << "run by ctest, or with TACC_BUILD set to the build folder";
    // It finds tacc-rank beside itself.
    TestDirectory::Write(Path("tacc-worker"), TestDirectory::Read(absl::StrCat(build, "/tacc-worker")));
    TestDirectory::Write(Path("tacc-rank"), kRankScript);
    chmod(Path("tacc-worker").c_str(), 0755);
    chmod(Path("tacc-rank").c_str(), 0755);
  }
  void TearDown() override { worker_.reset(); }

  std::string Path(const std::string& name) { return directory_.File(name); }

  void Start(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), Path("tacc-worker"));
    auto worker = ChildProcess::Start({.argv = arguments, .environment = {{"XDG_CACHE_HOME", Path("cache")}}});
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    out_.clear();
    err_.clear();
  }
  void StartNormally() {
    Start({"--coordinator", coordinator_.address(), "--name", "w0", "--device", "cpu", "--threads", "1", "--memory",
           "1GiB", "--advertise", "127.0.0.1", "--state-dir", Path("state"), "--exit-with-parent-fd", "0"});
    Until("attached", [this] { return out_ == "attached w0\n"; });
  }
  void Until(const std::string& what, const std::function<bool()>& condition) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (true) {
      if (worker_ != nullptr) {
        worker_->ReadStdout(&out_);
        worker_->ReadStderr(&err_);
      }
      if (condition()) return;
      ASSERT_LT(absl::Now(), deadline) << "waited in vain for " << what << "; stderr:\n" << err_;
      absl::SleepFor(absl::Milliseconds(10));
    }
  }
  ProcessEnd UntilEnded() {
    absl::optional<ProcessEnd> end;
    Until("the end", [&] { return (end = worker_->TryReap()).has_value(); });
    while (worker_->ReadStdout(&out_) || worker_->ReadStderr(&err_)) {
    }
    return end.value_or(ProcessEnd());
  }
  // Starts attempt `attempt` and returns the rank's process id.
  pid_t StartRank(int attempt) {
    (void)RemoveTree(Path("pid"));
    coordinator_.StartRank(attempt);
    pid_t pid = 0;
    Until("the rank", [&] { return absl::SimpleAtoi(TestDirectory::Read(Path("pid")), &pid); });
    return pid;
  }
  static bool IsAlive(pid_t pid) {
    std::ifstream stat(absl::StrCat("/proc/", pid, "/stat"));
    const std::string text(std::istreambuf_iterator<char>(stat), {});
    return !text.empty() && !absl::StrContains(text, ") Z ");
  }

  TestDirectory directory_;
  FakeWorkerService coordinator_;
  std::unique_ptr<ChildProcess> worker_;
  std::string out_, err_;
};

TEST_F(BinaryTest, BadOptionsAreOneLineAndExitCodeTwo) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--bogus"}, "--bogus"},
      {{"--device", "cuda:7", "--state-dir", Path("state")},
       "--device cuda:7: no GPU 7; this machine has 2: cuda:0, cuda:1"},
      {{"--device", "cuda:0", "--state-dir", Path("state"), "--memory", "10GiB"}, "10.00 GiB free of 80.00 GiB"},
      {{"--device", "cuda:0", "--state-dir", Path("state"), "--memory-reserve", "10GiB"}, "nothing is left for a rank"},
      {{"--device", "cuda:"}, "not a device"},
      {{"--memory-reserve", "1GiB"}, "--memory-reserve: is of GPUs"},
      {{"--device", "tpu"}, "not a device"},
      {{"--coordinator", "nowhere"}, "not HOST:PORT"},
      {{"--coordinator", "192.0.2.1:7070"}, "add --insecure"},
      {{"--advertise", "192.0.2.1"}, "add --insecure"},
      {{"--metrics-listen", "0.0.0.0:1"}, "add --insecure"},
      {{"--memory", "4 gigs"}, "--memory: \"4 gigs\" is not a size"},
      {{"--memory", "0"}, "--memory: \"0\" is not a size"},
      {{"--threads", "0"}, "--threads"},
      {{"--name", "a/b"}, "--name a/b"},
      {{"--state-dir", "/proc/nothing"}, "state directory /proc/nothing"},
      {{"--exit-with-parent-fd", "77"}, "not an open file descriptor"},
  };
  for (const auto& [arguments, words] : cases) {
    Start(arguments);
    EXPECT_EQ(UntilEnded().exit_code, 2) << arguments[0];
    EXPECT_EQ(out_, "");
    // A GPU is looked at first, and the log says so.
    if (absl::StrContains(err_, " measuring cuda:")) err_ = err_.substr(err_.find('\n') + 1);
    EXPECT_THAT(err_, StartsWith("error: "));
    EXPECT_THAT(err_, HasSubstr(words));
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
  }
}

TEST_F(BinaryTest, AGpuIsRegisteredWithWhatIsFreeAndItsTablePeak) {
  Start({"--coordinator", coordinator_.address(), "--device", "cuda:0", "--advertise", "127.0.0.1", "--state-dir",
         Path("state"), "--exit-with-parent-fd", "0"});
  Until("attached", [this] { return absl::StartsWith(out_, "attached "); });
  EXPECT_THAT(out_, HasSubstr("-cuda-0\n"));
  const v1::DeviceProfile device = coordinator_.registrations().at(0).device();
  EXPECT_EQ(device.kind(), "cuda");
  EXPECT_EQ(device.memory_bytes(), int64_t{9} << 30);
  EXPECT_EQ(device.reserve_bytes(), int64_t{1} << 30);
  EXPECT_EQ(device.peak_flops_per_second().at("bf16"), 989e12);
  EXPECT_EQ(device.matmul_flops_per_second().at("bf16"), 7e14);
  EXPECT_EQ(device.attention_flops_per_second().at("flash"), 3e14);
  // Its part of the CPUs: the machine has two GPUs.
  EXPECT_EQ(device.threads(), std::max(1, ThisMachine().num_cpus / 2));
  kill(worker_->pid(), SIGTERM);
  EXPECT_EQ(UntilEnded().exit_code, 0);
}

TEST_F(BinaryTest, AProbeThatFailsIsAnError) {
  TestDirectory::Write(Path("tacc-rank"), "#!/bin/sh\necho no luck >&2\nexit 4\n");
  Start({"--coordinator", coordinator_.address(), "--state-dir", Path("state"), "--threads", "1"});
  EXPECT_EQ(UntilEnded().exit_code, 1);
  EXPECT_THAT(err_, HasSubstr("tacc-rank --probe ended with exit code 4: no luck"));
}

TEST_F(BinaryTest, SigtermKillsTheRankAndEndsWithZero) {
  StartNormally();
  const pid_t rank = StartRank(1);
  kill(worker_->pid(), SIGTERM);
  EXPECT_EQ(UntilEnded().exit_code, 0);
  EXPECT_FALSE(IsAlive(rank));
  EXPECT_EQ(out_, "attached w0\n");
}

TEST_F(BinaryTest, EndsWithItsParentEvenWithoutACoordinator) {
  StartNormally();
  TestDirectory::Write(Path("stubborn"), "");
  const pid_t rank = StartRank(1);
  coordinator_.Stop();
  worker_->CloseStdin();  // The parent's end of --exit-with-parent-fd.
  EXPECT_EQ(UntilEnded().exit_code, 0);
  EXPECT_FALSE(IsAlive(rank));
}

TEST_F(BinaryTest, AKilledDaemonsRankDiesAndTheNextDaemonTakesOver) {
  for (const bool stubborn : {false, true}) {
    if (stubborn) TestDirectory::Write(Path("stubborn"), "");
    const size_t before = coordinator_.registrations().size();
    StartNormally();
    const pid_t rank = StartRank(2 * stubborn + 1);
    kill(worker_->pid(), SIGKILL);  // Not its group: the rank has its own.
    EXPECT_EQ(UntilEnded().signal, SIGKILL);
    if (!stubborn) Until("the rank to see its stdin close", [&] { return !IsAlive(rank); });
    StartNormally();
    EXPECT_FALSE(IsAlive(rank));
    const std::vector<v1::Register> registrations = coordinator_.registrations();
    ASSERT_EQ(registrations.size(), before + 2);
    EXPECT_NE(registrations[before].instance(), registrations[before + 1].instance());
    EXPECT_EQ(registrations[before + 1].ranks_size(), 0);
    EXPECT_TRUE(IsAlive(StartRank(2 * stubborn + 2)));
    kill(worker_->pid(), SIGTERM);
    EXPECT_EQ(UntilEnded().exit_code, 0);
  }
}

TEST_F(BinaryTest, ASecondDaemonInTheSameDirectoryIsRefused) {
  StartNormally();
  std::unique_ptr<ChildProcess> first = std::move(worker_);
  Start({"--coordinator", coordinator_.address(), "--state-dir", Path("state")});
  EXPECT_EQ(UntilEnded().exit_code, 2);
  EXPECT_THAT(err_, HasSubstr("is used by another daemon"));
}

TEST_F(BinaryTest, AnotherVersionIsRefusedInTheCoordinatorsWords) {
  coordinator_.Refuse(
      grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "worker w0 is version 0.1.0, this coordinator is 9"));
  Start({"--coordinator", coordinator_.address(), "--state-dir", Path("state"), "--name", "w0"});
  EXPECT_EQ(UntilEnded().exit_code, 2);
  EXPECT_EQ(out_, "");
  EXPECT_THAT(err_, HasSubstr("error: worker w0 is version 0.1.0, this coordinator is 9\n"));
}

}  // namespace
}  // namespace tacc::worker
