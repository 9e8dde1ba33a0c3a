#include "worker/daemon/host/run_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
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

// Files of a file system that does not answer at first. The log's thread may outlive it.
class StuckFiles {
 public:
  RunLog::Append append() {
    return [state = state_](const RunLog::Place& place, std::string* text) {
      absl::MutexLock lock(&state->mutex);
      state->mutex.Await(absl::Condition(&state->answers));
      state->texts[place.attempt] += *text;
      text->clear();
      return absl::OkStatus();
    };
  }
  // Lets it answer; returns what is written for an attempt up to `end`.
  std::string ReadUpTo(const std::string& end, int attempt = 1) {
    std::string text;
    Until(end, [&] {
      absl::MutexLock lock(&state_->mutex);
      state_->answers = true;
      text = state_->texts[attempt];
      return absl::StrContains(text, end);
    });
    return text;
  }

 private:
  struct State {
    absl::Mutex mutex;
    bool answers = false;              // Guarded by it.
    std::map<int, std::string> texts;  // By attempt. Guarded by it.
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
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

// Of whoever may write to the folder: to the logs of another run, of which the old ones would be removed.
TEST(RunLogTest, FoldersThatAreLinksAreNotWrittenThrough) {
  for (const bool is_whole : {true, false}) {
    const TestDirectory directory, other;
    for (const char* attempt : {"/attempt-1", "/attempt-99"})
      std::filesystem::create_directories(other.File("logs") + attempt);
    if (is_whole) {
      std::filesystem::create_directory_symlink(other.File("logs"), directory.File("logs"));
    } else {
      std::filesystem::create_directories(directory.File("logs"));
      std::filesystem::create_directory_symlink(other.File("logs/attempt-99"), directory.File("logs/attempt-99"));
    }
    RunLog log(Quick());
    log.Begin(PlaceIn(directory, 99));
    log.Line("x", kTime);
    EXPECT_THAT(Trouble(log, 99), HasSubstr("symbolic link"));
    EXPECT_THAT(TestDirectory::Names(other.File("logs")), ElementsAre("attempt-1", "attempt-99"));
    EXPECT_THAT(TestDirectory::Names(other.File("logs/attempt-99")), ElementsAre());
  }
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
  StuckFiles files;
  RunLog::Limits limits = Quick();
  limits.slow_seconds = 0;
  limits.waiting_bytes = 100;
  RunLog log(limits, files.append());
  log.Begin({"/run", false, /*attempt=*/1, 0, "job-1"});
  log.Line("first", kTime);
  EXPECT_THAT(Trouble(log), HasSubstr("/run/logs/attempt-1/rank-00000.log: its file system does not answer"));
  for (int i = 0; i < 10; ++i) log.Line(absl::StrCat("line ", i), kTime);
  EXPECT_TRUE(log.TakeTrouble().status.ok()) << "said twice";
  const std::string text = files.ReadUpTo("line 9\n");
  EXPECT_THAT(text, HasSubstr("Z first\n--- 7 lines are missing here\n2023-11-14T22:13:20.000Z line 7\n"));
}

// Though the next attempt has begun.
TEST(RunLogTest, TroubleIsOfWhoseLinesAreNotWritten) {
  StuckFiles files;
  RunLog::Limits limits = Quick();
  limits.slow_seconds = 0.1;
  RunLog log(limits, files.append());
  log.Begin({"/run", false, /*attempt=*/1, 0, "job-1"});
  log.Line("last", kTime);
  log.Begin({"/run", false, /*attempt=*/2, 0, "job-1"});
  log.Line("first", kTime);
  EXPECT_THAT(Trouble(log, 1), HasSubstr("/run/logs/attempt-1/rank-00000.log: its file system does not answer"));
  files.ReadUpTo("last\n", 1);
  files.ReadUpTo("first\n", 2);
  EXPECT_TRUE(log.TakeTrouble().status.ok());
}

TEST(RunLogTest, TheEndWaitsForAWhileOnly) {
  StuckFiles files;
  {
    RunLog::Limits limits = Quick();
    limits.end_seconds = 0.01;
    RunLog log(limits, files.append());
    log.Begin({"/run", false, /*attempt=*/1, 0, "job-1"});
    log.Line("last", kTime);
  }
  // The thread that was left goes on, and ends.
  EXPECT_THAT(files.ReadUpTo("last\n"), HasSubstr("Z last\n"));
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
