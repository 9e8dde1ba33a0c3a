#include "worker/checkpoint/files/folder_publication.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "machine/testing/test_directory.h"

namespace tacc::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

std::unique_ptr<FolderPublication> Begin(const std::string& path, const std::string& content) {
  auto begun = FolderPublication::Begin(path);
  EXPECT_TRUE(begun.ok()) << begun.status();
  TestDirectory::Write((*begun)->directory() + "/file", content);
  return *std::move(begun);
}

TEST(FolderPublicationTest, AppearsWholeWithItsParentsAndLeavesNothing) {
  TestDirectory directory;
  const std::string path = directory.File("deep/out");
  {
    const auto abandoned = Begin(path, "a");
    EXPECT_THAT(TestDirectory::Names(directory.File("deep")), SizeIs(2));
  }
  EXPECT_THAT(TestDirectory::Names(directory.File("deep")), SizeIs(0));
  {
    const auto publication = Begin(path, "b");
    ASSERT_TRUE(publication->Publish().ok());
    EXPECT_EQ(TestDirectory::Read(path + "/file"), "b");
  }
  EXPECT_THAT(TestDirectory::Names(directory.File("deep")), ElementsAre("out"));
}

TEST(FolderPublicationTest, ThoseOfOneNameDoNotTouchEachOther) {
  TestDirectory directory;
  const std::string path = directory.File("out");
  auto first = Begin(path, "first");
  auto second = Begin(path, "second");
  auto third = Begin(path, "third");
  second.reset();
  ASSERT_TRUE(first->Publish().ok());
  EXPECT_EQ(TestDirectory::Read(path + "/file"), "first");
  ASSERT_TRUE(third->Publish().ok());
  first.reset();
  EXPECT_EQ(TestDirectory::Read(path + "/file"), "third");
  third.reset();
  EXPECT_THAT(TestDirectory::Names(directory.path()), ElementsAre("out"));
}

// A process that was killed has left its folder; one that is stopped may still go on.
TEST(FolderPublicationTest, RemovesWhatTheDeadHaveLeftAndNothingOfTheLiving) {
  TestDirectory directory;
  const std::string path = directory.File("out");
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto publication = Begin(path, "of the child");
    (void)write(told[1], "x", 1);
    while (true) pause();
  }
  char byte;
  ASSERT_EQ(read(told[0], &byte, 1), 1);
  ASSERT_EQ(kill(child, SIGSTOP), 0);
  Begin(path, "of the parent").reset();
  EXPECT_THAT(TestDirectory::Names(directory.path()), SizeIs(2));  // The child's folder and its lock.
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_THAT(TestDirectory::Names(directory.path()), SizeIs(2));
  Begin(path, "of the parent").reset();
  EXPECT_THAT(TestDirectory::Names(directory.path()), SizeIs(0));
  close(told[0]);
  close(told[1]);
}

TEST(FolderPublicationTest, WhatIsInTheWayIsNamed) {
  TestDirectory directory;
  TestDirectory::Write(directory.File("file"), "x");
  const auto publication = Begin(directory.File("file"), "a");
  EXPECT_FALSE(publication->Publish().ok());
  EXPECT_EQ(TestDirectory::Read(directory.File("file")), "x");
  EXPECT_FALSE(FolderPublication::Begin(directory.File("file/out")).ok());
}

}  // namespace
}  // namespace tacc::worker
