// A checkpoint folder that jobs of two services name: whose it is, and what is done in it for a job that has ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "machine/folder_lock.h"
#include "machine/testing/test_directory.h"
#include "worker/checkpoint/folder_writer.h"
#include "worker/daemon/answers/checkpoint_paths.h"
#include "worker/daemon/answers/writer_watch.h"
#include "worker/daemon/testing/paths_request.h"

namespace tacc::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A job of the same id and name, of one service or another.
v1::CheckPaths ClaimBy(const std::string& directory, const std::string& service) {
  v1::CheckPaths request = PathsRequest(directory, v1::CHECK_PATHS_MODE_CLAIM);
  request.set_owner(absl::StrCat(R"({"job":"quickstart-2","name":"quickstart","service":")", service, R"("})"));
  request.set_last_attempt(5);
  return request;
}

class FolderOfAnotherTest : public ::testing::Test {
 protected:
  FolderOfAnotherTest() {
    EXPECT_THAT(ProblemMessages(Claim("first", 0)), IsEmpty());
    Begin(4);
  }
  // As the first job's rank 0 does.
  void Begin(int64_t attempt, bool has_ended = false) {
    FolderWriter writer = ReadFolderWriter(directory_.path())->value();
    writer.attempt = attempt;
    writer.has_ended = has_ended;
    ASSERT_TRUE(WriteFolderWriter(directory_.path(), writer).ok());
  }
  v1::CheckPathsResult Claim(const std::string& service, double now) {
    return Claim(ClaimBy(directory_.path(), service), now);
  }
  v1::CheckPathsResult Claim(const v1::CheckPaths& request, double now) {
    return CheckPaths(request, {0, "", &watch_, [now] { return now; }});
  }
  std::string Writer() const { return ReadFolderWriter(directory_.path())->value_or(FolderWriter()).service; }

  TestDirectory directory_;
  WriterWatch watch_;
};

TEST_F(FolderOfAnotherTest, OneThatLivesKeepsIt) {
  auto refused = Claim("second", 0);
  // Not known yet to live.
  ASSERT_EQ(refused.problems_size(), 1);
  EXPECT_EQ(refused.problems(0).kind(), v1::PATH_PROBLEM_KIND_UNAVAILABLE);
  const std::string message = refused.problems(0).message();
  EXPECT_THAT(message, HasSubstr(absl::StrCat("checkpoint.dir ", directory_.path(),
                                              " is used by job quickstart-2 of another service (attempt 4, pid ",
                                              getpid(), " on ")));
  EXPECT_THAT(message,
              HasSubstr("): cancel that one or wait for its end, or give another checkpoint.dir; if it has "
                        "died without a word, it loses the folder when it has not renewed writer.json for 30 s"));
  for (double now = 1; now < 100; now += 14) {
    Begin(4);
    refused = Claim("second", now);
    ASSERT_EQ(refused.problems_size(), 1) << now;
    EXPECT_EQ(refused.problems(0).kind(), v1::PATH_PROBLEM_KIND_WRONG) << now;
    EXPECT_EQ(refused.problems(0).message(), message) << now;
  }
  EXPECT_EQ(Writer(), "first");
  EXPECT_THAT(TestDirectory::Read(directory_.File("job.json")), HasSubstr("first"));
}

TEST_F(FolderOfAnotherTest, OneThatIsDeadLosesIt) {
  for (const double now : {0, 1, 3, 7, 15}) EXPECT_EQ(Claim("second", now).problems_size(), 1) << now;
  const auto claimed = Claim("second", 31);
  EXPECT_THAT(ProblemMessages(claimed), IsEmpty());
  // What it may still write has other names.
  EXPECT_EQ(claimed.max_attempt(), 4);
  EXPECT_EQ(Writer(), "second");
  EXPECT_THAT(TestDirectory::Read(directory_.File("job.json")), HasSubstr("second"));
  EXPECT_EQ(Claim("first", 32).problems_size(), 1);
}

TEST_F(FolderOfAnotherTest, AnOutageCountsForNobody) {
  for (const double now : {0, 1, 3, 7, 15}) EXPECT_EQ(Claim("second", now).problems_size(), 1) << now;
  std::filesystem::rename(directory_.path(), directory_.path() + ".away");
  v1::CheckPaths away = ClaimBy(directory_.path(), "second");
  away.set_has_run(true);
  EXPECT_EQ(Claim(away, 30).problems(0).kind(), v1::PATH_PROBLEM_KIND_MISSING);
  std::filesystem::rename(directory_.path() + ".away", directory_.path());
  EXPECT_EQ(Claim("second", 31).problems_size(), 1);
  Begin(4);
  EXPECT_EQ(Claim("second", 46).problems(0).kind(), v1::PATH_PROBLEM_KIND_WRONG);
}

TEST_F(FolderOfAnotherTest, TheSameServiceGoesOnAtOnce) {
  const auto claimed = Claim("first", 0);
  EXPECT_THAT(ProblemMessages(claimed), IsEmpty());
  // No attempt is counted twice, though it has left no checkpoint, nor one of a job whose rank 0 never began.
  EXPECT_EQ(claimed.max_attempt(), 4);
  EXPECT_EQ(ReadFolderWriter(directory_.path())->value().attempt, 0);
  EXPECT_EQ(Claim("first", 1).max_attempt(), 4);
  Begin(5);
  EXPECT_EQ(Claim("first", 2).max_attempt(), 5);
}

TEST_F(FolderOfAnotherTest, OneThatHasEndedLeavesIt) {
  Begin(4, /*has_ended=*/true);
  EXPECT_THAT(ProblemMessages(Claim("second", 0)), IsEmpty());
  EXPECT_EQ(Writer(), "second");
}

// Each would delete what the other has written.
TEST_F(FolderOfAnotherTest, WhoWasTakenOverFromWritesThereNoMore) {
  Begin(4, /*has_ended=*/true);
  EXPECT_THAT(ProblemMessages(Claim("second", 0)), IsEmpty());
  Begin(5);
  v1::CheckPaths back = ClaimBy(directory_.path(), "first");
  back.set_has_run(true);
  EXPECT_THAT(ProblemMessages(Claim(back, 1)),
              ElementsAre(HasSubstr("is used by job quickstart-2 of another service")));
  Begin(5, /*has_ended=*/true);
  EXPECT_THAT(ProblemMessages(Claim(back, 2)),
              ElementsAre(HasSubstr(" was taken over by job quickstart-2 of another service, which trains there no "
                                    "more: cancel this job and submit it again")));
  EXPECT_EQ(Writer(), "second");
  // As which it is another job.
  EXPECT_THAT(ProblemMessages(Claim("first", 3)), IsEmpty());
  EXPECT_EQ(Writer(), "first");
}

// The worker was asked for an attempt that has begun elsewhere since.
TEST_F(FolderOfAnotherTest, WhatWasAskedLongAgoClaimsNothing) {
  v1::CheckPaths late = ClaimBy(directory_.path(), "first");
  late.set_last_attempt(3);
  EXPECT_THAT(ProblemMessages(Claim(late, 0)),
              ElementsAre(AllOf(HasSubstr("is used by job quickstart-2 (attempt 4, pid "),
                                HasSubstr("this was asked before that one began"))));
  EXPECT_EQ(ReadFolderWriter(directory_.path())->value().attempt, 4);
  late.set_last_attempt(9);
  late.set_owner(R"({"job":"quickstart-1","name":"quickstart","service":"first"})");
  EXPECT_THAT(ProblemMessages(Claim(late, 0)), ElementsAre(HasSubstr("this was asked before that one began")));
  EXPECT_EQ(ReadFolderWriter(directory_.path())->value().job, "quickstart-2");
  late.set_owner(R"({"job":"quickstart-10","name":"quickstart","service":"first"})");
  EXPECT_THAT(ProblemMessages(Claim(late, 0)), IsEmpty());
}

// Two paths may lead to one folder.
TEST_F(FolderOfAnotherTest, TheFolderOfAnOpenJobOfTheServiceIsRefused) {
  v1::CheckPaths next = ClaimBy(directory_.path(), "first");
  next.set_owner(R"({"job":"quickstart-3","name":"quickstart","service":"first"})");
  next.add_open_jobs("quickstart-2");
  const auto refused = Claim(next, 0);
  EXPECT_THAT(ProblemMessages(refused), ElementsAre(HasSubstr("is used by job quickstart-2 (attempt 4, pid ")));
  EXPECT_EQ(refused.problems(0).kind(), v1::PATH_PROBLEM_KIND_WRONG);
  EXPECT_EQ(ReadFolderWriter(directory_.path())->value().job, "quickstart-2");
  Begin(4, /*has_ended=*/true);
  EXPECT_THAT(ProblemMessages(Claim(next, 0)), IsEmpty());
}

TEST_F(FolderOfAnotherTest, TheAttemptThatAnotherMayStillBeginIsLeftToIt) {
  Begin(0);
  std::filesystem::create_directory(directory_.File("step-00000001.a7"));
  for (const double now : {0, 1, 3, 7, 15}) EXPECT_EQ(Claim("second", now).problems_size(), 1) << now;
  // The other has been told to begin the 8th.
  EXPECT_EQ(Claim("second", 31).max_attempt(), 8);
}

// Not that of the question, which may have waited behind a file system that was stuck.
TEST_F(FolderOfAnotherTest, TheTimeOfALookIsThatOfReading) {
  v1::CheckPaths request = ClaimBy(directory_.path(), "second");
  int num_reads = 0;
  for (int i = 0; i < 4; ++i) CheckPaths(request, {0, "", &watch_, [&num_reads] { return ++num_reads, 1000.0; }});
  EXPECT_EQ(num_reads, 4);
  EXPECT_EQ(Writer(), "first");
}

TEST_F(FolderOfAnotherTest, OneThatRenewsLivesWithoutALockToo) {
  FolderWriter writer = ReadFolderWriter(directory_.path())->value();
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), writer.locked_boot);
  writer.locked_boot += "\n";
  EXPECT_EQ(Claim("second", 0).problems_size(), 1);
  ASSERT_TRUE(WriteFolderWriter(directory_.path(), writer).ok());
  const auto refused = Claim("second", 1);
  ASSERT_EQ(refused.problems_size(), 1);
  EXPECT_EQ(refused.problems(0).kind(), v1::PATH_PROBLEM_KIND_WRONG);
  // Where it does not, the lock tells.
  EXPECT_THAT(ProblemMessages(Claim("second", 2)), IsEmpty());
}

TEST_F(FolderOfAnotherTest, AJobThatHasEndedLeavesItWhereItsRankCouldNot) {
  v1::LeaveFolder request;
  request.set_checkpoint_dir(directory_.path());
  request.set_service("first");
  request.set_job("quickstart-1");
  LeaveFolder(request);
  EXPECT_FALSE(ReadFolderWriter(directory_.path())->value().has_ended);
  request.set_job("quickstart-2");
  LeaveFolder(request);
  EXPECT_TRUE(ReadFolderWriter(directory_.path())->value().has_ended);
  EXPECT_EQ(ReadFolderWriter(directory_.path())->value().attempt, 4);
  EXPECT_THAT(ProblemMessages(Claim("second", 0)), IsEmpty());
  LeaveFolder(request);
  EXPECT_FALSE(ReadFolderWriter(directory_.path())->value().has_ended);
  std::filesystem::remove(directory_.File("writer.json"));
  LeaveFolder(request);
  EXPECT_FALSE(std::filesystem::exists(directory_.File("writer.json")));
}

TEST_F(FolderOfAnotherTest, OneWhoseLockIsGoneIsDead) {
  {
    const auto lock = FolderLock::Take(directory_.path(), FolderLock::Kind::kAlone, "job quickstart");
    ASSERT_TRUE(lock.ok());
    (*lock)->SetCoordinator("127.0.0.1:1");
    EXPECT_THAT(ProblemMessages(CheckPaths(ClaimBy(directory_.path(), "first"), {0, "127.0.0.1:1", &watch_})),
                IsEmpty());
    EXPECT_THAT(ProblemMessages(Claim("second", 0)),
                ElementsAre(HasSubstr("wait for it, or give another checkpoint.dir")));
  }
  EXPECT_THAT(ProblemMessages(Claim("second", 1)), IsEmpty());
}

TEST_F(FolderOfAnotherTest, WhatKilledWritersLeftIsRemoved) {
  TestDirectory::Write(directory_.File(".tmp-writer-Ab3dEf"), "{");
  EXPECT_THAT(ProblemMessages(Claim("first", 0)), IsEmpty());
  EXPECT_THAT(TestDirectory::Names(directory_.path()), ElementsAre("job.json", "writer.json"));
}

v1::WriteReport ReportOf(const std::string& directory) {
  v1::WriteReport request;
  request.set_request(8);
  request.set_checkpoint_dir(directory);
  request.set_service("first");
  request.set_job("quickstart-2");
  request.set_run(R"({"name":"quickstart"})");
  request.set_outcome("failed");
  request.set_failure("rank 0 on w0: killed by signal 9 (SIGKILL)");
  request.set_step(2);
  request.set_max_steps(10);
  return request;
}

TEST_F(FolderOfAnotherTest, APageAboutAJobThatHasEnded) {
  v1::WriteReport nothing_trained = ReportOf(directory_.path());
  nothing_trained.set_step(0);
  v1::WriteReportResult result = WriteReport(nothing_trained);
  EXPECT_EQ(result.request(), 8u);
  EXPECT_EQ(result.path() + result.error(), "");
  TestDirectory::Write(directory_.File("metrics.jsonl"), "{\"step\":1,\"loss\":2.5}\n");
  result = WriteReport(ReportOf(directory_.path()));
  EXPECT_EQ(result.path(), directory_.File("report.html"));
  EXPECT_EQ(result.error(), "");
  const std::string page = TestDirectory::Read(result.path());
  EXPECT_THAT(page, HasSubstr("The training failed at step 2.</p>"));
  EXPECT_THAT(page, HasSubstr("killed by signal 9 (SIGKILL)"));
  EXPECT_THAT(page, HasSubstr("<b>2.5000</b><span>training loss"));
  // What an earlier page says is not left there.
  nothing_trained.set_failure("rank 0 on w0: exit 2: bad input");
  EXPECT_THAT(TestDirectory::Read(WriteReport(nothing_trained).path()), HasSubstr("bad input"));
}

TEST_F(FolderOfAnotherTest, NoPageGoesToAFolderThatIsAwayOrAnothers) {
  TestDirectory::Write(directory_.File("metrics.jsonl"), "{\"step\":1,\"loss\":2.5}\n");
  v1::WriteReport request = ReportOf(directory_.path());
  request.set_service("second");
  EXPECT_THAT(WriteReport(request).error(), HasSubstr("is used by job quickstart-2 of another service"));
  request.set_service("first");
  request.set_job("quickstart-1");
  EXPECT_THAT(WriteReport(request).error(), HasSubstr("is used by job quickstart-2 (attempt 4, pid "));
  EXPECT_FALSE(std::filesystem::exists(directory_.File("report.html")));
  std::filesystem::remove(directory_.File("job.json"));
  EXPECT_THAT(WriteReport(ReportOf(directory_.path())).error(), HasSubstr("job.json: No such file"));
}

}  // namespace
}  // namespace tacc::worker
