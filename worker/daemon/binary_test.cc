// tacc-worker itself, as others start it: beside a tacc-rank made for the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
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
using ::testing::Not;
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
if [ "$1" = --operators ]; then
  grep -q registers "$3" || { echo "error: --op-library $3: file too short" >&2; exit 2; }
  echo '["torchvision::nms","torchvision::roi_align"]'
  exit
fi
echo "$@" >"$here/arguments"
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
  void StartNormally(const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"--coordinator",
                                          coordinator_.address(),
                                          "--name",
                                          "w0",
                                          "--device",
                                          "cpu",
                                          "--threads",
                                          "1",
                                          "--memory",
                                          "1GiB",
                                          "--advertise",
                                          "127.0.0.1",
                                          "--state-dir",
                                          Path("state"),
                                          "--exit-with-parent-fd",
                                          "0",
                                          "--insecure"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    Start(arguments);
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
  for (const char* file : {"open.so", "none.so"}) TestDirectory::Write(Path(file), "");
  chmod(Path("open.so").c_str(), 0666);
  chmod(Path("none.so").c_str(), 0644);
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
      {{"--coordinator", "unix:here"}, "--coordinator: \"unix:here\" is not unix:/PATH"},
      {{"--coordinator", "192.0.2.1:7070"}, "add --insecure"},
      {{"--coordinator", "127.0.0.1:7070"}, "`taccctl up` starts workers and a coordinator that only you can reach"},
      {{"--advertise", "192.0.2.1"}, "add --insecure"},
      {{"--metrics-listen", "0.0.0.0:1"}, "add --insecure"},
      {{"--memory", "4 gigs"}, "--memory: \"4 gigs\" is not a size"},
      {{"--memory", "0"}, "--memory: \"0\" is not a size"},
      {{"--threads", "0"}, "--threads"},
      {{"--rank-memory", "4 gigs"}, "--rank-memory: \"4 gigs\" is not a size"},
      {{"--rank-memory", "1GiB", "--memory", "2GiB"}, "--rank-memory 1GiB is less than --memory 2GiB"},
      {{"--rank-processes", "0"}, "--rank-processes"},
      {{"--rank-processes", "10", "--threads", "2"}, "a rank with 2 threads to compute may have 66"},
      {{"--op-library", "ops.so"}, "--op-library \"ops.so\": not an absolute path"},
      {{"--op-library", "/no/such/ops.so"}, "--op-library \"/no/such/ops.so\": cannot be found: No such file"},
      {{"--op-library", "/usr"}, "--op-library \"/usr\": not a regular file"},
      {{"--op-library", Path("open.so")}, "everybody may write there; run chmod go-w "},
      {{"--op-library", Path("none.so"), "--state-dir", Path("state")}, "none.so: file too short"},
      {{"--name", "a/b"}, "--name a/b"},
      {{"--state-dir", "/proc/nothing"}, "state directory /proc/nothing"},
      {{"--exit-with-parent-fd", "77"}, "not an open file descriptor"},
      {{"--take-over-fd", "77"}, "--take-over-fd 77: not open"},
      {{"--take-over-fd", "0"}, "--take-over-fd 0: cannot be read"},
  };
  for (auto [arguments, words] : cases) {
    if (arguments[0] != "--coordinator")
      arguments.insert(arguments.end(), {"--coordinator", "unix:" + Path("coordinator.sock")});
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
         Path("state"), "--exit-with-parent-fd", "0", "--insecure"});
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

TEST_F(BinaryTest, WhatIsOpenAtAPortIsSaid) {
  const auto warnings = [this](const std::vector<std::string>& more) {
    TestDirectory::Write(Path("tacc-rank"), "#!/bin/sh\nexit 4\n");  // Nothing more is wanted than its start.
    std::vector<std::string> arguments = {"--state-dir", Path("state"), "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    Start(arguments);
    EXPECT_EQ(UntilEnded().exit_code, 1) << err_;
    return err_;
  };
  const std::string port = coordinator_.address(), socket = "unix:" + Path("coordinator.sock");
  const auto has_open_paths =
      HasSubstr(absl::StrCat("--coordinator ", port, ": without --allow-path files of jobs may"));
  const auto has_root = HasSubstr("ranks run as root; --rank-user NAME starts them as another user");
  const bool is_root = geteuid() == 0;
  const std::string open = warnings({"--coordinator", port, "--insecure"});
  EXPECT_THAT(open, has_open_paths);
  EXPECT_THAT(open, HasSubstr("--allow-path DIR for each folder"));
  EXPECT_THAT(open, HasSubstr("or --allow-path / if that is meant"));
  EXPECT_EQ(testing::Matches(has_root)(open), is_root);
  const std::string meant = warnings({"--coordinator", port, "--insecure", "--allow-path", "/"});
  EXPECT_THAT(meant, Not(has_open_paths));
  EXPECT_EQ(testing::Matches(has_root)(meant), is_root);
  const std::string own = warnings({"--coordinator", socket});
  EXPECT_THAT(own, Not(has_open_paths));
  EXPECT_THAT(own, Not(has_root)) << "a service of one user";
}

TEST_F(BinaryTest, AProbeThatFailsIsAnError) {
  TestDirectory::Write(Path("tacc-rank"), "#!/bin/sh\necho no luck >&2\nexit 4\n");
  Start({"--coordinator", coordinator_.address(), "--insecure", "--state-dir", Path("state"), "--threads", "1"});
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

TEST_F(BinaryTest, Sigusr2PutsAnotherInItsPlaceBesideItsRank) {
  // As a package does: the file is another one from now on.
  const auto install = [this](const std::string& program) {
    TestDirectory::Write(Path("new"), program);
    chmod(Path("new").c_str(), 0755);
    ASSERT_EQ(rename(Path("new").c_str(), Path("tacc-worker").c_str()), 0);
  };
  StartNormally();
  const pid_t rank = StartRank(1);
  const pid_t daemon = worker_->pid();
  for (const size_t registrations : {2, 3}) {
    install(TestDirectory::Read(Path("tacc-worker")));
    kill(daemon, SIGUSR2);
    Until("another registration", [&, this] { return coordinator_.registrations().size() == registrations; });
    EXPECT_EQ(coordinator_.registrations().back().instance(), coordinator_.registrations()[0].instance());
  }
  EXPECT_TRUE(IsAlive(rank));
  EXPECT_EQ(std::filesystem::read_symlink(absl::StrCat("/proc/", daemon, "/exe")), Path("tacc-worker"));
  install("#!/bin/sh\necho no luck\n");
  kill(daemon, SIGUSR2);
  Until("its refusal", [this] { return absl::StrContains(err_, "not replaced, and goes on: "); });
  EXPECT_TRUE(IsAlive(rank));
  install("#!/bin/sh\nrm \"$0\"\necho takes over from format 1\n");  // It is gone before it is run.
  kill(daemon, SIGUSR2);
  Until("another registration", [this] { return coordinator_.registrations().size() == 4; });
  EXPECT_THAT(err_, HasSubstr(absl::StrCat("not replaced, and goes on: ", Path("tacc-worker"))));
  EXPECT_TRUE(IsAlive(rank));
  worker_->CloseStdin();  // What it was started with still holds: --exit-with-parent-fd 0.
  EXPECT_EQ(UntilEnded().exit_code, 0);
  EXPECT_FALSE(IsAlive(rank));
}

TEST_F(BinaryTest, RanksAreGivenLibrariesOfOperatorsAlsoByTheNextProgram) {
  const std::string library = std::filesystem::canonical(directory_.path()).string() + "/ops.so";
  TestDirectory::Write(library, "registers");
  chmod(library.c_str(), 0644);
  StartNormally({"--op-library", library});
  EXPECT_THAT(err_, HasSubstr("--op-library: ranks can compute operators of torchvision (2 operators)"));
  const std::string given = absl::StrCat(" --op-library ", library, "\n");
  StartRank(1);
  EXPECT_THAT(TestDirectory::Read(Path("arguments")), HasSubstr(given));
  kill(worker_->pid(), SIGUSR2);
  Until("another registration", [this] { return coordinator_.registrations().size() == 2; });
  StartRank(2);
  EXPECT_THAT(TestDirectory::Read(Path("arguments")), HasSubstr(given));
  // One that others have been let change since is not taken over.
  chmod(library.c_str(), 0666);
  kill(worker_->pid(), SIGUSR2);
  Until("the refusal", [this] { return absl::StrContains(err_, "everybody may write there"); });
  kill(worker_->pid(), SIGTERM);
  EXPECT_EQ(UntilEnded().exit_code, 0);
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
  Start({"--coordinator", coordinator_.address(), "--insecure", "--state-dir", Path("state")});
  EXPECT_EQ(UntilEnded().exit_code, 2);
  EXPECT_THAT(err_, HasSubstr("is used by another daemon"));
}

TEST_F(BinaryTest, AnotherVersionIsRefusedInTheCoordinatorsWords) {
  coordinator_.Refuse(
      grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "worker w0 is version 0.1.0, this coordinator is 9"));
  Start({"--coordinator", coordinator_.address(), "--insecure", "--state-dir", Path("state"), "--name", "w0"});
  EXPECT_EQ(UntilEnded().exit_code, 2);
  EXPECT_EQ(out_, "");
  EXPECT_THAT(err_, HasSubstr("error: worker w0 is version 0.1.0, this coordinator is 9\n"));
}

}  // namespace
}  // namespace tacc::worker
