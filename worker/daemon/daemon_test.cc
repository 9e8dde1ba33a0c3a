// The daemon against a coordinator and a rank made for the test: the real stream, processes and files.
#include "worker/daemon/daemon.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "machine/testing/test_directory.h"
#include "nlohmann/json.hpp"
#include "worker/daemon/testing/daemon_fixture.h"
#include "worker/daemon/testing/fake_worker_service.h"

namespace tacc::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

TEST_F(DaemonTest, ADeadRankIsReportedWithItsLastLines) {
  StartDaemon();
  UntilRegistered(1);
  coordinator_.StartRank(1);
  coordinator_.Command(1, "some words");
  coordinator_.Command(1, "die");
  UntilReport("exit - 9");
  std::vector<std::string> last_lines;  // A heartbeat may have come since.
  for (const v1::AttachRequest& received : coordinator_.received()) {
    const auto& lines = received.rank_report().exited().last_log_lines();
    if (!lines.empty()) last_lines.assign(lines.begin(), lines.end());
  }
  EXPECT_THAT(last_lines, ElementsAre("threads 3, which look 1000 times", "status block", "got some words"));
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

TEST_F(DaemonTest, AnswersCarryTheNumberOfTheirQuestion) {
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
