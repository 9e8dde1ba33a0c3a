// The daemon against a coordinator and a rank made for the test: the real stream, processes and files.
#include "worker/daemon/daemon.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <fstream>
#include <functional>
#include <thread>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "machine/testing/test_directory.h"
#include "nlohmann/json.hpp"
#include "spdlog/sinks/null_sink.h"
#include "worker/daemon/testing/fake_worker_service.h"

namespace tacc::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Says what it was given, one event a command, and ends as it is told or when its stdin ends.
constexpr char kRankScript[] = R"(#!/bin/bash
echo '{"event":"started","pid":'$$'}'
echo "threads $OMP_NUM_THREADS, which look $GOMP_SPINCOUNT times" >&2
cp "$2" "$(dirname "$0")/seen-start.json"
cp "$(dirname "$2")/stage.program" "$(dirname "$0")/seen-program"
test -e "/dev/shm$4" && echo "status block" >&2
step=0
while read -r line; do
  case "$line" in
    exit*) echo "bye" >&2; echo '{"event":"finished","step":'$step'}'; exit ${line#exit };;
    die) kill -9 $$;;
    fail) echo '{"event":"failed","code":"device","message":"no answer"}';;
    step) step=$((step + 1)); echo '{"event":"step","step":'$step',"loss":2.5}';;
    *) echo "got $line" >&2;;
  esac
done
echo "stdin closed" >&2
exit 1
)";

class DaemonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    signal(SIGPIPE, SIG_IGN);
    for (const char* variable : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) unsetenv(variable);  // The caller's own.
    coordinator_.Start();
    TestDirectory::Write(directory_.File("rank"), kRankScript);
    chmod(directory_.File("rank").c_str(), 0755);
    ASSERT_EQ(pipe(end_pipe_), 0);
    options_.version = "1.0";
    options_.coordinator = coordinator_.address();
    options_.name = "w0";
    options_.place = {directory_.File("rank"), "cpu", 3, 4096, "127.0.0.1", "w0"};
    options_.device.set_model("test CPU");
    options_.end_descriptors = {end_pipe_[0]};
    options_.stop_seconds = 0.5;
    options_.run_log.end_seconds = 10;
    options_.on_attached = [this] { ++num_attached_; };
  }
  void TearDown() override {
    EndDaemon();
    coordinator_.Stop();
    close(end_pipe_[0]);
    close(end_pipe_[1]);
  }

  void StartDaemon() {
    auto state = StateDirectory::Open(directory_.File("state"), 0);
    ASSERT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
    thread_ = std::thread([this] {
      spdlog::logger logger("test", std::make_shared<spdlog::sinks::null_sink_mt>());
      result_ = RunDaemon(options_, state_.get(), &logger);
    });
  }
  void EndDaemon() {
    if (!thread_.joinable()) return;
    ASSERT_EQ(write(end_pipe_[1], "x", 1), 1);
    thread_.join();
    state_.reset();
  }
  // Waits until `condition` holds, at most ten seconds.
  void Until(const std::string& what, const std::function<bool()>& condition) {
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (!condition()) {
      ASSERT_LT(absl::Now(), deadline) << "waited in vain for " << what << ": "
                                       << ::testing::PrintToString(coordinator_.Reports());
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  void UntilReport(const std::string& text) {
    Until(text, [&] {
      for (const std::string& report : coordinator_.Reports()) {
        if (report.find(text) != std::string::npos) return true;
      }
      return false;
    });
  }
  void UntilRegistered(size_t times) {
    Until("registration", [&] { return coordinator_.registrations().size() >= times; });
  }

  TestDirectory directory_;
  FakeWorkerService coordinator_;
  DaemonOptions options_;
  std::unique_ptr<StateDirectory> state_;
  int end_pipe_[2] = {-1, -1};
  std::thread thread_;
  absl::Status result_;
  std::atomic<int> num_attached_ = 0;
};

TEST_F(DaemonTest, ARankFromStartToExit) {
  StartDaemon();
  UntilRegistered(1);
  const v1::Register registration = coordinator_.registrations()[0];
  EXPECT_EQ(registration.name(), "w0");
  EXPECT_EQ(registration.version(), "1.0");
  EXPECT_EQ(registration.advertise(), "127.0.0.1");
  EXPECT_EQ(registration.device().model(), "test CPU");
  EXPECT_EQ(registration.instance().size(), 16u);
  coordinator_.StartRank(1);
  UntilReport("status block");
  const auto start = nlohmann::json::parse(TestDirectory::Read(directory_.File("seen-start.json")));
  EXPECT_EQ(start["job"], "job-1");
  EXPECT_EQ(start["threads"], 3);
  EXPECT_EQ(start["memory_bytes"], 4096);
  EXPECT_EQ(start["device"], "cpu");
  EXPECT_EQ(start["advertise"], "127.0.0.1");
  EXPECT_EQ(start["program"], state_->ProgramPath());
  EXPECT_EQ(TestDirectory::Read(directory_.File("seen-program")), "tacc.graph 1\n");
  Until("a sample", [&] {
    for (const v1::AttachRequest& message : coordinator_.received()) {
      if (message.heartbeat().has_sample() && message.heartbeat().sample().id().attempt() == 1) {
        return message.heartbeat().sample().step() == 1;
      }
    }
    return false;
  });
  coordinator_.Command(1, "step");
  coordinator_.Command(1, "exit 0");
  UntilReport("exit 0 0");
  std::vector<std::string> events;
  for (const std::string& report : coordinator_.Reports()) {
    if (report.find("log") == std::string::npos) events.push_back(report.substr(report.find(' ') + 1));
  }
  EXPECT_THAT(events, ElementsAre("started", "step", "finished", "exit 0 0"));
  EXPECT_EQ(num_attached_, 1);
  Until("cleaning",
        [&] { return TestDirectory::Names(state_->path()) == std::vector<std::string>({"lock", "rank.log", "run"}); });
  EXPECT_TRUE(TestDirectory::Names(state_->path() + "/run").empty());
  EXPECT_THAT(TestDirectory::Read(state_->LogPath()),
              HasSubstr("threads 3, which look 1000 times\nstatus block\nbye\n--- exit code 0\n"));
  EndDaemon();
  EXPECT_TRUE(result_.ok()) << result_;
}

// What the daemon has said of its device ("trouble" or "memory N"), and "exit" where a rank's end came between.
std::vector<std::string> DeviceStory(FakeWorkerService* coordinator) {
  std::vector<std::string> story;
  for (const v1::AttachRequest& message : coordinator->received()) {
    if (message.rank_report().has_exited()) story.push_back("exit");
    if (!message.has_device_state()) continue;
    const v1::DeviceState& state = message.device_state();
    story.push_back(state.trouble().empty() ? absl::StrCat("memory ", state.device().memory_bytes()) : state.trouble());
  }
  return story;
}

// The GPU falls off its bus while a rank runs, and comes back.
TEST_F(DaemonTest, AfterAFailureTheGpuIsLookedAtAndTheDaemonStays) {
  options_.place.device = "cuda:1";
  options_.device.set_name("cuda:1");
  options_.device.set_model("NVIDIA H100 80GB HBM3");
  options_.device.set_memory_bytes(4096);
  options_.look_again_seconds = 0.1;
  absl::Mutex mutex;
  absl::Status health = absl::FailedPreconditionError("tacc-rank --look ended with exit code 1: no device");
  options_.look = [&]() -> absl::StatusOr<v1::DeviceProfile> {
    absl::MutexLock lock(&mutex);
    if (!health.ok()) return health;
    v1::DeviceProfile now = options_.device;
    now.set_memory_bytes(2048);
    return now;
  };
  StartDaemon();
  UntilRegistered(1);
  coordinator_.StartRank(1);
  UntilReport("started");
  coordinator_.Command(1, "die");
  UntilReport("exit - 9");
  const std::string looked_at = "cuda:1 is being looked at after a rank has failed on it";
  const std::string lost = "cuda:1 cannot be used: tacc-rank --look ended with exit code 1: no device";
  Until("trouble", [&] { return absl::c_linear_search(DeviceStory(&coordinator_), lost); });
  // A coordinator that the daemon dials again hears of it.
  coordinator_.Stop();
  coordinator_.Start();
  UntilRegistered(2);
  EXPECT_EQ(coordinator_.registrations()[1].device_trouble(), lost);
  {
    absl::MutexLock lock(&mutex);
    health = absl::OkStatus();
  }
  Until("recovery", [&] { return DeviceStory(&coordinator_).back() == "memory 2048"; });
  std::vector<std::string> story = DeviceStory(&coordinator_);
  // Before the rank's end: no rank starts here.
  EXPECT_LT(absl::c_find(story, looked_at), absl::c_find(story, "exit"));
  story.erase(std::remove(story.begin(), story.end(), "exit"), story.end());
  story.erase(std::unique(story.begin(), story.end()), story.end());
  EXPECT_THAT(story, ElementsAre("memory 4096", looked_at, lost, "memory 2048"));
  coordinator_.StartRank(2);
  Until("attempt 2 to start", [&] {
    const std::string text = TestDirectory::Read(directory_.File("seen-start.json"));
    return text.find("\"memory_bytes\":2048") != std::string::npos;
  });
}

// A process that is not seen to end while it is held: as in a driver that does not answer.
class HeldProcess : public ChildProcess {
 public:
  HeldProcess(ChildProcess&& process, const std::atomic<bool>* is_held)
      : ChildProcess(std::move(process)), is_held_(*is_held) {}
  absl::optional<ProcessEnd> TryReap() override { return is_held_ ? absl::nullopt : ChildProcess::TryReap(); }

 private:
  const std::atomic<bool>& is_held_;
};

class HeldProcessTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    options_.device.set_name("cpu");
    options_.device.set_memory_bytes(4096);
    options_.reap_seconds = 0.1;
    options_.start_process = [this](const ProcessOptions& options) -> absl::StatusOr<std::unique_ptr<ChildProcess>> {
      auto process = ChildProcess::Start(options);
      if (!process.ok()) return process.status();
      pid_ = (*process)->pid();
      return std::make_unique<HeldProcess>(std::move(**process), &is_held_);
    };
  }

  // Starts a rank and kills it; returns why the device cannot be used.
  std::string KillInVain() {
    StartDaemon();
    UntilRegistered(1);
    coordinator_.StartRank(1);
    UntilReport("started");
    coordinator_.KillRank(1);
    UntilReport("exit - 0 killed");
    UntilReport("warning");
    const std::vector<std::string> story = DeviceStory(&coordinator_);
    const auto trouble =
        absl::c_find_if(story, [](const std::string& text) { return absl::StrContains(text, " cannot be used: "); });
    // Before the rank's end, on which the coordinator would start the next one.
    EXPECT_LT(trouble, absl::c_find(story, "exit"));
    coordinator_.StartRank(2);
    UntilReport("2:1 exit - 0 " + *trouble);
    return *trouble;
  }

  void UntilStarts(int attempt) {
    coordinator_.StartRank(attempt);
    Until("the rank to start", [&] {
      return absl::c_any_of(coordinator_.Reports(), [&](const std::string& report) {
        return absl::StartsWith(report, absl::StrCat(attempt, ":")) && absl::StrContains(report, " started");
      });
    });
  }

  std::atomic<bool> is_held_ = true;
  pid_t pid_ = 0;
};

TEST_F(HeldProcessTest, AProcessThatDoesNotEndTakesTheDeviceOutOfService) {
  const std::string trouble = KillInVain();
  EXPECT_THAT(trouble, HasSubstr(absl::StrCat("cpu cannot be used: the process of job job-1 attempt 1 rank 0 (pid ",
                                              pid_, ", state Z (ended, held by another process)) was killed ")));
  EXPECT_THAT(trouble, HasSubstr("if it does not end by itself, restart the machine"));
  is_held_ = false;
  Until("recovery", [&] { return DeviceStory(&coordinator_).back() == "memory 4096"; });
  UntilStarts(3);
}

TEST_F(HeldProcessTest, AGpuIsLookedAtWhenTheProcessHasGone) {
  options_.device.set_name("cuda:1");
  std::atomic<int> num_looks = 0;
  options_.look = [&]() -> absl::StatusOr<v1::DeviceProfile> {
    ++num_looks;
    v1::DeviceProfile now = options_.device;
    now.set_memory_bytes(2048);
    return now;
  };
  EXPECT_THAT(KillInVain(), HasSubstr("if it does not end by itself, reset the GPU or restart the machine"));
  EXPECT_EQ(num_looks, 0);
  is_held_ = false;
  Until("recovery", [&] { return DeviceStory(&coordinator_).back() == "memory 2048"; });
  EXPECT_EQ(num_looks, 1);
  UntilStarts(3);
}

TEST_F(HeldProcessTest, ARankThatHasFailedAndDoesNotEndIsKilled) {
  options_.last_words_seconds = 0.1;
  options_.reap_seconds = 60;
  is_held_ = false;
  StartDaemon();
  UntilRegistered(1);
  coordinator_.StartRank(1);
  coordinator_.Command(1, "fail");
  UntilReport("failed");
  UntilReport("exit - 9");
}

// The daemon does not wait for it; its record stays for the next daemon.
TEST_F(HeldProcessTest, TheEndDoesNotWaitForAProcessThatDoesNotEnd) {
  StartDaemon();
  UntilRegistered(1);
  coordinator_.StartRank(1);
  UntilReport("started");
  ASSERT_EQ(write(end_pipe_[1], "x", 1), 1);
  thread_.join();
  EXPECT_THAT(TestDirectory::Read(directory_.File("state") + "/rank.json"), HasSubstr(absl::StrCat(pid_)));
  ASSERT_EQ(waitpid(pid_, nullptr, 0), pid_);
}

TEST_F(DaemonTest, ADeadRankIsReportedWithItsLastLines) {
  StartDaemon();
  UntilRegistered(1);
  coordinator_.StartRank(1);
  coordinator_.Command(1, "some words");
  coordinator_.Command(1, "die");
  UntilReport("exit - 9");
  EXPECT_THAT(coordinator_.received().back().rank_report().exited().last_log_lines(),
              ElementsAre("threads 3, which look 1000 times", "status block", "got some words"));
}

// A start file of a rank whose run is in `dir`.
std::string StartIn(const std::string& dir, const nlohmann::json& restarts = nlohmann::json::array()) {
  return nlohmann::json({{"job", "job-1"}, {"checkpoint", {{"dir", dir}}}, {"run", {{"restarts", restarts}}}}).dump();
}

TEST_F(DaemonTest, WhatARankSaysAndHowItEndsIsKeptInTheFolderOfTheRun) {
  mkdir(directory_.File("run").c_str(), 0755);
  StartDaemon();
  UntilRegistered(1);
  coordinator_.StartRank(1, StartIn(directory_.File("run")));
  coordinator_.Command(1, "fail");
  UntilReport("failed");
  coordinator_.Command(1, "last words");
  coordinator_.Command(1, "die");
  UntilReport("exit - 9");
  coordinator_.StartRank(
      2, StartIn(directory_.File("run"), nlohmann::json::parse(R"([{"attempt":1,"cause":"rank 0 on w0: SIGKILL"}])")));
  UntilReport("2:1 ");
  coordinator_.KillRank(2);
  UntilReport("exit - 9 killed");
  EndDaemon();
  EXPECT_THAT(
      TestDirectory::Read(directory_.File("run/logs/attempt-1/rank-00000.log")),
      testing::MatchesRegex("2[0-9T:.-]+Z --- job job-1 attempt 1 rank 0 on w0 \\(cpu of 127.0.0.1\\) pid [0-9]+\n"
                            "(.+\n)*"
                            "2[0-9T:.-]+Z failed \\(device\\): no answer\n"
                            "(.+\n)*"
                            "2[0-9T:.-]+Z got last words\n"
                            "2[0-9T:.-]+Z --- signal 9\n"));
  EXPECT_THAT(TestDirectory::Read(directory_.File("run/logs/attempt-2/rank-00000.log")),
              testing::ContainsRegex("^2[^ ]+ --- attempt 1 ended: rank 0 on w0: SIGKILL\n"
                                     "(.+\n)+"
                                     "2[^ ]+ --- killed by w0\n"
                                     "2[^ ]+ --- signal 9\n$"));
}

TEST_F(DaemonTest, AFolderThatTakesNoLogIsOneWarningOfRankZero) {
  StartDaemon();
  UntilRegistered(1);
  coordinator_.StartRank(1, StartIn(directory_.File("none")));
  UntilReport("warning");
  std::string message;
  for (const v1::AttachRequest& received : coordinator_.received()) {
    if (!absl::StrContains(received.rank_report().event(), "logs_failed")) continue;
    message = nlohmann::json::parse(received.rank_report().event())["message"].get<std::string>();
  }
  EXPECT_THAT(message, HasSubstr("the ranks' logs of attempt 1 cannot be written to the run's folder: "));
  EXPECT_THAT(message, HasSubstr("none/logs"));
  coordinator_.Command(1, "step");
  coordinator_.Command(1, "exit 0");
  UntilReport("exit 0 0");
}

TEST_F(DaemonTest, AnOlderAttemptIsGoneBeforeANewerStarts) {
  StartDaemon();
  UntilRegistered(1);
  coordinator_.StartRank(1);
  UntilReport("started");
  coordinator_.StartRank(2);
  Until("attempt 2 to start", [&] {
    for (const std::string& report : coordinator_.Reports()) {
      if (report[0] == '2' && report.find(" started") != std::string::npos) return true;
    }
    return false;
  });
  coordinator_.KillRank(2);
  coordinator_.KillRank(2);
  coordinator_.KillRank(7);
  UntilReport("7:1 exit - 0 not known to this worker");
  UntilReport("exit - 9 killed");
  std::vector<std::string> order;
  for (const std::string& report : coordinator_.Reports()) {
    if (report.find("log") == std::string::npos)
      order.push_back(report.substr(0, 2) + report.substr(report.find(' ') + 1));
  }
  EXPECT_EQ(order[0], "1:started");
  EXPECT_EQ(order[1], "1:exit - 9");
  EXPECT_EQ(order[2], "2:started");
}

TEST_F(DaemonTest, ARankThatCannotStartIsReported) {
  options_.place.rank_path = "/nonexistent/tacc-rank";
  StartDaemon();
  UntilRegistered(1);
  coordinator_.StartRank(1);
  UntilReport("1:1 exit - 0 /nonexistent/tacc-rank: cannot be started: No such file or directory");
  v1::AttachResponse message;
  *message.mutable_start_rank()->mutable_id() = FakeWorkerService::Id(2);
  message.mutable_start_rank()->set_start("[");
  coordinator_.Send(message);
  UntilReport("2:1 exit - 0 the start file is not a JSON object");
}

// With the coordinator away the rank goes on; afterwards every event is there, in order, without a gap.
TEST_F(DaemonTest, NothingIsLostWhileTheCoordinatorIsAway) {
  StartDaemon();
  UntilRegistered(1);
  coordinator_.StartRank(1);
  UntilReport("started");
  coordinator_.Acknowledge(false);
  for (int i = 0; i < 5; ++i) coordinator_.Command(1, "step");
  Until("five steps", [&] {
    int steps = 0;
    for (const std::string& report : coordinator_.Reports()) steps += report.find(" step") != std::string::npos;
    return steps == 5;
  });
  coordinator_.Stop();
  const size_t before = coordinator_.Reports().size();
  absl::SleepFor(absl::Milliseconds(300));
  coordinator_.Acknowledge(true);
  coordinator_.Start();
  UntilRegistered(2);
  const v1::Register again = coordinator_.registrations()[1];
  EXPECT_EQ(again.instance(), coordinator_.registrations()[0].instance());
  ASSERT_EQ(again.ranks_size(), 1);
  EXPECT_EQ(again.ranks(0).id().attempt(), 1);
  EXPECT_TRUE(again.ranks(0).running());
  // Once more for an answer: a start asked again changes nothing.
  Until("the resent steps", [&] { return coordinator_.Reports().size() > before; });
  coordinator_.StartRank(1);
  coordinator_.Command(1, "step");
  coordinator_.Command(1, "exit 0");
  UntilReport("exit 0 0");
  std::map<int, std::string> by_sequence;
  for (const std::string& report : coordinator_.Reports()) {
    const int sequence = std::stoi(report.substr(2));
    const auto [it, is_new] = by_sequence.emplace(sequence, report);
    EXPECT_EQ(it->second, report);
  }
  int expected = 1, steps = 0;
  for (const auto& [sequence, report] : by_sequence) {
    EXPECT_EQ(sequence, expected++);
    steps += report.find(" step") != std::string::npos;
  }
  EXPECT_EQ(steps, 6);
  EXPECT_EQ(num_attached_, 1);
}

TEST_F(DaemonTest, PathsAndCheckpoints) {
  StartDaemon();
  UntilRegistered(1);
  v1::AttachResponse check;
  check.mutable_check_paths()->set_request(11);
  check.mutable_check_paths()->add_readable("/nonexistent/model");
  coordinator_.Send(check);
  v1::AttachResponse remove;
  remove.mutable_delete_checkpoints()->set_request(12);
  remove.mutable_delete_checkpoints()->set_checkpoint_dir("relative");
  coordinator_.Send(remove);
  Until("answers", [&] {
    int answers = 0;
    for (const v1::AttachRequest& message : coordinator_.received()) {
      if (message.has_check_paths_result()) {
        EXPECT_EQ(message.check_paths_result().request(), 11u);
        EXPECT_EQ(message.check_paths_result().problems_size(), 1);
        for (const v1::PathProblem& problem : message.check_paths_result().problems())
          EXPECT_THAT(problem.message(), HasSubstr("/nonexistent/model"));
        ++answers;
      }
      if (message.has_delete_checkpoints_result()) {
        EXPECT_EQ(message.delete_checkpoints_result().request(), 12u);
        ++answers;
      }
    }
    return answers == 2;
  });
}

TEST_F(DaemonTest, TheEndKillsAndReapsARankAndSaysSo) {
  StartDaemon();
  UntilRegistered(1);
  coordinator_.StartRank(1);
  UntilReport("started");
  EndDaemon();
  EXPECT_TRUE(result_.ok());
  UntilReport("exit 1 0 killed");  // It saw its stdin close.
}

TEST_F(DaemonTest, TheEndKillsAStubbornRank) {
  TestDirectory::Write(directory_.File("rank"), "#!/bin/sh\necho '{\"event\":\"started\"}'\nexec sleep 100\n");
  StartDaemon();
  UntilRegistered(1);
  coordinator_.StartRank(1);
  UntilReport("started");
  const absl::Time start = absl::Now();
  EndDaemon();
  EXPECT_LT(absl::Now() - start, absl::Seconds(3));
  UntilReport("exit - 9 killed");
}

TEST_F(DaemonTest, ARefusalEndsTheDaemonWithTheCoordinatorsWords) {
  coordinator_.Refuse(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "worker 1.0, coordinator 2.0"));
  StartDaemon();
  thread_.join();
  EXPECT_EQ(result_.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(result_.message(), "worker 1.0, coordinator 2.0");
  EXPECT_EQ(num_attached_, 0);
}

TEST_F(DaemonTest, ATakenNameIsTriedAgain) {
  coordinator_.Refuse(grpc::Status(grpc::StatusCode::ALREADY_EXISTS, "another daemon is called w0"));
  StartDaemon();
  UntilRegistered(2);
  coordinator_.Refuse(grpc::Status::OK);
  Until("attached", [&] { return num_attached_ == 1; });
}

TEST_F(DaemonTest, AMetricsAddressThatCannotBeUsedIsAnError) {
  options_.metrics_listen = "192.0.2.1:1";
  StartDaemon();
  thread_.join();
  EXPECT_EQ(result_.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(result_.message()), HasSubstr("--metrics-listen 192.0.2.1:1"));
}

}  // namespace
}  // namespace tacc::worker
