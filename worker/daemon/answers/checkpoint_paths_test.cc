#include "worker/daemon/answers/checkpoint_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "machine/folder_lock.h"
#include "machine/testing/test_directory.h"
#include "worker/checkpoint/export.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/folder_writer.h"
#include "worker/checkpoint/writer.h"

namespace tacc::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kOwner[] = R"({"job":"quickstart-2","name":"quickstart"})";

void WriteCheckpoint(const std::string& directory, int64_t step, int64_t attempt) {
  const float value = 1;
  ASSERT_TRUE(
      WriteShard(directory, {step, attempt}, 0, {{"weights/w", "F32", {1}, {1}, {{0}, {1}}, &value}}, nullptr).ok());
  Manifest manifest;
  manifest.step = step;
  manifest.attempt = attempt;
  manifest.identity = R"({"seed":42,"config_json":"{}"})";
  ASSERT_TRUE(CommitCheckpoint(directory, manifest, 1, nullptr).ok());
}

v1::CheckPaths Request(const std::string& directory, v1::CheckPathsMode mode) {
  v1::CheckPaths request;
  request.set_request(5);
  request.set_checkpoint_dir(directory);
  request.set_owner(kOwner);
  request.set_mode(mode);
  return request;
}

std::vector<std::string> Messages(const v1::CheckPathsResult& result) {
  std::vector<std::string> messages;
  for (const v1::PathProblem& problem : result.problems()) messages.push_back(problem.message());
  return messages;
}

v1::CheckPathsResult Checked(const v1::CheckPaths& request) {
  WriterWatch watch;
  return CheckPaths(request, {0, "", &watch});
}

TEST(CheckPathsTest, ClaimMakesTheDirectoryAndExpectSeesIt) {
  TestDirectory directory;
  const std::string runs = directory.File("runs/quickstart");
  v1::CheckPathsResult result = Checked(Request(runs, v1::CHECK_PATHS_MODE_CLAIM));
  EXPECT_EQ(result.request(), 5u);
  EXPECT_THAT(Messages(result), IsEmpty());
  EXPECT_EQ(result.previous_owner(), "");
  EXPECT_EQ(result.max_attempt(), 0);
  EXPECT_EQ(TestDirectory::Read(runs + "/job.json"), kOwner);
  EXPECT_THAT(TestDirectory::Names(runs), ElementsAre("job.json"));
  EXPECT_THAT(Messages(Checked(Request(runs, v1::CHECK_PATHS_MODE_EXPECT))), IsEmpty());
  EXPECT_EQ(Checked(Request(runs, v1::CHECK_PATHS_MODE_CLAIM)).previous_owner(), kOwner);
}

TEST(CheckPathsTest, AnotherJobIsRefused) {
  TestDirectory directory;
  TestDirectory::Write(directory.File("job.json"), R"({"job":"other-1","name":"other"})");
  const auto claimed = Checked(Request(directory.path(), v1::CHECK_PATHS_MODE_CLAIM));
  EXPECT_THAT(Messages(claimed),
              ElementsAre(HasSubstr("belongs to job \"other\" (other-1); choose another checkpoint.dir")));
  EXPECT_EQ(TestDirectory::Read(directory.File("job.json")), R"({"job":"other-1","name":"other"})");
  const auto expected = Checked(Request(directory.path(), v1::CHECK_PATHS_MODE_EXPECT));
  EXPECT_THAT(Messages(expected), ElementsAre(HasSubstr("must be on a file system that all workers share")));
  TestDirectory::Write(directory.File("job.json"), "{");
  EXPECT_THAT(Messages(Checked(Request(directory.path(), v1::CHECK_PATHS_MODE_CLAIM))),
              ElementsAre(HasSubstr("job.json: damaged")));
}

TEST(CheckPathsTest, AFolderInUseIsRefused) {
  TestDirectory directory;
  const v1::CheckPaths claim = Request(directory.path(), v1::CHECK_PATHS_MODE_CLAIM);
  WriterWatch watch;
  auto lock = FolderLock::Take(directory.path(), FolderLock::Kind::kAlone, "job quickstart");
  ASSERT_TRUE(lock.ok());
  (*lock)->SetCoordinator("127.0.0.1:1");
  const auto refused = CheckPaths(claim, {0, "127.0.0.1:2", &watch});
  ASSERT_THAT(Messages(refused), ElementsAre(HasSubstr(directory.path() + " is used by job quickstart (pid ")));
  EXPECT_EQ(refused.problems(0).kind(), v1::PATH_PROBLEM_KIND_WRONG);
  EXPECT_EQ(access(directory.File("job.json").c_str(), F_OK), -1);
  EXPECT_THAT(Messages(CheckPaths(claim, {0, "127.0.0.1:1", &watch})), IsEmpty());
  lock->reset();
  EXPECT_THAT(Messages(CheckPaths(claim, {0, "127.0.0.1:2", &watch})), IsEmpty());
}

// A job of the same id and name, of one service or another.
v1::CheckPaths ClaimBy(const std::string& directory, const std::string& service) {
  v1::CheckPaths request = Request(directory, v1::CHECK_PATHS_MODE_CLAIM);
  request.set_owner(absl::StrCat(R"({"job":"quickstart-2","name":"quickstart","service":")", service, R"("})"));
  request.set_last_attempt(5);
  return request;
}

class FolderOfAnotherTest : public ::testing::Test {
 protected:
  FolderOfAnotherTest() {
    EXPECT_THAT(Messages(Claim("first", 0)), IsEmpty());
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
  EXPECT_THAT(Messages(claimed), IsEmpty());
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
  EXPECT_THAT(Messages(claimed), IsEmpty());
  // No attempt is counted twice, though it has left no checkpoint, nor one of a job whose rank 0 never began.
  EXPECT_EQ(claimed.max_attempt(), 4);
  EXPECT_EQ(ReadFolderWriter(directory_.path())->value().attempt, 0);
  EXPECT_EQ(Claim("first", 1).max_attempt(), 4);
  Begin(5);
  EXPECT_EQ(Claim("first", 2).max_attempt(), 5);
}

TEST_F(FolderOfAnotherTest, OneThatHasEndedLeavesIt) {
  Begin(4, /*has_ended=*/true);
  EXPECT_THAT(Messages(Claim("second", 0)), IsEmpty());
  EXPECT_EQ(Writer(), "second");
}

// Each would delete what the other has written.
TEST_F(FolderOfAnotherTest, WhoWasTakenOverFromWritesThereNoMore) {
  Begin(4, /*has_ended=*/true);
  EXPECT_THAT(Messages(Claim("second", 0)), IsEmpty());
  Begin(5);
  v1::CheckPaths back = ClaimBy(directory_.path(), "first");
  back.set_has_run(true);
  EXPECT_THAT(Messages(Claim(back, 1)), ElementsAre(HasSubstr("is used by job quickstart-2 of another service")));
  Begin(5, /*has_ended=*/true);
  EXPECT_THAT(Messages(Claim(back, 2)),
              ElementsAre(HasSubstr(" was taken over by job quickstart-2 of another service, which trains there no "
                                    "more: cancel this job and submit it again")));
  EXPECT_EQ(Writer(), "second");
  // As which it is another job.
  EXPECT_THAT(Messages(Claim("first", 3)), IsEmpty());
  EXPECT_EQ(Writer(), "first");
}

// The worker was asked for an attempt that has begun elsewhere since.
TEST_F(FolderOfAnotherTest, WhatWasAskedLongAgoClaimsNothing) {
  v1::CheckPaths late = ClaimBy(directory_.path(), "first");
  late.set_last_attempt(3);
  EXPECT_THAT(Messages(Claim(late, 0)), ElementsAre(AllOf(HasSubstr("is used by job quickstart-2 (attempt 4, pid "),
                                                          HasSubstr("this was asked before that one began"))));
  EXPECT_EQ(ReadFolderWriter(directory_.path())->value().attempt, 4);
  late.set_last_attempt(9);
  late.set_owner(R"({"job":"quickstart-1","name":"quickstart","service":"first"})");
  EXPECT_THAT(Messages(Claim(late, 0)), ElementsAre(HasSubstr("this was asked before that one began")));
  EXPECT_EQ(ReadFolderWriter(directory_.path())->value().job, "quickstart-2");
  late.set_owner(R"({"job":"quickstart-10","name":"quickstart","service":"first"})");
  EXPECT_THAT(Messages(Claim(late, 0)), IsEmpty());
}

// Two paths may lead to one folder.
TEST_F(FolderOfAnotherTest, TheFolderOfAnOpenJobOfTheServiceIsRefused) {
  v1::CheckPaths next = ClaimBy(directory_.path(), "first");
  next.set_owner(R"({"job":"quickstart-3","name":"quickstart","service":"first"})");
  next.add_open_jobs("quickstart-2");
  const auto refused = Claim(next, 0);
  EXPECT_THAT(Messages(refused), ElementsAre(HasSubstr("is used by job quickstart-2 (attempt 4, pid ")));
  EXPECT_EQ(refused.problems(0).kind(), v1::PATH_PROBLEM_KIND_WRONG);
  EXPECT_EQ(ReadFolderWriter(directory_.path())->value().job, "quickstart-2");
  Begin(4, /*has_ended=*/true);
  EXPECT_THAT(Messages(Claim(next, 0)), IsEmpty());
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
  EXPECT_THAT(Messages(Claim("second", 2)), IsEmpty());
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
  EXPECT_THAT(Messages(Claim("second", 0)), IsEmpty());
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
    EXPECT_THAT(Messages(CheckPaths(ClaimBy(directory_.path(), "first"), {0, "127.0.0.1:1", &watch_})), IsEmpty());
    EXPECT_THAT(Messages(Claim("second", 0)), ElementsAre(HasSubstr("wait for it, or give another checkpoint.dir")));
  }
  EXPECT_THAT(Messages(Claim("second", 1)), IsEmpty());
}

TEST_F(FolderOfAnotherTest, WhatKilledWritersLeftIsRemoved) {
  TestDirectory::Write(directory_.File(".tmp-writer-Ab3dEf"), "{");
  EXPECT_THAT(Messages(Claim("first", 0)), IsEmpty());
  EXPECT_THAT(TestDirectory::Names(directory_.path()), ElementsAre("job.json", "writer.json"));
}

TEST(CheckPathsTest, EachBadPathIsNamed) {
  TestDirectory directory;
  TestDirectory::Write(directory.File("file"), "x");
  v1::CheckPaths request = Request(directory.File("file/runs"), v1::CHECK_PATHS_MODE_CLAIM);
  request.add_readable(directory.path());
  request.add_readable(directory.File("missing"));
  request.set_resume_path(directory.File("step-00000001.a1"));
  const auto result = Checked(request);
  EXPECT_THAT(Messages(result),
              ElementsAre(HasSubstr("/missing: No such file"), HasSubstr("file/runs: cannot be made")));
  ASSERT_EQ(result.checkpoints_size(), 1);
  EXPECT_THAT(result.checkpoints(0).unread().message(), HasSubstr("no such checkpoint"));
  EXPECT_THAT(Messages(Checked(Request("runs", v1::CHECK_PATHS_MODE_CLAIM))),
              ElementsAre(HasSubstr("not an absolute path")));
}

TEST(CheckPathsTest, ListsCheckpointsAttemptsAndTheExport) {
  TestDirectory directory;
  const std::string runs = directory.File("runs");
  ASSERT_TRUE(MakeDirectory(runs).ok());
  WriteCheckpoint(runs, 10, 1);
  WriteCheckpoint(runs, 20, 3);
  WriteCheckpoint(directory.path(), 7, 2);
  ASSERT_TRUE(MakeDirectory(runs + "/.tmp-step-00000030.a9").ok());
  TestDirectory::Write(runs + "/step-00000010.a1/rank-00000.safetensors", "short");
  v1::CheckPaths request = Request(runs, v1::CHECK_PATHS_MODE_CLAIM);
  request.set_resume_path(directory.File("step-00000007.a2"));
  request.set_export_dir(runs + "/hf");
  auto result = Checked(request);
  EXPECT_THAT(Messages(result), IsEmpty());
  EXPECT_EQ(result.max_attempt(), 9);
  EXPECT_EQ(result.exported_checkpoint(), "");
  ASSERT_EQ(result.checkpoints_size(), 3);
  EXPECT_EQ(result.checkpoints(0).name(), "step-00000010.a1");
  EXPECT_THAT(result.checkpoints(0).damage(), HasSubstr("rank-00000.safetensors"));
  EXPECT_EQ(result.checkpoints(1).name(), "step-00000020.a3");
  EXPECT_EQ(result.checkpoints(1).step(), 20);
  EXPECT_EQ(result.checkpoints(1).attempt(), 3);
  EXPECT_EQ(result.checkpoints(1).identity(), R"({"seed":42})");
  EXPECT_GT(result.checkpoints(1).size_bytes(), 0);
  EXPECT_EQ(result.checkpoints(1).damage(), "");
  EXPECT_EQ(result.checkpoints(2).name(), directory.File("step-00000007.a2"));
  EXPECT_EQ(result.checkpoints(2).step(), 7);
  ASSERT_TRUE(ExportCheckpoint({runs + "/step-00000020.a3", "", runs + "/hf"}).ok());
  EXPECT_EQ(Checked(request).exported_checkpoint(), "step-00000020.a3");
  EXPECT_EQ(Checked(request).export_problem(), "");
  TestDirectory::Write(runs + "/hf/README.md", "# My model");
  EXPECT_THAT(Checked(request).export_problem(), HasSubstr("hf: exists and holds \"README.md\""));
  EXPECT_EQ(Checked(request).exported_checkpoint(), "step-00000020.a3");
  // Newer than every checkpoint, but not whole.
  TestDirectory::Write(runs + "/hf/model.safetensors", "torn");
  EXPECT_EQ(Checked(request).exported_checkpoint(), "");
}

// Tests of folders that are away: what must not happen is that one is made, or taken for one whose files were lost.

v1::CheckPaths RequestOfARun(const std::string& directory) {
  v1::CheckPaths request = Request(directory, v1::CHECK_PATHS_MODE_CLAIM);
  request.set_has_run(true);
  return request;
}

// A link to itself: to open it fails with ELOOP, also for root, and says nothing of what is behind it.
void MakeUnreadable(const std::string& path) {
  ASSERT_TRUE(RemoveTree(path).ok());
  ASSERT_EQ(symlink(path.c_str(), path.c_str()), 0);
}

TEST(CheckPathsTest, AFolderThatIsAwayIsNotMadeAgain) {
  TestDirectory directory;
  const std::string runs = directory.File("mount/runs");
  ASSERT_THAT(Messages(Checked(Request(runs, v1::CHECK_PATHS_MODE_CLAIM))), IsEmpty());
  WriteCheckpoint(runs, 10, 1);
  // Its file system is unmounted: an empty mount point stays.
  ASSERT_EQ(rename(directory.File("mount").c_str(), directory.File("away").c_str()), 0);
  ASSERT_TRUE(MakeDirectory(directory.File("mount")).ok());
  auto result = Checked(RequestOfARun(runs));
  ASSERT_EQ(result.problems_size(), 1);
  EXPECT_EQ(result.problems(0).kind(), v1::PATH_PROBLEM_KIND_MISSING);
  EXPECT_THAT(result.problems(0).message(), HasSubstr("cancel the job and submit it again"));
  EXPECT_THAT(TestDirectory::Names(directory.File("mount")), IsEmpty());
  EXPECT_EQ(Checked(Request(runs, v1::CHECK_PATHS_MODE_EXPECT)).problems_size(), 1);
  EXPECT_THAT(TestDirectory::Names(directory.File("mount")), IsEmpty());
  // The mount point is the checkpoint folder itself.
  ASSERT_TRUE(MakeDirectory(runs).ok());
  EXPECT_EQ(Checked(RequestOfARun(runs)).problems(0).kind(), v1::PATH_PROBLEM_KIND_MISSING);
  EXPECT_THAT(TestDirectory::Names(runs), IsEmpty());
  ASSERT_TRUE(RemoveTree(directory.File("mount")).ok());
  ASSERT_EQ(rename(directory.File("away").c_str(), directory.File("mount").c_str()), 0);
  result = Checked(RequestOfARun(runs));
  EXPECT_THAT(Messages(result), IsEmpty());
  EXPECT_EQ(result.checkpoints_size(), 1);
}

TEST(CheckPathsTest, ATornOwnerOfAJobThatHasRunIsMended) {
  TestDirectory directory;
  TestDirectory::Write(directory.File("job.json"), "");
  EXPECT_THAT(Messages(Checked(RequestOfARun(directory.path()))), IsEmpty());
  EXPECT_EQ(TestDirectory::Read(directory.File("job.json")), kOwner);
}

TEST(CheckPathsTest, AnEmptyFolderHasNothingToRead) {
  TestDirectory directory;
  v1::CheckPaths request;
  request.add_readable(directory.path());
  auto result = Checked(request);
  ASSERT_EQ(result.problems_size(), 1);
  EXPECT_EQ(result.problems(0).kind(), v1::PATH_PROBLEM_KIND_MISSING);
  EXPECT_THAT(result.problems(0).message(), HasSubstr("not mounted"));
  // A regular file of which nothing can be read: EIO.
  ASSERT_EQ(symlink("/proc/self/mem", directory.File("index.json").c_str()), 0);
  result = Checked(request);
  ASSERT_EQ(result.problems_size(), 1);
  EXPECT_EQ(result.problems(0).kind(), v1::PATH_PROBLEM_KIND_UNAVAILABLE);
  EXPECT_THAT(result.problems(0).message(), HasSubstr("index.json: Input/output error"));
}

TEST(CheckPathsTest, ACheckpointThatCannotBeReadIsNotDamaged) {
  TestDirectory directory;
  WriteCheckpoint(directory.path(), 10, 1);
  WriteCheckpoint(directory.path(), 20, 1);
  MakeUnreadable(directory.File("step-00000010.a1/rank-00000.safetensors"));
  MakeUnreadable(directory.File("step-00000020.a1/manifest.json"));
  v1::CheckPaths request = Request(directory.path(), v1::CHECK_PATHS_MODE_CLAIM);
  request.set_resume_path(directory.File("elsewhere/step-00000001.a1"));
  const auto result = Checked(request);
  ASSERT_EQ(result.checkpoints_size(), 3);
  for (const v1::FoundCheckpoint& found : result.checkpoints()) EXPECT_EQ(found.damage(), "") << found.name();
  EXPECT_EQ(result.checkpoints(0).unread().kind(), v1::PATH_PROBLEM_KIND_UNAVAILABLE);
  EXPECT_THAT(result.checkpoints(0).unread().message(), HasSubstr("rank-00000.safetensors: cannot be opened"));
  EXPECT_EQ(result.checkpoints(1).unread().kind(), v1::PATH_PROBLEM_KIND_UNAVAILABLE);
  EXPECT_EQ(result.checkpoints(2).unread().kind(), v1::PATH_PROBLEM_KIND_MISSING);
}

TEST(DeleteCheckpointsTest, WhereTheFolderIsAwayNothingIsDeleted) {
  TestDirectory directory;
  v1::DeleteCheckpoints request;
  request.set_checkpoint_dir(directory.path());
  request.add_names("step-00000001.a1");
  auto result = DeleteCheckpoints(request);
  EXPECT_THAT(result.deleted(), IsEmpty());
  EXPECT_THAT(result.errors(), ElementsAre(HasSubstr("job.json: No such file")));
  TestDirectory::Write(directory.File("job.json"), kOwner);
  result = DeleteCheckpoints(request);
  EXPECT_THAT(result.deleted(), ElementsAre("step-00000001.a1"));
  EXPECT_THAT(result.errors(), IsEmpty());
}

TEST(DeleteCheckpointsTest, DeletesOnlyCheckpointsOfTheDirectory) {
  TestDirectory directory;
  for (const char* name : {"step-00000001.a1", "step-00000002.a1", "hf", "runs"}) {
    ASSERT_TRUE(MakeDirectory(directory.File(name)).ok());
    TestDirectory::Write(directory.File(name) + "/file", "x");
  }
  ASSERT_EQ(symlink(directory.File("hf").c_str(), directory.File("step-00000003.a1").c_str()), 0);
  TestDirectory::Write(directory.File("job.json"), kOwner);
  v1::DeleteCheckpoints request;
  request.set_request(8);
  request.set_checkpoint_dir(directory.path());
  for (const char* name :
       {"step-00000001.a1", "hf", "../x", "", ".", "step-00000009.a1", "step-00000003.a1", "runs/step-00000001.a1"}) {
    request.add_names(name);
  }
  const auto result = DeleteCheckpoints(request);
  EXPECT_EQ(result.request(), 8u);
  EXPECT_THAT(result.deleted(), ElementsAre("step-00000001.a1", "step-00000009.a1"));
  EXPECT_EQ(result.errors_size(), 6);
  EXPECT_THAT(TestDirectory::Names(directory.path()),
              ElementsAre("hf", "job.json", "runs", "step-00000002.a1", "step-00000003.a1"));
  EXPECT_EQ(TestDirectory::Read(directory.File("hf/file")), "x");
  request.set_checkpoint_dir("relative");
  EXPECT_THAT(DeleteCheckpoints(request).errors(), ElementsAre(HasSubstr("not an absolute path")));
}

TEST(DeleteCheckpointsTest, CollectsOlderAttemptsThatWereNeverLogged) {
  TestDirectory directory;
  for (const char* name : {"step-00000001.a1", "step-00000002.a2", "step-00000003.a2", ".tmp-step-00000004.a3",
                           "step-00000005.a4", "hf"}) {
    ASSERT_TRUE(MakeDirectory(directory.File(name)).ok());
  }
  TestDirectory::Write(directory.File("job.json"), kOwner);
  v1::DeleteCheckpoints request;
  request.set_checkpoint_dir(directory.path());
  request.set_first_attempt(2);
  request.set_older_than_attempt(4);
  request.add_keep("step-00000003.a2");
  const auto result = DeleteCheckpoints(request);
  EXPECT_THAT(result.errors(), IsEmpty());
  EXPECT_THAT(result.deleted(), ElementsAre(".tmp-step-00000004.a3", "step-00000002.a2"));
  EXPECT_THAT(TestDirectory::Names(directory.path()),
              ElementsAre("hf", "job.json", "step-00000001.a1", "step-00000003.a2", "step-00000005.a4"));
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
