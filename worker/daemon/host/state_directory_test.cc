#include "worker/daemon/host/state_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "confinement/confine.h"
#include "machine/testing/test_directory.h"
#include "process/child_process.h"
#include "worker/checkpoint/files/sha256.h"
#include "worker/rank/protocol/status_block.h"

namespace tacc::worker {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// In shared memory, of all daemons of this state directory.
std::vector<std::string> SharedNames(const std::string& path) {
  const std::string real_path = std::filesystem::canonical(path).string();
  Sha256 hash;
  hash.Update(real_path.data(), real_path.size());
  const std::string prefix = absl::StrCat("tacc-", hash.HexDigest().substr(0, 16), "-");
  std::vector<std::string> names = TestDirectory::Names("/dev/shm");
  std::erase_if(names, [&prefix](const std::string& name) { return !absl::StartsWith(name, prefix); });
  return names;
}

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

TEST(StateDirectoryTest, IsForItsUserAloneWhateverTheUmask) {
  TestDirectory directory;
  const mode_t old_mask = umask(0);
  const auto state = StateDirectory::Open(directory.File("state"), 0);
  ASSERT_TRUE(state.ok()) << state.status();
  ASSERT_TRUE((*state)->WriteStartFiles("{}", "program").ok());
  ASSERT_TRUE((*state)->RecordRank(getpid()).ok());
  umask(old_mask);
  const auto mode = [](const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
    return info.st_mode & 07777;
  };
  EXPECT_EQ(mode((*state)->path()), 0700u);
  EXPECT_EQ(mode((*state)->path() + "/run"), 0700u);
  EXPECT_EQ(mode((*state)->path() + "/lock"), 0600u);
  EXPECT_EQ(mode((*state)->path() + "/rank.json"), 0600u);
  EXPECT_EQ(mode((*state)->StartPath()), 0600u);
  EXPECT_EQ(mode((*state)->ProgramPath()), 0600u);
}

// What root does in a folder of another user's, that user can turn against it.
TEST(StateDirectoryTest, TheUserOfRanksReadsItsFilesAndChangesNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "only root's ranks are another user's";
  TestDirectory directory;
  chmod(directory.path().c_str(), 0755);
  const absl::StatusOr<User> nobody = FindUser("nobody");
  ASSERT_TRUE(nobody.ok()) << nobody.status();
  // As an earlier version left it.
  TestDirectory::Write(directory.File("victim"), "root's");
  std::filesystem::create_directories(directory.File("state/run"));
  std::filesystem::create_symlink(directory.File("victim"), directory.File("state/run/start.json"));
  ASSERT_TRUE(GiveTo(*nobody, directory.File("state/run")).ok());
  const auto state = StateDirectory::Open(directory.File("state"), 0);
  ASSERT_TRUE(state.ok()) << state.status();
  ASSERT_TRUE((*state)->LetIn(*nobody).ok());
  ASSERT_TRUE((*state)->WriteStartFiles("{}", "program").ok());
  const std::string start = (*state)->StartPath(), program = (*state)->ProgramPath();
  ASSERT_TRUE(RunConfined({AllowedPaths(), *nobody}, [&] {
                EXPECT_EQ(TestDirectory::Read(start), "{}");
                EXPECT_EQ(TestDirectory::Read(program), "program");
                EXPECT_NE(unlink(start.c_str()), 0);
                EXPECT_NE(rename(start.c_str(), program.c_str()), 0);
                EXPECT_NE(symlink("/etc/passwd", absl::StrCat((*state)->RunPath(), "/new").c_str()), 0);
              }).ok());
  for (const std::string& path : {start, program}) {
    struct stat info = {};
    ASSERT_EQ(lstat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode, S_IFREG | 0600u) << path;
    EXPECT_EQ(info.st_uid, nobody->uid) << path;
  }
  EXPECT_EQ(TestDirectory::Read(directory.File("victim")), "root's");
}

// Another user would make them first: then no rank could start.
TEST(StateDirectoryTest, NobodyGuessesItsNamesInSharedMemory) {
  TestDirectory directory;
  std::set<std::string> prefixes, cgroups;
  for (int i = 0; i < 3; ++i) {
    const auto state = StateDirectory::Open(directory.path(), 0);
    ASSERT_TRUE(state.ok()) << state.status();
    prefixes.insert((*state)->status_block_prefix());
    cgroups.insert((*state)->CgroupName());
    EXPECT_EQ((*state)->LocalFolder(), absl::StrCat("/dev/shm", (*state)->status_block_prefix(), "local"));
  }
  EXPECT_EQ(prefixes.size(), 3);
  EXPECT_EQ(cgroups.size(), 1);
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
    std::filesystem::create_directories((*state)->LocalFolder() + "/inner");
    if (!(*state)->WriteStartFiles("{}", "program").ok() || !(*state)->RecordRank((*rank)->pid()).ok()) _exit(2);
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(daemon, &status, 0), daemon);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_THAT(SharedNames(directory.path()), UnorderedElementsAre(EndsWith("-1"), EndsWith("-local")));
  const auto state = StateDirectory::Open(directory.path(), 0);
  ASSERT_TRUE(state.ok()) << state.status();
  const auto end = (*rank)->TryReap();
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->signal, SIGKILL);
  EXPECT_THAT(SharedNames(directory.path()), IsEmpty());
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
