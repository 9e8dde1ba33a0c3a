#include "confinement/user.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "confinement/confine.h"
#include "confinement/landlock.h"
#include "machine/testing/test_directory.h"

namespace tacc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// What `work` says in a process of its own: 0 is yes.
int InChild(const std::function<int()>& work) {
  const pid_t child = fork();
  if (child == 0) _exit(work());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Owned by root, others may enter.
class UserTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    absl::StatusOr<User> nobody = FindUser("nobody");
    ASSERT_TRUE(nobody.ok()) << nobody.status();
    nobody_ = *std::move(nobody);
    chmod(directory_.path().c_str(), 0755);
    TestDirectory::Write(directory_.File("secret"), "root's");
    chmod(directory_.File("secret").c_str(), 0600);
    mkdir(directory_.File("theirs").c_str(), 0755);
    ASSERT_TRUE(GiveTo(nobody_, directory_.File("theirs")).ok());
  }
  TestDirectory directory_;
  User nobody_;
};

TEST_F(UserTest, AConfinedProcessIsTheUsersForGood) {
  EXPECT_EQ(InChild([&] {
              if (!ConfineProcess({AllowedPaths(), nobody_}).ok()) return 1;
              if (getuid() != nobody_.uid || geteuid() != nobody_.uid || getgid() != nobody_.gid) return 2;
              if (setuid(0) == 0 || seteuid(0) == 0) return 3;
              if (TestDirectory::Read(directory_.File("secret")) != "") return 4;
              TestDirectory::Write(directory_.File("theirs/new"), "x");
              return 0;
            }),
            0);
  struct stat info = {};
  ASSERT_EQ(stat(directory_.File("theirs/new").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, nobody_.uid);
}

TEST_F(UserTest, ConfinedWorkUsesFilesAsTheUserAndThisProcessAsBefore) {
  std::string secret = "?";
  ASSERT_TRUE(RunConfined({AllowedPaths(), nobody_}, [&] {
                secret = TestDirectory::Read(directory_.File("secret"));
                std::filesystem::create_directories(directory_.File("theirs/run/logs"));
              }).ok());
  EXPECT_EQ(secret, "");
  EXPECT_EQ(TestDirectory::Read(directory_.File("secret")), "root's");
  struct stat info = {};
  ASSERT_EQ(stat(directory_.File("theirs/run/logs").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, nobody_.uid);
  EXPECT_EQ(geteuid(), 0);
}

TEST_F(UserTest, BothConfinementsTogether) {
  if (!HasLandlock()) GTEST_SKIP() << "this kernel has no Landlock";
  EXPECT_EQ(InChild([&] {
              if (!ConfineProcess({AllowedPaths({directory_.File("theirs")}, {}), nobody_}).ok()) return 1;
              TestDirectory::Write(directory_.File("theirs/new"), "x");
              if (TestDirectory::Read(directory_.File("theirs/new")) != "x") return 2;
              if (TestDirectory::Read("/proc/self/status").empty()) return 3;
              if (!TestDirectory::Read("/etc/debian_version").empty()) return 4;
              // Neither another process's environment nor a signal to it.
              if (!TestDirectory::Read("/proc/" + std::to_string(getppid()) + "/environ").empty()) return 5;
              if (kill(getppid(), 0) == 0) return 6;
              return 0;
            }),
            0);
}

TEST_F(UserTest, AFolderThatTheUserCannotEnterIsNamed) {
  std::filesystem::create_directories(directory_.File("closed/run"));
  chmod(directory_.File("closed").c_str(), 0700);
  EXPECT_TRUE(CheckCanEnter(nobody_, directory_.File("theirs")).ok());
  EXPECT_THAT(std::string(CheckCanEnter(nobody_, directory_.File("closed/run")).message()),
              HasSubstr("user nobody cannot enter " + directory_.File("closed") + ":"));
}

TEST(FindUserTest, WhoIsNotThere) { EXPECT_TRUE(absl::IsNotFound(FindUser("no-such-user-anywhere").status())); }

TEST(LandlockTest, AnEarlierOneIsToldWhatItLacks) {
  for (const int version : {1, 2})
    EXPECT_THAT(LandlockLacks(version), AllOf(HasSubstr("cutting short"), HasSubstr(" and signals")));
  for (const int version : {3, 5}) EXPECT_THAT(LandlockLacks(version), StartsWith("signals to other processes"));
  EXPECT_EQ(LandlockLacks(6), "");
  const std::string warning = Warning({AllowedPaths({"/tmp"}, {}), std::nullopt});
  EXPECT_EQ(warning.empty(), LandlockVersion() >= 6) << warning;
  EXPECT_EQ(Warning({}), "");
}

TEST(ConfineProcessTest, ASocketIsMadeInSharedMemoryAlone) {
  if (!HasLandlock()) GTEST_SKIP() << "this kernel has no Landlock";
  TestDirectory directory;
  const std::string shared = "/dev/shm/tacc-test-" + std::to_string(getpid());
  EXPECT_EQ(InChild([&] {
              if (!ConfineProcess({AllowedPaths({directory.path()}, {}), {}}).ok()) return 1;
              if (mknod(shared.c_str(), S_IFSOCK | 0600, 0) != 0) return 2;
              if (unlink(shared.c_str()) != 0) return 3;
              return mknod(directory.File("socket").c_str(), S_IFSOCK | 0600, 0) == 0 ? 4 : 0;
            }),
            0);
}

TEST(ConfineProcessTest, ThreadsThatRunAreNotLeftOut) {
  if (!HasLandlock()) GTEST_SKIP() << "this kernel has no Landlock";
  EXPECT_EQ(InChild([] {
              bool is_over = false;
              std::thread other([&is_over] {
                while (!__atomic_load_n(&is_over, __ATOMIC_SEQ_CST)) usleep(1000);
              });
              const bool is_refused = absl::IsFailedPrecondition(ConfineProcess({AllowedPaths({"/tmp"}, {}), {}}));
              __atomic_store_n(&is_over, true, __ATOMIC_SEQ_CST);
              other.join();
              return is_refused ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace tacc
