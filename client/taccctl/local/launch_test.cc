#include <sys/wait.h>
// Processes, and what is built of them, with scripts in the place of the daemons.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "client/taccctl/local/devices.h"
#include "client/taccctl/local/launch.h"
#include "client/taccctl/local/local_cluster.h"
#include "client/taccctl/session/up_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tacc::client {
namespace {

using testing::HasSubstr;

// Waits for the end of descriptor 3, as the daemons do.
constexpr char kUntilParentEnds[] = "cat <&3 >/dev/null\n";

class LaunchTest : public testing::Test {
 protected:
  LaunchTest() {
    directory_ = testing::TempDir() + "/launch_test_" + std::to_string(getpid()) +
                 testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(directory_);
    options_.binary_dir = directory_;
    options_.directory = directory_;
    options_.share = {2, 1000000};
    options_.devices = {"cpu", "cpu"};
  }
  ~LaunchTest() override { std::filesystem::remove_all(directory_); }

  void WriteTool(const std::string& name, const std::string& script) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n" << script;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }

  static bool Soon(const std::function<bool()>& condition) {
    for (int i = 0; i < 500; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  std::string directory_;
  LaunchOptions options_;
};

TEST_F(LaunchTest, TheCoordinatorSaysWhereItServes) {
  WriteTool("tacc-coordinator", std::string("echo \"$@\" >&2; echo listening 127.0.0.1:4321\n") + kUntilParentEnds);
  const auto coordinator = LaunchCoordinator(options_, "127.0.0.1:0", "127.0.0.1:0");
  ASSERT_TRUE(coordinator.ok()) << coordinator.status();
  EXPECT_EQ(coordinator->address, "127.0.0.1:4321");
  EXPECT_EQ(LastLines(CoordinatorLog(options_), 5).at(0),
            "--listen 127.0.0.1:0 --state-dir " + directory_ +
                "/coordinator --metrics-listen 127.0.0.1:0 --insecure --exit-with-parent-fd 3");
}

TEST_F(LaunchTest, TheCoordinatorKeepsNumbersWhereItIsTold) {
  WriteTool("tacc-coordinator", std::string("echo \"$@\" >&2; echo listening 127.0.0.1:4321\n") + kUntilParentEnds);
  options_.job_number_file = "/cache/tacc/job-number";
  const auto coordinator = LaunchCoordinator(options_, "127.0.0.1:0", "127.0.0.1:0");
  ASSERT_TRUE(coordinator.ok()) << coordinator.status();
  EXPECT_THAT(LastLines(CoordinatorLog(options_), 5).at(0), HasSubstr(" --job-number-file /cache/tacc/job-number"));
}

TEST_F(LaunchTest, TheWorkerGetsItsShare) {
  WriteTool("tacc-worker", std::string("echo \"$@\" >&2; echo attached local-1\n") + kUntilParentEnds);
  const auto worker = LaunchWorker(options_, "127.0.0.1:1", 1);
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_TRUE(WaitUntilAttached(options_, 1, worker->get()).ok());
  EXPECT_THAT(LastLines(WorkerLog(options_, 1), 5).at(0),
              HasSubstr("--name local-1 --device cpu --threads 2 --advertise 127.0.0.1 --state-dir " + directory_ +
                        "/worker-1 --memory 1000000"));
  EXPECT_EQ(WorkerMetricsAddress(options_, 1), "");
  WriteTool("tacc-worker", std::string("echo \"$@\" >&2; echo \"metrics at http://127.0.0.1:9/metrics\" >&2; ") +
                               "echo attached local-1\n" + kUntilParentEnds);
  options_.worker_metrics = {"127.0.0.1:0", "127.0.0.1:9"};
  const auto measured = LaunchWorker(options_, "127.0.0.1:1", 1);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_TRUE(WaitUntilAttached(options_, 1, measured->get()).ok());
  EXPECT_THAT(LastLines(WorkerLog(options_, 1), 2).at(0), HasSubstr("--metrics-listen 127.0.0.1:9"));
  EXPECT_EQ(WorkerMetricsAddress(options_, 1), "127.0.0.1:9");
  options_.worker_metrics.clear();
  options_.op_libraries = {"/opt/a.so", "/opt/b.so"};
  WriteTool("tacc-worker", std::string("echo \"$@\" >&2; echo attached local-1\n") + kUntilParentEnds);
  // On a GPU it takes what is free there.
  options_.devices[1] = "cuda:1";
  options_.share.memory_bytes = 0;
  const auto gpu = LaunchWorker(options_, "127.0.0.1:1", 1);
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  EXPECT_TRUE(WaitUntilAttached(options_, 1, gpu->get()).ok());
  EXPECT_THAT(LastLines(WorkerLog(options_, 1), 1).at(0), HasSubstr("--device cuda:1 --threads 2"));
  EXPECT_THAT(LastLines(WorkerLog(options_, 1), 1).at(0), testing::Not(HasSubstr("--memory")));
  EXPECT_THAT(LastLines(WorkerLog(options_, 1), 1).at(0), HasSubstr("--op-library /opt/a.so --op-library /opt/b.so "));
}

TEST_F(LaunchTest, AChildEndsWithItsParent) {
  // A child process of the test starts the tool and is killed.
  WriteTool("tacc-worker",
            std::string("echo attached local-0\n") + kUntilParentEnds + "touch \"$(dirname \"$0\")/gone\"\n");
  const pid_t parent = fork();
  if (parent == 0) {
    const auto worker = LaunchWorker(options_, "127.0.0.1:1", 0);
    if (worker.ok() && WaitUntilAttached(options_, 0, worker->get()).ok()) raise(SIGKILL);
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(parent, &status, 0), parent);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(Soon([&] { return std::filesystem::exists(directory_ + "/gone"); }));
}

TEST_F(LaunchTest, AnErrorOfTheStartIsPassedOn) {
  WriteTool("tacc-coordinator", "echo 'error: port 7070 is in use' >&2; exit 2\n");
  const auto refused = LaunchCoordinator(options_, "127.0.0.1:7070", "127.0.0.1:0");
  EXPECT_EQ(refused.status(), absl::InvalidArgumentError("tacc-coordinator: port 7070 is in use"));
  WriteTool("tacc-coordinator", "echo oops >&2; kill -9 $$\n");
  const auto killed = LaunchCoordinator(options_, "127.0.0.1:0", "127.0.0.1:0");
  EXPECT_EQ(killed.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(killed.status().message()), HasSubstr("killed by signal 9"));
  EXPECT_THAT(std::string(killed.status().message()), HasSubstr("| oops"));
}

TEST_F(LaunchTest, TheClusterStartsAKilledWorkerAgain) {
  WriteTool("tacc-coordinator", std::string("echo listening 127.0.0.1:4321\n") + kUntilParentEnds);
  WriteTool("tacc-worker", std::string("echo $$ >> \"$(dirname \"$0\")/pids\"; echo attached x\n") + kUntilParentEnds);
  const auto pids = [&] { return LastLines(directory_ + "/pids", 10); };
  Interrupt interrupt;
  {
    options_.devices = {"cpu"};
    const auto cluster = LocalCluster::Start(options_, &interrupt);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    ASSERT_TRUE(Soon([&] { return pids().size() == 1; }));
    kill(std::stoi(pids()[0]), SIGKILL);
    ASSERT_TRUE(Soon([&] { return pids().size() == 2; }));
    EXPECT_TRUE(interrupt.aborted().ok());
  }
  EXPECT_EQ(LookAtProcess("worker", std::stoi(pids()[1])).start_ticks, 0u);
}

TEST_F(LaunchTest, TheClusterGivesUpOnBadInput) {
  WriteTool("tacc-coordinator", std::string("echo listening 127.0.0.1:4321\n") + kUntilParentEnds);
  WriteTool("tacc-worker", "echo 'error: version 0.2.0, the coordinator has 0.1.0' >&2; exit 2\n");
  Interrupt interrupt;
  options_.devices = {"cpu"};
  const auto cluster = LocalCluster::Start(options_, &interrupt);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_TRUE(Soon([&] { return !interrupt.aborted().ok(); }));
  EXPECT_EQ(interrupt.aborted(),
            absl::InvalidArgumentError("tacc-worker local-0: version 0.2.0, the coordinator has 0.1.0"));
}

TEST_F(LaunchTest, AWorkerForEachGpu) {
  using testing::ElementsAre;
  std::ostringstream err;
  Interrupt interrupt;
  const Context context{"taccctl", std::cin, err, err, false, 80, {}, directory_, interrupt};
  const auto choose = [&](const char* device, int workers) {
    const auto devices = ChooseDevices(device, workers, 2, context);
    return devices.ok() ? *devices : std::vector<std::string>{std::string(devices.status().message())};
  };
  // Without a CUDA module nothing is asked.
  WriteTool("tacc-rank", "touch \"$(dirname \"$0\")/asked\"; exit 1\n");
  EXPECT_THAT(choose(kAutoDevice, 0), ElementsAre("cpu", "cpu"));
  EXPECT_THAT(choose(kCudaDevice, 0), ElementsAre(HasSubstr("no GPU that tacc can use, and at least 1 is wanted")));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/asked"));
  std::ofstream(directory_ + "/libtacc_cuda.so") << "module";
  EXPECT_EQ(err.str(), "");
  EXPECT_THAT(choose(kAutoDevice, 3), ElementsAre("cpu", "cpu", "cpu"));
  EXPECT_THAT(err.str(), HasSubstr("warning: tacc-rank --devices"));
  WriteTool(
      "tacc-rank",
      "test \"$*\" = --devices && echo '[{\"name\":\"cpu\",\"kind\":\"cpu\"},{\"name\":\"cuda:0\",\"kind\":\"cuda\"},"
      "{\"name\":\"cuda:1\",\"kind\":\"cuda\"}]'\n");
  err.str("");
  EXPECT_THAT(choose(kAutoDevice, 0), ElementsAre("cuda:0", "cuda:1"));
  EXPECT_THAT(choose(kAutoDevice, 1), ElementsAre("cuda:0"));
  EXPECT_THAT(choose(kCpuDevice, 0), ElementsAre("cpu", "cpu"));
  EXPECT_EQ(err.str(), "");
  EXPECT_THAT(choose(kAutoDevice, 3), ElementsAre("cpu", "cpu", "cpu"));
  EXPECT_EQ(err.str(),
            "warning: this machine has 2 GPUs (cuda:0, cuda:1), and 3 workers are wanted; they run on CPUs: ask for at "
            "most 2 to use GPUs\n");
  EXPECT_THAT(choose(kCudaDevice, 3), ElementsAre(HasSubstr("has 2 GPUs (cuda:0, cuda:1), and 3 are wanted")));
}

TEST_F(LaunchTest, RunProgramKeepsBothStreams) {
  WriteTool("tool", "echo out; echo err >&2; exit 3\n");
  Interrupt interrupt;
  const auto output = RunProgram(directory_ + "/tool", {}, 10, 1000, &interrupt);
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(output->out, "out\n");
  EXPECT_EQ(output->err, "err\n");
  EXPECT_EQ(output->end.exit_code, 3);
  WriteTool("tool", "exec sleep 60\n");
  EXPECT_EQ(RunProgram(directory_ + "/tool", {}, 0.2, 1000, &interrupt).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(LaunchTest, AnInterruptEndsAProgramThatRuns) {
  const std::string started = directory_ + "/started";
  ASSERT_EQ(mkfifo(started.c_str(), 0600), 0);
  // Deaf to everything that can be ignored, and so are those that it starts.
  WriteTool("tool", "trap '' INT TERM HUP\necho $$ > \"" + started + "\"\nsleep 30\necho end\n");
  Interrupt interrupt;
  interrupt.Raise();  // What was raised before is of another command.
  std::string pid;
  std::thread user([&] {
    std::ifstream stream(started);
    std::getline(stream, pid);
    interrupt.Raise();
  });
  const auto output = RunProgram(directory_ + "/tool", {}, 30, 1000, &interrupt);
  user.join();
  EXPECT_EQ(output.status(), absl::CancelledError(directory_ + "/tool was stopped: interrupted"));
  EXPECT_EQ(LookAtProcess("tool", std::stoi(pid)).start_ticks, 0u);
}

TEST_F(LaunchTest, UpStateRoundTrips) {
  EXPECT_EQ(ReadUpState(directory_).status().code(), absl::StatusCode::kNotFound);
  const UpProcess self = LookAtProcess("self", getpid());
  EXPECT_TRUE(IsRunning(self));
  // Another process with the same number.
  UpProcess later = self;
  later.name = "later";
  ++later.start_ticks;
  ASSERT_TRUE(
      WriteUpState(
          directory_,
          {"127.0.0.1:1", "127.0.0.1:2", "host", 3, int64_t{1} << 40, {"cpu", "cuda:0"}, {self, later, {"never"}}})
          .ok());
  // One that was never started has no place in the file.
  EXPECT_EQ(ReadUpState(directory_).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(
      WriteUpState(
          directory_,
          {"127.0.0.1:1", "127.0.0.1:2", "host", 3, int64_t{1} << 40, {"cuda:0"}, {self, later}, {}, {"/opt/a.so"}})
          .ok());
  const auto up = ReadUpState(directory_);
  ASSERT_TRUE(up.ok()) << up.status();
  EXPECT_EQ(up->address, "127.0.0.1:1");
  EXPECT_EQ(up->metrics_address, "127.0.0.1:2");
  EXPECT_EQ(up->worker_prefix, "host");
  EXPECT_EQ(up->threads, 3);
  EXPECT_EQ(up->memory_bytes, int64_t{1} << 40);
  EXPECT_THAT(up->devices, testing::ElementsAre("cuda:0"));
  EXPECT_THAT(up->op_libraries, testing::ElementsAre("/opt/a.so"));
  EXPECT_TRUE(IsRunning(up->processes.at(0)));
  EXPECT_THAT(EndedProcesses(*up), testing::ElementsAre("later"));
  std::ofstream(directory_ + "/up.json") << "{\"address\": 5}";
  EXPECT_EQ(ReadUpState(directory_).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tacc::client
