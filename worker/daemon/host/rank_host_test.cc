#include "worker/daemon/host/rank_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "confinement/cgroup.h"
#include "confinement/testing/own_cgroup.h"
#include "machine/testing/test_directory.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/files/posix_file.h"

namespace tacc::worker {
namespace {

const RankKey kRank = {"job-1", 1, 0};

// A rank that waits for its stdin to close.
class RankHostTest : public ::testing::Test {
 protected:
  void SetUp() override { Start("read -r line\n", nullptr); }

  void Start(const std::string& script, Cgroups* cgroups) {
    signal(SIGPIPE, SIG_IGN);
    const std::string rank = directory_.Script("rank", script);
    auto state = StateDirectory::Open(directory_.File("state"), 1);
    ASSERT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
    auto log = RotatingLog::Open(directory_.File("log"), 1 << 20);
    ASSERT_TRUE(log.ok()) << log.status();
    log_ = *std::move(log);
    RankPlace place;
    place.rank_path = rank;
    place.local_folder = state_->LocalFolder();
    place.cgroups = cgroups;
    place.confinement.paths = AllowedPaths({"/data", "/runs"}, {"/uploads"});
    place.op_libraries = {"/opt/a.so", "/opt/b.so"};
    host_.emplace(
        place,
        [this](const ProcessOptions& options) {
          started_ = options;
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
  ProcessOptions started_;
  pid_t pid_ = 0;
};

TEST_F(RankHostTest, ARankIsToldWhereFilesMayBeAndWhatCodeThereIsAndInheritsNoSecrets) {
  EXPECT_THAT(std::vector<std::string>(started_.argv.begin() + 5, started_.argv.end()),
              ::testing::ElementsAre("--allow-path", "/data", "--allow-path", "/runs", "--allow-read", "/uploads",
                                     "--op-library", "/opt/a.so", "--op-library", "/opt/b.so"));
  ASSERT_TRUE(started_.inherits);
  EXPECT_TRUE(started_.inherits("PATH"));
  EXPECT_FALSE(started_.inherits("TACC_TOKEN"));
  struct stat info = {};
  ASSERT_EQ(stat(state_->RunPath().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700);
}

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

TEST_F(RankHostTest, HasAFolderForProcessesOfItsUserWhileItRuns) {
  const auto start = ReadSmallFile(state_->StartPath(), 1 << 20);
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_EQ(nlohmann::json::parse(*start).at("local_folder"), state_->LocalFolder());
  struct stat info = {};
  ASSERT_EQ(stat(state_->LocalFolder().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  TestDirectory::Write(state_->LocalFolder() + "/socket", "left");
  kill(pid_, SIGKILL);
  Wait();
  host_->Turn();
  EXPECT_NE(stat(state_->LocalFolder().c_str(), &info), 0);
}

class RankCgroupTest : public RankHostTest {
 protected:
  void SetUp() override {
    if (!own_.trouble().empty()) GTEST_SKIP() << own_.trouble();
  }
  void StartWith(const std::string& script, const CgroupLimits& limits) {
    auto cgroups = Cgroups::Open("/", "tacc-x", limits);
    ASSERT_TRUE(cgroups.ok()) << cgroups.status();
    cgroups_ = *std::move(cgroups);
    Start(script, cgroups_.get());
  }
  // Of a rank that starts a process in another session, and then does as `script` says.
  void StartWithStranger(const std::string& script) {
    const std::string id = directory_.File("id");
    StartWith(absl::StrCat("setsid sleep 1000 & echo $! >", id, "\n", script), {});
    while (TestDirectory::Read(id).find('\n') == std::string::npos) usleep(1000);
    EXPECT_THAT(TestDirectory::Read(Folder() + "/cgroup.procs"), ::testing::HasSubstr(TestDirectory::Read(id)));
  }
  // Its cgroup goes only with all that was in it.
  void ExpectEmpty() {
    Wait();
    host_->Turn();
    EXPECT_FALSE(std::filesystem::exists(Folder()));
  }
  std::string Folder() const { return cgroups_->path() + "/job-1.attempt-1.rank-0"; }

  OwnCgroup own_;
  std::unique_ptr<Cgroups> cgroups_;
};

TEST_F(RankCgroupTest, NothingOutlivesOneThatIsKilled) {
  StartWithStranger("read -r line\n");
  host_->KillRank(kRank);
  ExpectEmpty();
  EXPECT_TRUE(End().killed);
}

TEST_F(RankCgroupTest, NothingOutlivesOneThatEnds) {
  StartWithStranger("exit 0\n");
  ExpectEmpty();
  EXPECT_EQ(End().exit_code, 0);
}

TEST_F(RankCgroupTest, OneThatIsEndedForWantOfMemorySaysSo) {
  if (const std::string trouble = own_.LimitTrouble(); !trouble.empty()) GTEST_SKIP() << trouble;
  StartWith("head -c 200000000 /dev/zero | tail >/dev/null\n", {.memory_bytes = 32 << 20});
  Wait();
  host_->Turn();
  std::vector<std::string> events;
  while (const Report* report = supervisor_.reports().Next()) {
    if (report->kind == ReportKind::kEvent) events.push_back(report->event);
  }
  ASSERT_EQ(events.size(), 1u);
  const auto event = nlohmann::json::parse(events[0]);
  EXPECT_EQ(event.at("event"), "failed");
  EXPECT_EQ(event.at("code"), "memory");
  EXPECT_THAT(event.at("message").get<std::string>(),
              ::testing::HasSubstr("more than 32.0 MiB (tacc-worker --rank-memory)"));
}

}  // namespace
}  // namespace tacc::worker
