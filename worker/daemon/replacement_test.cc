// A daemon whose place another one takes, beside a rank that runs on.
#include "worker/daemon/replacement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <set>
#include <string>
#include <vector>

#include "machine/testing/test_directory.h"
#include "nlohmann/json.hpp"
#include "worker/daemon/testing/daemon_fixture.h"
#include "worker/daemon/testing/fake_worker_service.h"

namespace tacc::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(DaemonTest, ItsRankGoesOnUnderAnother) {
  mkdir(directory_.File("run").c_str(), 0755);
  StartDaemon();
  UntilRegistered(1);
  coordinator_.StartRank(1,
                         nlohmann::json({{"job", "job-1"}, {"checkpoint", {{"dir", directory_.File("run")}}}}).dump());
  coordinator_.Command(1, "step");
  UntilReport("step");
  Replace();
  UntilRegistered(2);
  const v1::Register before = coordinator_.registrations()[0], after = coordinator_.registrations()[1];
  EXPECT_EQ(after.instance(), before.instance());
  EXPECT_EQ(after.device().model(), "test CPU");
  ASSERT_EQ(after.ranks_size(), 1);
  EXPECT_TRUE(after.ranks(0).running());
  coordinator_.Command(1, "some words");
  coordinator_.Command(1, "step");
  coordinator_.Command(1, "exit 0");
  UntilReport("exit 0 0");
  std::vector<std::string> events;
  std::set<std::string> known;  // What was not acknowledged before comes again, by the same number.
  for (const std::string& report : coordinator_.Reports()) {
    if (report.find("log") == std::string::npos && known.insert(report).second)
      events.push_back(report.substr(report.find(' ') + 1));
  }
  EXPECT_THAT(events, ElementsAre("started", "step", "step", "finished", "exit 0 0"));
  Until("cleaning",
        [&] { return TestDirectory::Names(state_->path()) == std::vector<std::string>({"lock", "rank.log", "run"}); });
  EndDaemon();
  EXPECT_TRUE(result_.ok()) << result_;
  EXPECT_TRUE(handed_.is_null());
  EXPECT_THAT(TestDirectory::Read(directory_.File("run/logs/attempt-1/rank-00000.log")),
              testing::ContainsRegex("--- w0 was replaced and goes on with pid [0-9]+\n(.+\n)*"
                                     "2[^ ]+ got some words\n(.+\n)*2[^ ]+ --- exit code 0\n$"));
}

TEST_F(DaemonTest, AnEndBetweenTheTwoIsSeenByTheSecond) {
  StartDaemon();
  UntilRegistered(1);
  coordinator_.StartRank(1);
  UntilReport("started");
  coordinator_.Stop();  // What is to be reported waits.
  AskForReplacement();
  thread_.join();
  ASSERT_FALSE(handed_.is_null());
  ASSERT_EQ(kill(handed_["rank"]["pid"].get<pid_t>(), SIGKILL), 0);
  coordinator_.Start();
  options_.coordinator = coordinator_.address();
  RunOnThread();
  UntilReport("exit - 9");
  EndDaemon();
}

TEST_F(DaemonTest, AnIdleOneIsReplacedToo) {
  StartDaemon();
  UntilRegistered(1);
  Replace();
  UntilRegistered(2);
  coordinator_.StartRank(1);
  UntilReport("started");
}

TEST_F(DaemonTest, ItStaysWhereThereIsNoOther) {
  replacement_ = absl::FailedPreconditionError("it cannot");
  StartDaemon();
  UntilRegistered(1);
  coordinator_.StartRank(1);
  UntilReport("started");
  AskForReplacement();
  coordinator_.Command(1, "step");
  UntilReport("step");
  EXPECT_EQ(coordinator_.registrations().size(), 1u);
  coordinator_.Command(1, "exit 0");
  UntilReport("exit 0 0");
  EndDaemon();
  EXPECT_TRUE(handed_.is_null());
}

TEST_F(DaemonTest, WhatIsNoHandoverIsRefused) {
  handed_ = {{"instance", 7}};
  StartDaemon();
  thread_.join();
  EXPECT_EQ(result_.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result_.message()), HasSubstr("what was handed over cannot be read"));
}

TEST(Replacement, WhatHasNoSuchFlagCannotTakeOver) {
  EXPECT_THAT(std::string(CheckReplacement({"/bin/echo", "words"}).message()),
              HasSubstr("/bin/echo cannot take over: it exited with 0 and said: words --check-take-over"));
  EXPECT_THAT(std::string(CheckReplacement({"/nowhere/tacc-worker"}).message()), HasSubstr("/nowhere/tacc-worker"));
}

TEST(Replacement, OwnCommandIsWithoutItsFlags) {
  std::vector<std::string> given = {"bin/tacc-worker", "--name", "w0", "--take-over-fd", "7", "--insecure"};
  std::vector<char*> argv;
  for (std::string& one : given) argv.push_back(one.data());
  EXPECT_THAT(OwnCommand(static_cast<int>(argv.size()), argv.data()),
              ElementsAre(testing::EndsWith("/bin/tacc-worker"), "--name", "w0", "--insecure"));
  given = {"tacc-worker"};
  argv = {given[0].data()};
  EXPECT_THAT(OwnCommand(1, argv.data()), ElementsAre(testing::MatchesRegex("/.*/worker_daemon_test")));
}

TEST(Replacement, WhatIsNotInMemoryIsRefused) {
  EXPECT_EQ(TakeHandedOver(9999).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tacc::worker
