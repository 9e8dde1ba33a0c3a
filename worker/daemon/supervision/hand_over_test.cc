// What a supervisor hands over, and what the next one makes of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "worker/daemon/supervision/supervisor.h"

namespace tacc::worker {
namespace {

using ::testing::ElementsAre;
using Json = nlohmann::json;

RankStart Start(int32_t attempt) {
  RankStart start;
  start.key = {"job-1", attempt, 0};
  return start;
}

// As it goes from one program to the next.
Json Passed(const Json& handed) { return Json::from_cbor(Json::to_cbor(handed)); }

// Sequence, time and content of all that is to be sent.
std::vector<std::string> Sent(Supervisor* supervisor) {
  std::vector<std::string> sent;
  supervisor->reports().Rewind();
  while (const Report* report = supervisor->reports().Next()) {
    std::string text =
        absl::StrCat(report->key.Text(), " #", report->sequence, " at ", report->time, " ", report->event);
    for (const std::string& line : report->log_lines) absl::StrAppend(&text, line, ";");
    if (report->kind == ReportKind::kExit) {
      absl::StrAppend(&text, "exit ", report->exit.exit_code.value_or(-1), " ", report->exit.signal, " ",
                      report->exit.start_error, report->exit.killed ? " killed" : "");
      for (const std::string& line : report->exit.last_log_lines) absl::StrAppend(&text, ", ", line);
    }
    sent.push_back(std::move(text));
  }
  return sent;
}

TEST(HandOver, ASecondOneGoesOnAsTheFirst) {
  Supervisor first{ReportBuffer::Limits()};
  first.StartRank(Start(1), 1);
  first.EventLine(R"({"event":"started"})", 1);
  first.EventLine(R"({"event":"step","step":1,"loss":2.5})", 2);
  first.LogLine("one", 2.5);
  first.reports().Acknowledge({"job-1", 1, 0}, 1);
  ASSERT_TRUE(first.CanHandOver());
  Supervisor second{ReportBuffer::Limits()};
  second.TakeOver(Passed(first.HandOver()));
  EXPECT_EQ(Sent(&second), Sent(&first));
  EXPECT_EQ(second.running(), first.running());
  EXPECT_EQ(second.process(), Supervisor::Process::kRunning);
  EXPECT_EQ(second.metrics(), first.metrics());
  EXPECT_EQ(second.reports().num_bytes(), first.reports().num_bytes());
  for (Supervisor* supervisor : {&first, &second}) {
    supervisor->LogLine("two", 3);
    supervisor->EventLine(R"({"event":"finished","step":1})", 4);
    supervisor->Exited({.exit_code = 0}, 5);
  }
  EXPECT_THAT(Sent(&second), ElementsAre(R"(job job-1 attempt 1 rank 0 #2 at 2 {"event":"step","step":1,"loss":2.5})",
                                         "job job-1 attempt 1 rank 0 #3 at 4 one;two;",
                                         R"(job job-1 attempt 1 rank 0 #4 at 4 {"event":"finished","step":1})",
                                         "job job-1 attempt 1 rank 0 #5 at 5 exit 0 0 , one, two"));
  EXPECT_EQ(Sent(&second), Sent(&first));
}

TEST(HandOver, OfARankThatHasSaidThatItFails) {
  Supervisor first{ReportBuffer::Limits()};
  first.StartRank(Start(1), 1);
  first.EventLine(R"({"event":"failed","code":"device","message":"no answer"})", 2);
  Supervisor second{ReportBuffer::Limits()};
  second.TakeOver(Passed(first.HandOver()));
  EXPECT_EQ(second.process(), Supervisor::Process::kFailed);
  second.Exited({.exit_code = 1}, 3);
  EXPECT_EQ(second.TakeFailure(), "job job-1 attempt 1 rank 0: no answer");
}

TEST(HandOver, NumbersOfRanksThatAreGoneAreKept) {
  Supervisor first{ReportBuffer::Limits()};
  first.StartRank(Start(1), 1);
  first.Exited({.signal = 9}, 2);
  first.TakeFailure();
  first.reports().Acknowledge({"job-1", 1, 0}, 1);
  EXPECT_TRUE(first.Held().empty());
  Supervisor second{ReportBuffer::Limits()};
  second.TakeOver(Passed(first.HandOver()));
  EXPECT_TRUE(second.Held().empty());
  EXPECT_FALSE(second.running().has_value());
  second.KillRank({"job-1", 1, 0}, 3);
  EXPECT_THAT(Sent(&second), ElementsAre("job job-1 attempt 1 rank 0 #2 at 3 exit -1 0 not known to this worker"));
}

TEST(HandOver, NotWhileAProcessEnds) {
  Supervisor supervisor{ReportBuffer::Limits()};
  EXPECT_TRUE(supervisor.CanHandOver());
  supervisor.StartRank(Start(1), 1);
  supervisor.StartRank(Start(2), 2);  // The first is killed.
  EXPECT_FALSE(supervisor.CanHandOver());
  supervisor.Exited({.signal = 9}, 3);
  EXPECT_TRUE(supervisor.CanHandOver());
  supervisor.Stop(4);
  EXPECT_FALSE(supervisor.CanHandOver());
}

TEST(HandOver, OfAnotherKindIsAnError) {
  Supervisor supervisor{ReportBuffer::Limits()};
  EXPECT_THROW(supervisor.TakeOver(Json::object()), Json::exception);
}

}  // namespace
}  // namespace tacc::worker
