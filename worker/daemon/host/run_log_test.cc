#include "worker/daemon/host/run_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "machine/testing/test_directory.h"
#include "worker/checkpoint/files/posix_file.h"

namespace tacc::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kTime = 1.7e9;

RunLog::Limits Quick() {
  RunLog::Limits limits;
  limits.write_seconds = 0;
  limits.retry_seconds = 0.005;
  limits.end_seconds = 10;
  return limits;
}

RunLog::Place PlaceIn(const TestDirectory& directory, int attempt, int rank = 0) {
  return {directory.path(), /*is_claimed=*/false, attempt, rank, "job-1"};
}

void Until(const std::string& what, const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (!condition()) {
    ASSERT_LT(absl::Now(), deadline) << "waited in vain for " << what;
    absl::SleepFor(absl::Milliseconds(5));
  }
}

// The first trouble, which is of this attempt.
std::string Trouble(RunLog& log, int attempt = 1) {
  RunLog::Trouble trouble;
  Until("trouble", [&] {
    trouble = log.TakeTrouble();
    return !trouble.status.ok();
  });
  EXPECT_EQ(trouble.place.attempt, attempt);
  return std::string(trouble.status.message());
}

// A file whose opening does not return before somebody reads it, as in a file system that does not answer.
class StuckFile {
 public:
  explicit StuckFile(const RunLog::Place& place) : path_(place.Path()) {
    EXPECT_TRUE(MakeDirectory(absl::StrCat(place.checkpoint_dir, "/logs")).ok());
    EXPECT_TRUE(MakeDirectory(place.Folder()).ok());
    EXPECT_EQ(mkfifo(path_.c_str(), 0644), 0);
  }
  // Lets it answer; returns what is written up to `end`.
  std::string ReadUpTo(const std::string& end) {
    const int fd = open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    std::string text;
    Until(end, [&] {
      char piece[4096];
      const ssize_t n = read(fd, piece, sizeof(piece));
      if (n > 0) text.append(piece, n);
      return text.find(end) != std::string::npos;
    });
    close(fd);
    return text;
  }

 private:
  const std::string path_;
};

TEST(RunLogTest, EachRankOfEachAttemptHasAFile) {
  const TestDirectory directory;
  {
    RunLog log(Quick());
    log.Line("of no rank", kTime);
    log.Begin(PlaceIn(directory, 1, 3));
    log.Line("one", kTime);
    log.Line("two", kTime + 0.25);
    log.Begin(PlaceIn(directory, 2, 3));
    log.Line("three", kTime + 1);
    log.Begin({});
    log.Line("of a rank without a folder", kTime + 2);
  }
  EXPECT_EQ(TestDirectory::Read(directory.File("logs/attempt-1/rank-00003.log")),
            "2023-11-14T22:13:20.000Z one\n2023-11-14T22:13:20.250Z two\n");
  EXPECT_EQ(TestDirectory::Read(directory.File("logs/attempt-2/rank-00003.log")), "2023-11-14T22:13:21.000Z three\n");
  {
    RunLog log(Quick());
    log.Begin(PlaceIn(directory, 2, 3));
    log.Line("four", kTime);
  }
  EXPECT_THAT(TestDirectory::Read(directory.File("logs/attempt-2/rank-00003.log")), HasSubstr("three\n2023"));
}

TEST(RunLogTest, FilesAreBounded) {
  const TestDirectory directory;
  RunLog::Limits limits = Quick();
  limits.file_bytes = 500;
  limits.waiting_bytes = 200;
  {
    RunLog log(limits);
    log.Begin(PlaceIn(directory, 1));
    for (int i = 0; i < 1000; ++i) log.Line(absl::StrCat("line ", i), kTime);
  }
  const std::string folder = directory.File("logs/attempt-1");
  const std::string text = TestDirectory::Read(folder + "/rank-00000.log");
  EXPECT_LE(text.size(), 750u);  // A write more, with the number of those that are missing.
  EXPECT_THAT(text, HasSubstr("line 999\n"));
  EXPECT_LE(TestDirectory::Names(folder).size(), 2u);
}

TEST(RunLogTest, NobodyWaitsForAFileSystemThatDoesNotAnswer) {
  const TestDirectory directory;
  StuckFile file(PlaceIn(directory, 1));
  RunLog::Limits limits = Quick();
  limits.slow_seconds = 0;
  limits.waiting_bytes = 100;
  RunLog log(limits);
  log.Begin(PlaceIn(directory, 1));
  log.Line("first", kTime);
  EXPECT_THAT(Trouble(log), HasSubstr("logs/attempt-1/rank-00000.log: its file system does not answer"));
  for (int i = 0; i < 10; ++i) log.Line(absl::StrCat("line ", i), kTime);
  EXPECT_TRUE(log.TakeTrouble().status.ok()) << "said twice";
  const std::string text = file.ReadUpTo("line 9\n");
  EXPECT_THAT(text, HasSubstr("Z first\n--- 7 lines are missing here\n2023-11-14T22:13:20.000Z line 7\n"));
}

// Though the next attempt has begun.
TEST(RunLogTest, TroubleIsOfWhoseLinesAreNotWritten) {
  const TestDirectory directory;
  StuckFile file(PlaceIn(directory, 1));
  RunLog::Limits limits = Quick();
  limits.slow_seconds = 0.1;
  RunLog log(limits);
  log.Begin(PlaceIn(directory, 1));
  log.Line("last", kTime);
  log.Begin(PlaceIn(directory, 2));
  log.Line("first", kTime);
  EXPECT_THAT(Trouble(log, 1), HasSubstr("logs/attempt-1/rank-00000.log: its file system does not answer"));
  file.ReadUpTo("last\n");
  Until("the next rank's line", [&] { return !TestDirectory::Read(PlaceIn(directory, 2).Path()).empty(); });
  EXPECT_TRUE(log.TakeTrouble().status.ok());
}

TEST(RunLogTest, TheEndWaitsForAWhileOnly) {
  const TestDirectory directory;
  StuckFile file(PlaceIn(directory, 1));
  {
    RunLog::Limits limits = Quick();
    limits.end_seconds = 0.01;
    RunLog log(limits);
    log.Begin(PlaceIn(directory, 1));
    log.Line("last", kTime);
  }
  // The thread that was left goes on, and ends.
  EXPECT_THAT(file.ReadUpTo("last\n"), HasSubstr("Z last\n"));
}

TEST(RunLogTest, AFolderThatIsAwayIsSaidOnceAndWrittenToWhenItIsBack) {
  const TestDirectory directory;
  RunLog log(Quick());
  RunLog::Place place = PlaceIn(directory, 1);
  place.is_claimed = true;
  log.Begin(place);
  log.Line("one", kTime);
  EXPECT_THAT(Trouble(log), HasSubstr("job.json: No such file or directory"));
  EXPECT_THAT(TestDirectory::Names(directory.path()), ElementsAre());
  log.Line("two", kTime);
  TestDirectory::Write(directory.File("job.json"), "{}");
  Until("both lines", [&] { return absl::EndsWith(TestDirectory::Read(place.Path()), " two\n"); });
  EXPECT_THAT(TestDirectory::Read(place.Path()), HasSubstr(" one\n"));
  EXPECT_TRUE(log.TakeTrouble().status.ok());
}

TEST(RunLogTest, TheNextRankDoesNotWaitForTheFolderOfTheOneBefore) {
  const TestDirectory directory;
  RunLog log(Quick());
  log.Begin({directory.File("none"), false, 1, 0, "job-1"});
  log.Line("lost", kTime);
  EXPECT_THAT(Trouble(log), HasSubstr("none/logs"));
  log.Begin(PlaceIn(directory, 1));
  log.Line("kept", kTime);
  Until("the next rank's line", [&] { return !TestDirectory::Read(PlaceIn(directory, 1).Path()).empty(); });
}

TEST(RunLogTest, AFileThatWasRemovedBeginsAnew) {
  const TestDirectory directory;
  const std::string path = PlaceIn(directory, 1).Path();
  RunLog log(Quick());
  log.Begin(PlaceIn(directory, 1));
  log.Line("one", kTime);
  Until("the first line", [&] { return absl::EndsWith(TestDirectory::Read(path), "one\n"); });
  ASSERT_TRUE(RemoveTree(directory.File("logs")).ok());
  log.Line("two", kTime);
  Until("the second line", [&] { return absl::EndsWith(TestDirectory::Read(path), "two\n"); });
}

TEST(RunLogTest, RankZeroRemovesTheFoldersOfOldAttempts) {
  const TestDirectory directory;
  for (const char* name : {"logs", "logs/attempt-1", "logs/attempt-2", "logs/attempt-3", "logs/notes", "attempt-1"})
    ASSERT_TRUE(MakeDirectory(directory.File(name)).ok());
  TestDirectory::Write(directory.File("logs/attempt-1/rank-00000.log"), "old\n");
  RunLog::Limits limits = Quick();
  limits.num_attempts = 2;
  for (const int rank : {1, 0}) {
    {
      RunLog log(limits);
      log.Begin(PlaceIn(directory, 4, rank));
      log.Line("new", kTime);
    }
    EXPECT_EQ(TestDirectory::Names(directory.File("logs")).size(), rank == 1 ? 5u : 3u);
  }
  EXPECT_THAT(TestDirectory::Names(directory.File("logs")), ElementsAre("attempt-3", "attempt-4", "notes"));
  EXPECT_THAT(TestDirectory::Names(directory.path()), ElementsAre("attempt-1", "logs"));
}

}  // namespace
}  // namespace tacc::worker
