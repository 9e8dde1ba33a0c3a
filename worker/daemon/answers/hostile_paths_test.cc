// A coordinator's questions name hostile paths in each of their fields.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "confinement/confine.h"
#include "confinement/landlock.h"
#include "confinement/testing/hostile_tree.h"
#include "machine/clock.h"
#include "worker/daemon/answers/checkpoint_paths.h"
#include "worker/daemon/testing/paths_request.h"

namespace tacc::worker {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class HostilePathsTest : public ::testing::Test {
 protected:
  v1::CheckPathsResult Check(const v1::CheckPaths& request) {
    v1::CheckPathsResult result;
    const absl::Status status = RunConfined({paths_, std::nullopt}, [&] {
      CheckPathsOptions options = {0, "127.0.0.1:7070", &watch_, &SteadySeconds, {}, paths_};
      result = CheckPaths(request, options);
    });
    EXPECT_TRUE(status.ok()) << status;
    return result;
  }

  HostileTree tree_;
  const AllowedPaths paths_{{tree_.root()}, {}};
  WriterWatch watch_;
};

// Strings of a message are UTF-8, and end nowhere before their end.
bool CanBeSent(const std::string& path) { return path.find('\0') == std::string::npos; }

TEST_F(HostilePathsTest, NoneIsOpenedAndEachIsToldOnALineOfItsOwn) {
  (void)tree_.TakeTouched();
  int num_asked = 0;
  for (const std::string& path : tree_.paths()) {
    if (path.empty() || !CanBeSent(path)) continue;
    for (const auto set : {+[](v1::CheckPaths* to, const std::string& p) { to->add_readable(p); },
                           +[](v1::CheckPaths* to, const std::string& p) { to->set_checkpoint_dir(p); },
                           +[](v1::CheckPaths* to, const std::string& p) { to->set_export_dir(p); },
                           +[](v1::CheckPaths* to, const std::string& p) { to->set_model_dir(p); },
                           +[](v1::CheckPaths* to, const std::string& p) { to->set_resume_path(p); }}) {
      v1::CheckPaths request = PathsRequest(tree_.Allowed("run"), v1::CHECK_PATHS_MODE_CLAIM);
      set(&request, path);
      const v1::CheckPathsResult result = Check(request);
      ++num_asked;
      ASSERT_EQ(result.problems_size(), 1) << path;
      EXPECT_EQ(result.problems(0).kind(), v1::PATH_PROBLEM_KIND_WRONG) << path;
      EXPECT_THAT(result.problems(0).message(), Not(HasSubstr("\n")));
      EXPECT_THAT(result.problems(0).message(), HasSubstr(QuotedPath(path)));
    }
    v1::DeleteCheckpoints doomed;
    doomed.set_checkpoint_dir(path);
    doomed.add_names("step-00000001.a1");
    EXPECT_EQ(DeleteCheckpoints(doomed, paths_).errors_size(), 1) << path;
    v1::WriteReport report;
    report.set_checkpoint_dir(path);
    EXPECT_THAT(WriteReport(report, paths_).error(), Not(IsEmpty())) << path;
  }
  EXPECT_GE(num_asked, 1000);
  EXPECT_EQ(tree_.TakeTouched(), 0);
  // A folder is not claimed for a job that cannot start.
  EXPECT_FALSE(std::filesystem::exists(tree_.Allowed("run")));
}

TEST_F(HostilePathsTest, AnHonestJobClaimsItsFolder) {
  v1::CheckPaths request = PathsRequest(tree_.Allowed("runs/honest"), v1::CHECK_PATHS_MODE_CLAIM);
  request.add_readable(tree_.Allowed("data"));
  request.set_export_dir(tree_.Allowed("runs/honest/hf"));
  EXPECT_THAT(ProblemMessages(Check(request)), IsEmpty());
  EXPECT_TRUE(std::filesystem::exists(tree_.Allowed("runs/honest/job.json")));
}

// A pipe that nobody writes, under the name of each file that is looked for: no question waits for it.
TEST_F(HostilePathsTest, APipeInTheRunsFolderHoldsNobodyUp) {
  const std::string run = tree_.Allowed("runs/piped");
  std::filesystem::create_directories(run + "/step-00000001.a1");
  for (const char* name : {"job.json", "writer.json", "metrics.jsonl", "step-00000001.a1/manifest.json"})
    ASSERT_EQ(mkfifo(absl::StrCat(run, "/", name).c_str(), 0666), 0);
  const v1::CheckPaths request = PathsRequest(run, v1::CHECK_PATHS_MODE_CLAIM);
  EXPECT_THAT(ProblemMessages(Check(request)), ElementsAre(HasSubstr("job.json: not a regular file")));
  std::filesystem::remove(run + "/job.json");
  const v1::CheckPathsResult result = Check(request);
  EXPECT_THAT(ProblemMessages(result), IsEmpty());
  ASSERT_EQ(result.checkpoints_size(), 1);
  EXPECT_THAT(result.checkpoints(0).damage(), HasSubstr("manifest.json: not a regular file"));
  v1::WriteReport report;
  report.set_checkpoint_dir(run);
  report.set_step(1);
  EXPECT_THAT(WriteReport(report, paths_).error(), IsEmpty());
}

// The check passes, and then the folder is a link to the outside.
TEST_F(HostilePathsTest, AFolderThatIsSwappedMeanwhileLeadsNowhere) {
  if (!HasLandlock()) GTEST_SKIP() << "this kernel has no Landlock";
  const SwappedFolder swapped(tree_);
  v1::CheckPaths request = PathsRequest(tree_.Allowed("swapped/run"), v1::CHECK_PATHS_MODE_CLAIM);
  request.add_readable(swapped.File());
  (void)tree_.TakeTouched();
  int num_claimed = 0, num_refused = 0;
  for (int i = 0; i < 500 || num_refused == 0; ++i) {
    const std::vector<std::string> problems = ProblemMessages(Check(request));
    (problems.empty() ? num_claimed : num_refused) += 1;
    for (const std::string& problem : problems)
      // "File exists": between two looks at it the folder was swapped, and swapped back.
      EXPECT_THAT(problem, AnyOf(HasSubstr("link"), HasSubstr("Permission denied"), HasSubstr("No such file"),
                                 HasSubstr("damaged"), HasSubstr("File exists")));
  }
  EXPECT_GT(swapped.num_swaps(), 100);
  EXPECT_EQ(tree_.TakeTouched(), 0);
  EXPECT_FALSE(std::filesystem::exists(tree_.Outside("run")));
}

}  // namespace
}  // namespace tacc::worker
