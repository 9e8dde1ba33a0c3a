#include "client/taccctl/local/scratch_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace tacc::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ScratchFolderTest : public ::testing::Test {
 protected:
  ScratchFolderTest() {
    std::string path = ::testing::TempDir() + "/scratch-XXXXXX";
    base_ = mkdtemp(path.data());
  }
  ~ScratchFolderTest() override { std::filesystem::remove_all(base_); }

  void Write(const std::string& name, const std::string& text = "") const {
    const std::filesystem::path path = base_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  // In a folder as mkdtemp makes them.
  void WriteOwn(const std::string& name) const {
    Write(name);
    std::filesystem::permissions(base_ + "/" + name.substr(0, name.find('/')), std::filesystem::perms::owner_all);
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(base_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string base_;
};

TEST_F(ScratchFolderTest, IsRemovedWithTheObject) {
  {
    const auto folder = ScratchFolder::Make(base_);
    ASSERT_TRUE(folder.ok());
    EXPECT_EQ((*folder)->path().rfind(base_ + "/tacc-local-", 0), 0u);
    std::ofstream((*folder)->path() + "/worker-0.log") << "x";
  }
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_EQ(ScratchFolder::Make(base_ + "/none").status(),
            absl::InternalError("cannot make a folder in " + base_ + "/none; set TMPDIR to one that is writable"));
}

TEST_F(ScratchFolderTest, WhatKilledOnesLeftIsRemoved) {
  WriteOwn("tacc-local-dead01/lock");
  WriteOwn("tacc-local-dead01/coordinator/lock");
  WriteOwn("tacc-local-dead01/coordinator.log");
  WriteOwn("tacc-local-DEAD02/lock");
  WriteOwn("tacc-local-DEAD02/worker-0/file");
  const auto folder = ScratchFolder::Make(base_);
  ASSERT_TRUE(folder.ok());
  EXPECT_THAT(Names(), ElementsAre(std::filesystem::path((*folder)->path()).filename().string()));
}

TEST_F(ScratchFolderTest, WhatIsInUseStays) {
  WriteOwn("tacc-local-child1/lock");
  WriteOwn("tacc-local-child1/worker-0/lock");
  const int lock = open((base_ + "/tacc-local-child1/worker-0/lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  {
    const auto first = ScratchFolder::Make(base_), second = ScratchFolder::Make(base_);
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_TRUE(std::filesystem::exists((*first)->path()));
  }
  EXPECT_THAT(Names(), ElementsAre("tacc-local-child1"));
  close(lock);
}

TEST_F(ScratchFolderTest, WhatIsNoFolderOfAKilledOneStays) {
  // Of a version without a lock of its own, whose logs a message has named.
  WriteOwn("tacc-local-old001/worker-0/lock");
  const timespec long_ago[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, (base_ + "/tacc-local-old001").c_str(), long_ago, 0), 0);
  for (const char* name : {"tacc-other", "tacc-local-", "tacc-local-mine", "tacc-local-longer1", "tacc-local-a.b.c."})
    WriteOwn(std::string(name) + "/lock");
  Write("tacc-local-file01");
  std::filesystem::create_directory_symlink("tacc-other", base_ + "/tacc-local-link01");
  WriteOwn("tacc-local-lock01/file");
  std::filesystem::create_symlink("file", base_ + "/tacc-local-lock01/lock");
  WriteOwn("tacc-local-lock02/lock/file");
  WriteOwn("tacc-local-lock03/file");
  ASSERT_EQ(mkfifo((base_ + "/tacc-local-lock03/lock").c_str(), 0600), 0);
  // mkdtemp gives nobody else a permission.
  WriteOwn("tacc-local-share1/lock");
  std::filesystem::permissions(base_ + "/tacc-local-share1", std::filesystem::perms(0750));
  WriteOwn("tacc-local-user01/lock");
  if (geteuid() == 0) {
    ASSERT_EQ(lchown((base_ + "/tacc-local-user01").c_str(), 12345, 12345), 0);
  } else {
    std::filesystem::remove_all(base_ + "/tacc-local-user01");
  }
  const std::vector<std::string> before = Names();
  { ASSERT_TRUE(ScratchFolder::Make(base_).ok()); }
  EXPECT_EQ(Names(), before);
}

// Each removes what others have left while these make theirs.
TEST_F(ScratchFolderTest, NewOnesDoNotRemoveEachOther) {
  std::atomic<int> num_lost = 0;
  std::vector<std::thread> users;
  for (int user = 0; user < 4; ++user) {
    users.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const auto folder = ScratchFolder::Make(base_);
        num_lost += !folder.ok() || !std::filesystem::exists((*folder)->path() + "/lock");
      }
    });
  }
  for (std::thread& user : users) user.join();
  EXPECT_EQ(num_lost, 0);
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(ScratchFolderTest, LogsAreCopied) {
  auto folder = ScratchFolder::Make(base_);
  ASSERT_TRUE(folder.ok());
  std::ofstream((*folder)->path() + "/worker-0.log") << "new";
  std::filesystem::create_directory((*folder)->path() + "/worker-0");
  const std::string logs = base_ + "/run/logs/local";
  Write("run/logs/local/worker-0.log", "old and longer");
  EXPECT_FALSE((*folder)->has_kept_logs());
  EXPECT_EQ((*folder)->KeepLogs(logs), logs);
  EXPECT_TRUE((*folder)->has_kept_logs());
  folder->reset();
  std::string text;
  std::getline(std::ifstream(logs + "/worker-0.log"), text);
  EXPECT_EQ(text, "new");
  EXPECT_THAT(Names(), ElementsAre("run"));
}

TEST_F(ScratchFolderTest, LogsAreNotWrittenThroughALink) {
  Write("victim", "theirs");
  Write("run/logs/worker-0.log");
  std::filesystem::remove(base_ + "/run/logs/worker-0.log");
  std::filesystem::create_symlink(base_ + "/victim", base_ + "/run/logs/worker-0.log");
  auto folder = ScratchFolder::Make(base_);
  ASSERT_TRUE(folder.ok());
  std::ofstream((*folder)->path() + "/worker-0.log") << "new";
  EXPECT_EQ((*folder)->KeepLogs(base_ + "/run/logs"), base_ + "/run/logs");
  std::string text;
  std::getline(std::ifstream(base_ + "/victim"), text);
  EXPECT_EQ(text, "theirs");
  std::getline(std::ifstream(base_ + "/run/logs/worker-0.log"), text);
  EXPECT_EQ(text, "new");
  // Nor into a folder that is one.
  std::filesystem::create_directory_symlink(base_ + "/run", base_ + "/linked");
  EXPECT_EQ((*folder)->KeepLogs(base_ + "/linked"), (*folder)->path());
}

TEST_F(ScratchFolderTest, LogsThatCannotBeCopiedStayWhereTheyAre) {
  auto folder = ScratchFolder::Make(base_);
  ASSERT_TRUE(folder.ok());
  const std::string path = (*folder)->path();
  std::ofstream(path + "/worker-0.log") << "x";
  Write("file");
  EXPECT_EQ((*folder)->KeepLogs(base_ + "/file/logs"), path);
  EXPECT_EQ((*folder)->KeepLogs(base_ + "/logs"), path) << "it has been named";
  folder->reset();
  ASSERT_TRUE(ScratchFolder::Make(base_).ok());
  EXPECT_TRUE(std::filesystem::exists(path + "/worker-0.log"));
  EXPECT_THAT(Names(), ElementsAre("file", std::filesystem::path(path).filename().string()));
}

}  // namespace
}  // namespace tacc::client
