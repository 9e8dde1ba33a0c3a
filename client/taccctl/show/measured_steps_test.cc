#include "client/taccctl/show/measured_steps.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tacc::client {
namespace {

using ::testing::Contains;
using ::testing::Not;

class MeasuredStepsTest : public ::testing::Test {
 protected:
  MeasuredStepsTest() : path_(testing::TempDir() + "/measured.csv") {}

  absl::StatusOr<std::vector<MeasuredStep>> Read(const std::string& text) {
    std::ofstream(path_) << text;
    return ReadMeasuredSteps(path_, {"job.yaml", {"data.seq_len=4096"}});
  }
  std::string Error(const std::string& text) {
    const auto steps = Read(text);
    return steps.ok() ? "" : std::string(steps.status().message());
  }

  const std::string path_;
};

TEST_F(MeasuredStepsTest, RowsAreJobsWithTheirLayouts) {
  const auto steps = Read(
      "step_seconds, world, fsdp, tp, pp, schedule, zero_stage, gc, job\n"
      "\n"
      "1.5, 64, 8, 8, , , , true, # as the job says\n"
      "2.5, 16, , 8, 2, 1f1b, 1, , other/job.yaml\n");
  ASSERT_TRUE(steps.ok()) << steps.status();
  ASSERT_EQ(steps->size(), 2u);
  const MeasuredStep &first = (*steps)[0], &second = (*steps)[1];
  EXPECT_EQ(first.place, path_ + ":3");
  EXPECT_EQ(first.seconds, 1.5);
  EXPECT_EQ(first.gpus, 64);
  EXPECT_EQ(first.job.file, "job.yaml");
  EXPECT_THAT(first.job.sets,
              testing::ElementsAre("data.seq_len=4096", "dist.pp.size=1", "dist.dp.size=1", "dist.fsdp.size=8",
                                   "dist.ep.size=1", "dist.cp.size=1", "dist.tp.size=8", "memory.gc=true"));
  EXPECT_EQ(std::filesystem::path(second.job.file).lexically_relative(testing::TempDir()), "other/job.yaml");
  EXPECT_THAT(second.job.sets, Contains("dist.pp.schedule=1f1b"));
  // ZeRO's stage is one of an fsdp that splits.
  EXPECT_THAT(second.job.sets, Not(Contains("dist.fsdp.zero_stage=1")));
}

TEST_F(MeasuredStepsTest, TakesWhatSpreadsheetsWrite) {
  const auto steps = Read("\xEF\xBB\xBFstep_seconds,world,dp\r\n1.5,8,8\r\n");
  ASSERT_TRUE(steps.ok()) << steps.status();
  ASSERT_EQ(steps->size(), 1u);
  EXPECT_EQ((*steps)[0].gpus, 8);
}

TEST_F(MeasuredStepsTest, SaysWhereAndWhatIsWrong) {
  EXPECT_EQ(Error("step_seconds,world,tp\n0,8,x\n1,8,4\n1,8\n,8,8\n"),
            path_ + ":2: step_seconds = 0; wanted seconds above 0\n" + path_ +
                ":2: tp = x; wanted a whole number from 1 to 1000000\n" + path_ +
                ":3: world = 8, but the axes multiply to 4\n" + path_ +
                ":4: 2 cells; the first line names 3 columns\n" + path_ +
                ":5: step_seconds is missing; wanted seconds above 0");
  EXPECT_THAT(Error("seconds,world\n1,8\n"), testing::HasSubstr(":1: column \"seconds\" is not known; known: job, "));
  EXPECT_THAT(Error("world,world\n8,8\n"), testing::HasSubstr(":1: column \"world\" is there twice"));
  EXPECT_EQ(Error("step_seconds,world\n"), path_ + ": no row with a measured step");
  EXPECT_EQ(Error("step_seconds;world\n1;8\n"), path_ + ":1: one column; separate columns by commas");
  EXPECT_EQ(ReadMeasuredSteps(testing::TempDir(), {}).status().message(),
            testing::TempDir() + ": is a folder; give the path of a table (CSV)");
  EXPECT_EQ(ReadMeasuredSteps("/nowhere.csv", {}).status().message(),
            "/nowhere.csv: cannot be read; give the path of a table (CSV)");
}

}  // namespace
}  // namespace tacc::client
