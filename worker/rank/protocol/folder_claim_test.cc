#include "worker/rank/protocol/folder_claim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "machine/testing/test_directory.h"
#include "worker/checkpoint/folder_writer.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FolderClaimTest : public ::testing::Test {
 protected:
  FolderClaimTest() { TestDirectory::Write(directory_.File("job.json"), "{}"); }

  void Write(const std::string& service, int64_t attempt, const std::string& job = "t-1") const {
    FolderWriter writer;
    writer.service = service;
    writer.job = job;
    writer.attempt = attempt;
    writer.since = 5;
    writer.locked_boot = "boot";
    ASSERT_TRUE(WriteFolderWriter(directory_.path(), writer).ok());
  }
  FolderWriter Read() const {
    const auto writer = ReadFolderWriter(directory_.path());
    EXPECT_TRUE(writer.ok() && writer->has_value());
    return writer.ok() ? writer->value_or(FolderWriter()) : FolderWriter();
  }
  FolderClaim::Options Options(double renew_seconds) {
    FolderClaim::Options options;
    options.dir = directory_.path();
    options.service = "mine";
    options.job = "t-1";
    options.attempt = 2;
    options.renew_seconds = renew_seconds;
    options.on_lost = [this](const absl::Status& status) {
      if (lost_.HasBeenNotified()) return;
      why_ = status;
      lost_.Notify();
    };
    return options;
  }

  TestDirectory directory_;
  absl::Status why_;
  absl::Notification lost_;
};

TEST_F(FolderClaimTest, GoesOnFromWhatTheDaemonHasTaken) {
  for (const int64_t before : {0, 1}) {
    Write("mine", before);
    FolderClaim claim(Options(1000));
    EXPECT_TRUE(claim.Check().ok());
    EXPECT_EQ(Read().attempt, 2);
    EXPECT_EQ(Read().pid, getpid());
    EXPECT_EQ(Read().since, 5);
    EXPECT_EQ(Read().locked_boot, "boot");
    EXPECT_FALSE(Read().has_ended);
  }
  EXPECT_FALSE(lost_.HasBeenNotified());
}

TEST_F(FolderClaimTest, IsRenewed) {
  Write("mine", 0);
  FolderClaim claim(Options(0.01));
  const double first = Read().renewed;
  while (Read().renewed == first) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_FALSE(lost_.HasBeenNotified());
}

TEST_F(FolderClaimTest, OnlyAtItsEndTheFolderIsAnybodys) {
  Write("mine", 0);
  { FolderClaim claim(Options(1000)); }
  EXPECT_FALSE(Read().has_ended);
  FolderClaim claim(Options(1000));
  claim.End();
  EXPECT_TRUE(Read().has_ended);
}

TEST_F(FolderClaimTest, AnotherHasTakenItOver) {
  Write("mine", 0);
  FolderClaim claim(Options(0.01));
  Write("other", 0);
  lost_.WaitForNotification();
  EXPECT_EQ(why_.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(why_.message()), HasSubstr("is used by job t-1 of another service (pid "));
  EXPECT_THAT(std::string(why_.message()), HasSubstr("taken it over from attempt 2 of job t-1: this attempt ends"));
  EXPECT_FALSE(claim.Check().ok());
  claim.End();
  EXPECT_EQ(Read().service, "other");
  EXPECT_FALSE(Read().has_ended);
}

// Whose daemon was thought to be dead.
TEST_F(FolderClaimTest, ALaterAttemptOfTheServiceHasTakenItOver) {
  for (const int64_t later : {0, 3}) {
    Write("mine", 0);
    FolderClaim claim(Options(1000));
    Write("mine", later);
    EXPECT_THAT(std::string(claim.Check().message()), HasSubstr("is used by a later attempt of job t-1, which has"));
    EXPECT_EQ(Read().attempt, later);
  }
  {
    Write("mine", 0);
    FolderClaim claim(Options(1000));
    Write("mine", 2, "t-2");
    EXPECT_THAT(std::string(claim.Check().message()), HasSubstr("is used by job t-2 (attempt 2, pid "));
  }
  Write("mine", 3);
  FolderClaim late(Options(1000));
  EXPECT_TRUE(lost_.HasBeenNotified());
  EXPECT_EQ(Read().attempt, 3);
}

// The first renewal failed: the file has the daemon's 0 still.
TEST_F(FolderClaimTest, AFolderThatIsAwayAtTheBeginIsNotLost) {
  Write("mine", 0);
  const std::string away = directory_.path() + ".away";
  std::filesystem::rename(directory_.path(), away);
  FolderClaim claim(Options(0.01));
  std::filesystem::rename(away, directory_.path());
  EXPECT_TRUE(claim.Check().ok());
  while (Read().attempt != 2) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_FALSE(lost_.HasBeenNotified());
}

TEST_F(FolderClaimTest, WhoHasEndedHasLostNothing) {
  Write("mine", 0);
  FolderClaim claim(Options(1000));
  Write("other", 3);
  claim.End();
  EXPECT_FALSE(lost_.HasBeenNotified());
  EXPECT_EQ(Read().service, "other");
}

TEST_F(FolderClaimTest, AFolderThatIsAwayIsNotLost) {
  Write("mine", 0);
  FolderClaim claim(Options(0.01));
  const std::string away = directory_.path() + ".away";
  std::filesystem::rename(directory_.path(), away);
  std::filesystem::create_directory(directory_.path());  // The bare mount point.
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_THAT(TestDirectory::Names(directory_.path()), IsEmpty());
  EXPECT_TRUE(claim.Check().ok());
  std::filesystem::remove(directory_.path());
  absl::SleepFor(absl::Milliseconds(50));
  std::filesystem::rename(away, directory_.path());
  const double before = Read().renewed;
  while (Read().renewed == before) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_FALSE(lost_.HasBeenNotified());
  // Nor is one whose file somebody has removed.
  std::filesystem::remove(directory_.File("writer.json"));
  while (!std::filesystem::exists(directory_.File("writer.json"))) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(Read().service, "mine");
}

}  // namespace
}  // namespace tacc::worker
