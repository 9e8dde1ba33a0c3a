#include "worker/daemon/host/rank_host.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "machine/testing/test_directory.h"

namespace tacc::worker {
namespace {

const RankKey kRank = {"job-1", 1, 0};

// A rank that waits for its stdin to close.
class RankHostTest : public ::testing::Test {
 protected:
  void SetUp() override {
    signal(SIGPIPE, SIG_IGN);
    const std::string rank = directory_.File("rank");
    TestDirectory::Write(rank, "#!/bin/sh\nread -r line\n");
    chmod(rank.c_str(), 0755);
    auto state = StateDirectory::Open(directory_.File("state"), 1);
    ASSERT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
    auto log = RotatingLog::Open(directory_.File("log"), 1 << 20);
    ASSERT_TRUE(log.ok()) << log.status();
    log_ = *std::move(log);
    RankPlace place;
    place.rank_path = rank;
    host_.emplace(
        place,
        [this](const ProcessOptions& options) {
          auto process = ChildProcess::Start(options);
          if (process.ok()) pid_ = (*process)->pid();
          return process;
        },
        state_.get(), &supervisor_, log_.get(), &run_log_);
    RankStart start;
    start.key = kRank;
    start.start_json = "{}";
    host_->Do(supervisor_.StartRank(std::move(start), 0));
    ASSERT_GT(pid_, 0);
  }

  // Until the process has ended; it is not reaped.
  void Wait() {
    siginfo_t info;
    ASSERT_EQ(waitid(P_PID, pid_, &info, WEXITED | WNOWAIT), 0);
  }

  // What is reported of its end.
  ExitReport End() {
    ExitReport exit;
    while (const Report* report = supervisor_.reports().Next()) {
      if (report->kind == ReportKind::kExit) exit = report->exit;
    }
    return exit;
  }

  TestDirectory directory_;
  Supervisor supervisor_{ReportBuffer::Limits()};
  RunLog run_log_{RunLog::Limits()};
  std::unique_ptr<StateDirectory> state_;
  std::unique_ptr<RotatingLog> log_;
  absl::optional<RankHost> host_;
  pid_t pid_ = 0;
};

TEST_F(RankHostTest, OneThatIsKilledOnRequestWasKilled) {
  host_->KillRank(kRank);
  Wait();
  host_->Turn();
  const ExitReport exit = End();
  EXPECT_TRUE(exit.killed);
  EXPECT_EQ(exit.signal, SIGKILL);
}

TEST_F(RankHostTest, OneThatHadEndedBeforeTheRequestWasNot) {
  kill(pid_, SIGKILL);
  Wait();
  host_->KillRank(kRank);
  EXPECT_EQ(host_->Process(), "");
  const ExitReport exit = End();
  EXPECT_FALSE(exit.killed);
  EXPECT_EQ(exit.signal, SIGKILL);
}

}  // namespace
}  // namespace tacc::worker
