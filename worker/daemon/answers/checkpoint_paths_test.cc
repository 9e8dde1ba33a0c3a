#include "worker/daemon/answers/checkpoint_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "machine/folder_lock.h"
#include "machine/testing/test_directory.h"
#include "worker/checkpoint/export.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/writer.h"
#include "worker/daemon/answers/writer_watch.h"
#include "worker/daemon/testing/paths_request.h"

namespace tacc::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

v1::CheckPathsResult Checked(const v1::CheckPaths& request) {
  WriterWatch watch;
  return CheckPaths(request, {0, "", &watch});
}

TEST(CheckPathsTest, ClaimMakesTheDirectoryAndExpectSeesIt) {
  TestDirectory directory;
  const std::string runs = directory.File("runs/quickstart");
  v1::CheckPathsResult result = Checked(PathsRequest(runs, v1::CHECK_PATHS_MODE_CLAIM));
  EXPECT_EQ(result.request(), 5u);
  EXPECT_THAT(ProblemMessages(result), IsEmpty());
  EXPECT_EQ(result.previous_owner(), "");
  EXPECT_EQ(result.max_attempt(), 0);
  EXPECT_EQ(TestDirectory::Read(runs + "/job.json"), kOwner);
  EXPECT_THAT(TestDirectory::Names(runs), ElementsAre("job.json"));
  EXPECT_THAT(ProblemMessages(Checked(PathsRequest(runs, v1::CHECK_PATHS_MODE_EXPECT))), IsEmpty());
  EXPECT_EQ(Checked(PathsRequest(runs, v1::CHECK_PATHS_MODE_CLAIM)).previous_owner(), kOwner);
}

TEST(CheckPathsTest, AnotherJobIsRefused) {
  TestDirectory directory;
  TestDirectory::Write(directory.File("job.json"), R"({"job":"other-1","name":"other"})");
  const auto claimed = Checked(PathsRequest(directory.path(), v1::CHECK_PATHS_MODE_CLAIM));
  EXPECT_THAT(ProblemMessages(claimed),
              ElementsAre(HasSubstr("belongs to job \"other\" (other-1); choose another checkpoint.dir")));
  EXPECT_EQ(TestDirectory::Read(directory.File("job.json")), R"({"job":"other-1","name":"other"})");
  const auto expected = Checked(PathsRequest(directory.path(), v1::CHECK_PATHS_MODE_EXPECT));
  EXPECT_THAT(ProblemMessages(expected), ElementsAre(HasSubstr("must be on a file system that all workers share")));
  TestDirectory::Write(directory.File("job.json"), "{");
  EXPECT_THAT(ProblemMessages(Checked(PathsRequest(directory.path(), v1::CHECK_PATHS_MODE_CLAIM))),
              ElementsAre(HasSubstr("job.json: damaged")));
}

TEST(CheckPathsTest, AFolderInUseIsRefused) {
  TestDirectory directory;
  const v1::CheckPaths claim = PathsRequest(directory.path(), v1::CHECK_PATHS_MODE_CLAIM);
  WriterWatch watch;
  auto lock = FolderLock::Take(directory.path(), FolderLock::Kind::kAlone, "job quickstart");
  ASSERT_TRUE(lock.ok());
  (*lock)->SetCoordinator("127.0.0.1:1");
  const auto refused = CheckPaths(claim, {0, "127.0.0.1:2", &watch});
  ASSERT_THAT(ProblemMessages(refused), ElementsAre(HasSubstr(directory.path() + " is used by job quickstart (pid ")));
  EXPECT_EQ(refused.problems(0).kind(), v1::PATH_PROBLEM_KIND_WRONG);
  EXPECT_EQ(access(directory.File("job.json").c_str(), F_OK), -1);
  EXPECT_THAT(ProblemMessages(CheckPaths(claim, {0, "127.0.0.1:1", &watch})), IsEmpty());
  lock->reset();
  EXPECT_THAT(ProblemMessages(CheckPaths(claim, {0, "127.0.0.1:2", &watch})), IsEmpty());
}

TEST(CheckPathsTest, EachBadPathIsNamed) {
  TestDirectory directory;
  TestDirectory::Write(directory.File("file"), "x");
  v1::CheckPaths request = PathsRequest(directory.File("file/runs"), v1::CHECK_PATHS_MODE_CLAIM);
  request.add_readable(directory.path());
  request.add_readable(directory.File("missing"));
  request.set_resume_path(directory.File("step-00000001.a1"));
  const auto result = Checked(request);
  EXPECT_THAT(ProblemMessages(result),
              ElementsAre(HasSubstr("/missing: No such file"), HasSubstr("file/runs: cannot be made")));
  ASSERT_EQ(result.checkpoints_size(), 1);
  EXPECT_THAT(result.checkpoints(0).unread().message(), HasSubstr("no such checkpoint"));
  EXPECT_THAT(ProblemMessages(Checked(PathsRequest("runs", v1::CHECK_PATHS_MODE_CLAIM))),
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
  v1::CheckPaths request = PathsRequest(runs, v1::CHECK_PATHS_MODE_CLAIM);
  request.set_resume_path(directory.File("step-00000007.a2"));
  request.set_export_dir(runs + "/hf");
  auto result = Checked(request);
  EXPECT_THAT(ProblemMessages(result), IsEmpty());
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

TEST(CheckPathsTest, AModelThatIsNoExportIsNotReplacedByOne) {
  TestDirectory directory;
  const std::string model = directory.File("model");
  ASSERT_TRUE(MakeDirectory(model).ok());
  for (const char* name : {"config.json", "model.safetensors"}) TestDirectory::Write(model + "/" + name, "somebody's");
  v1::CheckPaths request = PathsRequest(directory.File("run"), v1::CHECK_PATHS_MODE_CLAIM);
  request.set_export_dir(model);
  EXPECT_THAT(Checked(request).export_problem(),
              HasSubstr("model: exists and holds \"config.json\", which no export has written; move it elsewhere"));
}

// Tests of folders that are away: what must not happen is that one is made, or taken for one whose files were lost.

v1::CheckPaths RequestOfARun(const std::string& directory) {
  v1::CheckPaths request = PathsRequest(directory, v1::CHECK_PATHS_MODE_CLAIM);
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
  ASSERT_THAT(ProblemMessages(Checked(PathsRequest(runs, v1::CHECK_PATHS_MODE_CLAIM))), IsEmpty());
  WriteCheckpoint(runs, 10, 1);
  // Its file system is unmounted: an empty mount point stays.
  ASSERT_EQ(rename(directory.File("mount").c_str(), directory.File("away").c_str()), 0);
  ASSERT_TRUE(MakeDirectory(directory.File("mount")).ok());
  auto result = Checked(RequestOfARun(runs));
  ASSERT_EQ(result.problems_size(), 1);
  EXPECT_EQ(result.problems(0).kind(), v1::PATH_PROBLEM_KIND_MISSING);
  EXPECT_THAT(result.problems(0).message(), HasSubstr("cancel the job and submit it again"));
  EXPECT_THAT(TestDirectory::Names(directory.File("mount")), IsEmpty());
  EXPECT_EQ(Checked(PathsRequest(runs, v1::CHECK_PATHS_MODE_EXPECT)).problems_size(), 1);
  EXPECT_THAT(TestDirectory::Names(directory.File("mount")), IsEmpty());
  // The mount point is the checkpoint folder itself.
  ASSERT_TRUE(MakeDirectory(runs).ok());
  EXPECT_EQ(Checked(RequestOfARun(runs)).problems(0).kind(), v1::PATH_PROBLEM_KIND_MISSING);
  EXPECT_THAT(TestDirectory::Names(runs), IsEmpty());
  ASSERT_TRUE(RemoveTree(directory.File("mount")).ok());
  ASSERT_EQ(rename(directory.File("away").c_str(), directory.File("mount").c_str()), 0);
  result = Checked(RequestOfARun(runs));
  EXPECT_THAT(ProblemMessages(result), IsEmpty());
  EXPECT_EQ(result.checkpoints_size(), 1);
}

TEST(CheckPathsTest, ATornOwnerOfAJobThatHasRunIsMended) {
  TestDirectory directory;
  TestDirectory::Write(directory.File("job.json"), "");
  EXPECT_THAT(ProblemMessages(Checked(RequestOfARun(directory.path()))), IsEmpty());
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
  v1::CheckPaths request = PathsRequest(directory.path(), v1::CHECK_PATHS_MODE_CLAIM);
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

}  // namespace
}  // namespace tacc::worker
