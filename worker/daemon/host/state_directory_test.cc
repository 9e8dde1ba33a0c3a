#include "worker/daemon/host/state_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "machine/testing/test_directory.h"
#include "process/child_process.h"
#include "worker/rank/protocol/status_block.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;

TEST(StateDirectoryTest, OneDaemonOnly) {
  TestDirectory directory;
  const std::string path = directory.File("deep/state");
  {
    const auto first = StateDirectory::Open(path, 0);
    ASSERT_TRUE(first.ok()) << first.status();
    const auto second = StateDirectory::Open(directory.File("deep/../deep/state"), 0);
    EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
    EXPECT_THAT(std::string(second.status().message()), HasSubstr("used by another daemon"));
  }
  EXPECT_TRUE(StateDirectory::Open(path, 0).ok());
}

TEST(StateDirectoryTest, AFileInTheWayIsNamed) {
  TestDirectory directory;
  TestDirectory::Write(directory.File("state"), "x");
  EXPECT_THAT(std::string(StateDirectory::Open(directory.File("state"), 0).status().message()),
              HasSubstr("state directory"));
}

TEST(StateDirectoryTest, ClearsWhatAKilledDaemonLeft) {
  TestDirectory directory;
  auto rank = ChildProcess::Start({.argv = {"/bin/sleep", "100"}});
  ASSERT_TRUE(rank.ok());
  const pid_t daemon = fork();
  if (daemon == 0) {
    auto state = StateDirectory::Open(directory.path(), 0);
    if (!state.ok()) _exit(1);
    auto block = StatusBlock::Create((*state)->status_block_prefix() + "1", 1);
    if (!(*state)->WriteStartFiles("{}", "program").ok() || !(*state)->RecordRank((*rank)->pid()).ok()) _exit(2);
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(daemon, &status, 0), daemon);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  const auto state = StateDirectory::Open(directory.path(), 0);
  ASSERT_TRUE(state.ok()) << state.status();
  const auto end = (*rank)->TryReap();
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->signal, SIGKILL);
  EXPECT_FALSE(StatusBlock::Open((*state)->status_block_prefix() + "1").ok());
  EXPECT_EQ(TestDirectory::Names(directory.File("run")), std::vector<std::string>{});
  EXPECT_EQ(TestDirectory::Names(directory.path()), (std::vector<std::string>{"lock", "run"}));
}

TEST(StateDirectoryTest, AnotherProcessWithTheOldIdIsLeftAlone) {
  TestDirectory directory;
  TestDirectory::Write(directory.File("rank.json"), absl::StrCat("{\"pid\":", getpid(), ",\"start_time\":\"1\"}"));
  EXPECT_TRUE(StateDirectory::Open(directory.path(), 0).ok());
  for (const char* text : {"", "{}", "[]", "{\"pid\":\"x\",\"start_time\":1}", "{\"pid\":-1,\"start_time\":\"\"}"}) {
    TestDirectory::Write(directory.File("rank.json"), text);
    EXPECT_TRUE(StateDirectory::Open(directory.path(), 0).ok()) << text;
  }
}

}  // namespace
}  // namespace tacc::worker
