#include "worker/daemon/supervision/supervisor.h"

#include <gtest/gtest.h>

namespace tacc::worker {
namespace {

RankStart Start(const std::string& job, int attempt) { return {{job, attempt, 0}, "{}", "program"}; }

std::string Text(const Supervisor::Actions& actions) {
  std::string text;
  for (const Action& action : actions) {
    switch (action.kind) {
      case Action::Kind::kSpawn:
        absl::StrAppend(&text, "spawn ", action.start.key.job, ".a", action.start.key.attempt, ";");
        break;
      case Action::Kind::kKill:
        text += "kill;";
        break;
      case Action::Kind::kCloseStdin:
        text += "close;";
        break;
      case Action::Kind::kWriteLine:
        absl::StrAppend(&text, "write ", action.line, ";");
        break;
    }
  }
  return text;
}

// All reports not sent yet, one a line.
std::string Reports(Supervisor* supervisor) {
  std::string text;
  while (const Report* report = supervisor->reports().Next()) {
    absl::StrAppend(&text, report->key.job, ".a", report->key.attempt, " ", report->sequence, " ");
    if (report->kind == ReportKind::kExit) {
      absl::StrAppend(&text,
                      "exit code=", report->exit.exit_code.has_value() ? absl::StrCat(*report->exit.exit_code) : "-",
                      " signal=", report->exit.signal, report->exit.killed ? " killed" : "",
                      report->exit.start_error.empty() ? "" : absl::StrCat(" error=", report->exit.start_error));
    } else if (report->kind == ReportKind::kLog) {
      text += "log";
      for (const std::string& line : report->log_lines) absl::StrAppend(&text, " [", line, "]");
    } else {
      text += report->event;
    }
    text += "\n";
  }
  return text;
}

ProcessEnd Code(int code) { return {code, 0}; }
ProcessEnd Signal(int signal) { return {absl::nullopt, signal}; }

TEST(SupervisorTest, ARankFromStartToExit) {
  Supervisor supervisor({});
  EXPECT_EQ(Text(supervisor.StartRank(Start("j", 1), 1)), "spawn j.a1;");
  EXPECT_EQ(Text(supervisor.StartRank(Start("j", 1), 1)), "");  // Asked again.
  supervisor.LogLine("hello", 2);
  supervisor.EventLine(R"({"event":"step","loss":2.5})", 2);
  supervisor.EventLine("not json", 2);
  supervisor.EventLine(R"({"event":"eval","loss":7})", 2);
  EXPECT_EQ(Text(supervisor.RankCommand({"j", 1, 0}, "x")), "write x;");
  EXPECT_EQ(Text(supervisor.RankCommand({"j", 2, 0}, "x")), "");
  EXPECT_EQ(supervisor.metrics().at("step.loss"), 2.5);
  EXPECT_EQ(Text(supervisor.Exited(Code(3), 3)), "");
  EXPECT_EQ(Reports(&supervisor),
            "j.a1 1 log [hello]\n"
            "j.a1 2 {\"event\":\"step\",\"loss\":2.5}\n"
            "j.a1 3 log [not json]\n"
            "j.a1 4 {\"event\":\"eval\",\"loss\":7}\n"
            "j.a1 5 exit code=3 signal=0\n");
  EXPECT_FALSE(supervisor.running().has_value());
  EXPECT_EQ(Text(supervisor.StartRank(Start("j", 1), 4)), "");  // Its exit is not acknowledged yet.
}

TEST(SupervisorTest, AnOlderAttemptIsReapedBeforeANewerStarts) {
  Supervisor supervisor({});
  supervisor.StartRank(Start("j", 1), 1);
  EXPECT_EQ(Text(supervisor.StartRank(Start("j", 2), 1)), "kill;");
  EXPECT_EQ(Text(supervisor.StartRank(Start("j", 2), 1)), "");
  EXPECT_EQ(Text(supervisor.RankCommand({"j", 1, 0}, "x")), "");
  EXPECT_EQ(Text(supervisor.RankCommand({"j", 2, 0}, "y")), "");
  EXPECT_EQ(Text(supervisor.Exited(Signal(9), 2)), "spawn j.a2;write y;");
  EXPECT_EQ(Reports(&supervisor), "j.a1 1 exit code=- signal=9\n");
}

TEST(SupervisorTest, AnOlderAttemptNeverReplacesANewer) {
  Supervisor supervisor({});
  supervisor.StartRank(Start("j", 2), 1);
  EXPECT_EQ(Text(supervisor.StartRank(Start("j", 1), 1)), "");
  EXPECT_EQ(Reports(&supervisor), "j.a1 1 exit code=- signal=0 error=attempt 2 is newer than attempt 1\n");
  EXPECT_EQ(supervisor.running()->attempt, 2);
}

TEST(SupervisorTest, AnotherJobTakesTheDevice) {
  Supervisor supervisor({});
  supervisor.StartRank(Start("a", 5), 1);
  EXPECT_EQ(Text(supervisor.StartRank(Start("b", 1), 1)), "kill;");
  EXPECT_EQ(Text(supervisor.StartRank(Start("c", 1), 1)), "");
  EXPECT_EQ(Text(supervisor.Exited(Signal(9), 2)), "spawn c.a1;");
  EXPECT_EQ(Reports(&supervisor),
            "b.a1 1 exit code=- signal=0 error=replaced by job c attempt 1 rank 0 before it started\n"
            "a.a5 1 exit code=- signal=9\n");
}

TEST(SupervisorTest, KillIsAnsweredAlwaysAndOnce) {
  Supervisor supervisor({});
  supervisor.StartRank(Start("j", 1), 1);
  EXPECT_EQ(Text(supervisor.KillRank({"j", 1, 0}, 1)), "kill;");
  EXPECT_EQ(Text(supervisor.KillRank({"j", 1, 0}, 1)), "");
  supervisor.Exited(Signal(9), 2);
  EXPECT_EQ(Text(supervisor.KillRank({"j", 1, 0}, 2)), "");
  EXPECT_EQ(Reports(&supervisor), "j.a1 1 exit code=- signal=9 killed\n");
  supervisor.reports().Acknowledge({"j", 1, 0}, 1);
  EXPECT_EQ(Text(supervisor.KillRank({"j", 1, 0}, 3)), "");
  EXPECT_EQ(Reports(&supervisor), "j.a1 2 exit code=- signal=0 error=not known to this worker\n");
}

TEST(SupervisorTest, AProcessThatDoesNotEndIsGivenUp) {
  using Process = Supervisor::Process;
  Supervisor supervisor({});
  EXPECT_EQ(supervisor.process(), Process::kNone);
  supervisor.StartRank(Start("j", 1), 1);
  EXPECT_EQ(supervisor.process(), Process::kRunning);
  supervisor.GiveUp("it runs", 1);  // Nobody has killed it.
  EXPECT_EQ(supervisor.process(), Process::kRunning);
  EXPECT_EQ(Text(supervisor.KillRank({"j", 1, 0}, 2)), "kill;");
  EXPECT_EQ(supervisor.process(), Process::kKilled);
  supervisor.StartRank(Start("k", 1), 2);
  supervisor.GiveUp("it hangs", 3);
  EXPECT_EQ(supervisor.process(), Process::kStuck);
  EXPECT_FALSE(supervisor.running().has_value());
  EXPECT_EQ(Reports(&supervisor),
            "j.a1 1 {\"code\":\"process_stuck\",\"event\":\"warning\",\"message\":\"it hangs\",\"time\":3.0}\n"
            "j.a1 2 exit code=- signal=0 killed\n"
            "k.a1 1 exit code=- signal=0 error=it hangs\n");
  // Nothing starts beside it, and nothing more is heard of it until it has gone.
  EXPECT_EQ(Text(supervisor.StartRank(Start("l", 1), 4)), "");
  supervisor.EventLine(R"({"event":"step"})", 4);
  EXPECT_EQ(Reports(&supervisor), "l.a1 1 exit code=- signal=0 error=it hangs\n");
  EXPECT_EQ(supervisor.TakeFailure(), absl::nullopt);
  EXPECT_EQ(Text(supervisor.Exited(Signal(9), 5)), "");
  EXPECT_EQ(Reports(&supervisor), "");
  EXPECT_EQ(supervisor.TakeFailure(), "the process that did not end has gone");
  EXPECT_EQ(supervisor.process(), Process::kNone);
  EXPECT_EQ(Text(supervisor.StartRank(Start("m", 1), 6)), "spawn m.a1;");
}

TEST(SupervisorTest, ARankThatHadFailedBeforeItWasKilledHasFailed) {
  Supervisor supervisor({});
  supervisor.StartRank(Start("j", 1), 1);
  supervisor.EventLine(R"({"event":"failed","code":"device","message":"cuda:0: the device has stopped"})", 2);
  EXPECT_EQ(supervisor.process(), Supervisor::Process::kFailed);
  EXPECT_EQ(Text(supervisor.KillRank({"j", 1, 0}, 3)), "kill;");
  supervisor.Exited(Signal(9), 4);
  EXPECT_EQ(supervisor.TakeFailure(), "job j attempt 1 rank 0: cuda:0: the device has stopped");
}

std::string Held(const Supervisor& supervisor) {
  std::string text;
  for (const HeldRank& held : supervisor.Held())
    absl::StrAppend(&text, held.key.attempt, held.has_exited ? " exited;" : " runs;");
  return text;
}

TEST(SupervisorTest, HeldAreTheRunningTheWaitingAndTheUnacknowledged) {
  Supervisor supervisor({});
  EXPECT_EQ(Held(supervisor), "");
  supervisor.StartRank(Start("j", 1), 1);
  EXPECT_EQ(Held(supervisor), "1 runs;");
  supervisor.LogLine("x", 1);
  supervisor.FlushLogs(1);
  supervisor.StartRank(Start("j", 2), 1);
  EXPECT_EQ(Held(supervisor), "1 runs;2 runs;");
  supervisor.Exited(Signal(9), 2);
  EXPECT_EQ(Held(supervisor), "1 exited;2 runs;");
  supervisor.reports().Acknowledge({"j", 1, 0}, 2);
  EXPECT_EQ(Held(supervisor), "2 runs;");
}

TEST(SupervisorTest, KillOfARankThatWaitsToStart) {
  Supervisor supervisor({});
  supervisor.StartRank(Start("j", 1), 1);
  supervisor.StartRank(Start("j", 2), 1);
  EXPECT_EQ(Text(supervisor.KillRank({"j", 2, 0}, 1)), "");
  EXPECT_EQ(Text(supervisor.Exited(Signal(9), 2)), "");
  EXPECT_EQ(Reports(&supervisor),
            "j.a2 1 exit code=- signal=0 killed error=killed before it started\n"
            "j.a1 1 exit code=- signal=9\n");
}

TEST(SupervisorTest, ARankThatFinishesWhileItIsKilledHasFinished) {
  Supervisor supervisor({});
  supervisor.StartRank(Start("j", 1), 1);
  supervisor.EventLine(R"({"event":"finished"})", 1);
  supervisor.KillRank({"j", 1, 0}, 1);
  supervisor.Exited(Code(0), 2);
  EXPECT_EQ(Reports(&supervisor), "j.a1 1 {\"event\":\"finished\"}\nj.a1 2 exit code=0 signal=0\n");
}

TEST(SupervisorTest, AStartThatFailsIsAnExitAndTheNextStarts) {
  Supervisor supervisor({});
  supervisor.StartRank(Start("j", 1), 1);
  supervisor.StartRank(Start("j", 2), 1);
  EXPECT_EQ(Text(supervisor.StartFailed("no such file", 1)), "spawn j.a2;");
  EXPECT_EQ(Reports(&supervisor), "j.a1 1 exit code=- signal=0 error=no such file\n");
}

TEST(SupervisorTest, StopAsksThenKillsAndStartsNothing) {
  Supervisor supervisor({});
  supervisor.StartRank(Start("j", 1), 1);
  EXPECT_EQ(Text(supervisor.Stop(1)), "close;");
  EXPECT_EQ(Text(supervisor.StartRank(Start("j", 2), 1)), "");
  EXPECT_EQ(Text(supervisor.Kill()), "kill;");
  EXPECT_EQ(Text(supervisor.Kill()), "");
  EXPECT_EQ(Text(supervisor.Exited(Signal(9), 2)), "");
  EXPECT_EQ(Reports(&supervisor),
            "j.a2 1 exit code=- signal=0 error=the worker is ending\n"
            "j.a1 1 exit code=- signal=9 killed\n");
  EXPECT_EQ(Text(supervisor.Stop(3)), "");
}

TEST(SupervisorTest, FailuresAreEndsForWhichTheDeviceMayBeToBlame) {
  Supervisor supervisor({});
  const auto end = [&](int attempt, const ProcessEnd& how) {
    supervisor.Exited(how, 2);
    const absl::optional<std::string> failure = supervisor.TakeFailure();
    EXPECT_FALSE(supervisor.TakeFailure().has_value());
    supervisor.StartRank(Start("j", attempt + 1), 1);
    return failure.value_or("none");
  };
  supervisor.StartRank(Start("j", 1), 1);
  EXPECT_EQ(end(1, Signal(11)), "job j attempt 1 rank 0: signal 11");
  supervisor.EventLine(R"({"event":"failed","code":"device","message":"cuda:0: error 719, launch failed"})", 1);
  EXPECT_EQ(end(2, Code(1)), "job j attempt 2 rank 0: cuda:0: error 719, launch failed");
  EXPECT_EQ(end(3, Code(1)), "job j attempt 3 rank 0: exit code 1");
  for (int attempt = 4; attempt < 8; ++attempt) EXPECT_EQ(end(attempt, Code(attempt == 4 ? 0 : attempt - 3)), "none");
  supervisor.KillRank({"j", 8, 0}, 1);
  EXPECT_EQ(end(8, Signal(9)), "none");
  supervisor.StartRank(Start("j", 10), 1);  // Replaces attempt 9.
  EXPECT_EQ(end(10, Signal(9)), "none");
}

TEST(SupervisorTest, TheLastTwentyLogLinesComeWithTheExit) {
  Supervisor supervisor({});
  supervisor.StartRank(Start("j", 1), 1);
  for (int i = 0; i < 450; ++i) supervisor.LogLine(absl::StrCat("line ", i), 1);
  supervisor.FlushLogs(1);
  supervisor.Exited(Code(1), 2);
  std::vector<size_t> sizes;
  while (const Report* report = supervisor.reports().Next()) {
    if (report->kind == ReportKind::kLog) sizes.push_back(report->log_lines.size());
    if (report->kind != ReportKind::kExit) continue;
    ASSERT_EQ(report->exit.last_log_lines.size(), 20u);
    EXPECT_EQ(report->exit.last_log_lines.front(), "line 430");
    EXPECT_EQ(report->exit.last_log_lines.back(), "line 449");
  }
  EXPECT_EQ(sizes, (std::vector<size_t>{200, 200, 50}));
}

}  // namespace
}  // namespace tacc::worker
