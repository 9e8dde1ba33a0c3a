// For tests: a daemon in a thread, with a coordinator and a rank made for the test.
#ifndef TACC_WORKER_DAEMON_TESTING_DAEMON_FIXTURE_H_
#define TACC_WORKER_DAEMON_TESTING_DAEMON_FIXTURE_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "machine/testing/test_directory.h"
#include "nlohmann/json.hpp"
#include "spdlog/logger.h"
#include "spdlog/sinks/null_sink.h"
#include "worker/daemon/daemon.h"
#include "worker/daemon/host/state_directory.h"
#include "worker/daemon/testing/fake_worker_service.h"

namespace tacc::worker {

// Says what it was given, one event a command, and ends as it is told or when its stdin ends.
inline constexpr char kRankScript[] = R"(#!/bin/bash
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

// A test sets options_ before it starts the daemon.
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
    options_.place = {.rank_path = directory_.File("rank"),
                      .device = "cpu",
                      .num_threads = 3,
                      .memory_bytes = 4096,
                      .advertise = "127.0.0.1",
                      .worker = "w0"};
    options_.device.set_model("test CPU");
    ASSERT_EQ(pipe(replace_pipe_), 0);
    options_.end_descriptors = {end_pipe_[0]};
    options_.replace_descriptor = replace_pipe_[0];
    options_.check_replacement = [this] { return replacement_; };
    options_.stop_seconds = 0.5;
    options_.run_log.end_seconds = 10;
    options_.on_attached = [this] { ++num_attached_; };
  }
  void TearDown() override {
    EndDaemon();
    coordinator_.Stop();
    for (const int fd : {end_pipe_[0], end_pipe_[1], replace_pipe_[0], replace_pipe_[1]}) close(fd);
  }

  void StartDaemon() {
    auto state = StateDirectory::Open(directory_.File("state"), 0);
    ASSERT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
    RunOnThread();
  }
  // Has another daemon take its place, as a signal would.
  void AskForReplacement() { ASSERT_EQ(write(replace_pipe_[1], "x", 1), 1); }
  void Replace() {
    AskForReplacement();
    thread_.join();
    ASSERT_TRUE(result_.ok()) << result_;
    ASSERT_FALSE(handed_.is_null());
    const nlohmann::json state = state_->HandOver();
    auto taken = StateDirectory::TakeOver(state);
    ASSERT_TRUE(taken.ok()) << taken.status();
    state_ = *std::move(taken);
    handed_ = nlohmann::json::from_cbor(nlohmann::json::to_cbor(handed_));
    RunOnThread();
  }
  void RunOnThread() {
    thread_ = std::thread([this] {
      spdlog::logger logger("test", std::make_shared<spdlog::sinks::null_sink_mt>());
      result_ = RunDaemon(options_, state_.get(), &logger, &handed_);
    });
  }
  // Ends it as a signal would, and waits for it; result_ is what it returned.
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
  // Some report holds `text` (FakeWorkerService::Reports).
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
  int replace_pipe_[2] = {-1, -1};
  absl::Status replacement_;  // Whether there is one that can take over.
  nlohmann::json handed_;
  std::thread thread_;
  absl::Status result_;
  std::atomic<int> num_attached_ = 0;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_TESTING_DAEMON_FIXTURE_H_
