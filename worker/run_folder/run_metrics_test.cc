#include "worker/run_folder/run_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "machine/testing/test_directory.h"

// What was forced to the disk, by path. Stands in for the C library's.
static std::set<std::string>& Forced() {
  static auto* const forced = new std::set<std::string>;
  return *forced;
}
extern "C" int fsync(int fd) {
  Forced().insert(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd)));
  return static_cast<int>(syscall(SYS_fsync, fd));
}

namespace tacc::worker {
namespace {

constexpr double kTime = 1.7e9;

// Metrics after `steps_done` updates, at second `second`.
std::unique_ptr<RunMetrics> Open(const TestDirectory& directory, int64_t steps_done, double second = 0) {
  auto metrics = RunMetrics::Open(directory.path(), steps_done, kTime + second);
  EXPECT_TRUE(metrics.ok()) << metrics.status();
  return metrics.ok() ? *std::move(metrics) : nullptr;
}

void AddSteps(RunMetrics& metrics, int64_t first, int64_t last, double loss) {
  for (int64_t step = first; step <= last; ++step)
    EXPECT_TRUE(metrics.Add({{"step", step}, {"time", kTime}, {"loss", loss}}).ok());
}

std::string Lines(const TestDirectory& directory) { return TestDirectory::Read(directory.File("metrics.jsonl")); }

TEST(RunMetrics, APointIsALine) {
  const TestDirectory directory;
  const auto metrics = Open(directory, 0);
  EXPECT_TRUE(metrics->Add({{"step", 1}, {"time", 2.5}, {"loss", 3.25}, {"grad_norm", std::nan("")}}).ok());
  EXPECT_TRUE(metrics->Add({{"step", 1}, {"time", 2.5}, {"eval_loss", 3.5}}).ok());
  EXPECT_TRUE(metrics->Sync().ok());
  EXPECT_EQ(Lines(directory),
            "{\"step\":1,\"time\":2.5,\"loss\":3.25,\"grad_norm\":null}\n"
            "{\"step\":1,\"time\":2.5,\"eval_loss\":3.5}\n");
}

TEST(RunMetrics, WhatIsSyncedIsFoundOnTheDisk) {
  const TestDirectory directory;
  Forced().clear();
  const auto metrics = Open(directory, 0);
  AddSteps(*metrics, 1, 1, 1);
  EXPECT_TRUE(metrics->Sync().ok());
  const std::string tensorboard = directory.File("tensorboard");
  EXPECT_THAT(Forced(),
              testing::UnorderedElementsAre(directory.path(), directory.File("metrics.jsonl"), tensorboard,
                                            absl::StrCat(tensorboard, "/", TestDirectory::Names(tensorboard).at(0))));
}

TEST(RunMetrics, PointsAreInTheFileWithinSeconds) {
  const TestDirectory directory;
  const auto metrics = Open(directory, 0);
  AddSteps(*metrics, 1, 2, 1);
  const std::string first = Lines(directory);
  EXPECT_EQ(std::count(first.begin(), first.end(), '\n'), 1);
  EXPECT_TRUE(metrics->Add({{"step", 3}, {"time", kTime + RunMetrics::kFlushSeconds}, {"loss", 1}}).ok());
  const std::string all = Lines(directory);
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 3);
}

TEST(RunMetrics, AResumeDropsWhatIsDoneAgain) {
  const TestDirectory directory;
  {
    const auto metrics = Open(directory, 0);
    AddSteps(*metrics, 1, 4, 1);
    EXPECT_TRUE(metrics->Add({{"step", 4}, {"time", kTime}, {"eval_loss", 2}}).ok());
    AddSteps(*metrics, 5, 6, 1);
    EXPECT_TRUE(metrics->Sync().ok());
  }
  // A write that a kill has cut short.
  TestDirectory::Write(directory.File("metrics.jsonl"), Lines(directory) + R"({"step":4,"los)");
  const auto metrics = Open(directory, 4);
  AddSteps(*metrics, 5, 5, 3);
  EXPECT_TRUE(metrics->Sync().ok());
  const std::string time = absl::StrCat(",\"time\":", nlohmann::json(kTime).dump());
  std::string want;
  for (int step = 1; step <= 4; ++step) absl::StrAppend(&want, "{\"step\":", step, time, ",\"loss\":1.0}\n");
  absl::StrAppend(&want, "{\"step\":4", time, ",\"eval_loss\":2}\n{\"step\":5", time, ",\"loss\":3.0}\n");
  EXPECT_EQ(Lines(directory), want);
}

// More than what is read at a time, and one line alone that is longer.
TEST(RunMetrics, AResumeFindsItsPlaceInALongFile) {
  const TestDirectory directory;
  std::string want;
  for (int step = 1; step <= 5000; ++step) absl::StrAppend(&want, "{\"step\":", step, ",\"loss\":1}\n");
  const std::string damage = std::string(100'000, 'x') + "\n";
  std::string later = damage;
  for (int step = 5001; step <= 15000; ++step) absl::StrAppend(&later, "{\"step\":", step, ",\"loss\":1}\n");
  for (const std::string& rest : {later, later + damage, damage + damage, std::string("\n\n"), std::string()}) {
    TestDirectory::Write(directory.File("metrics.jsonl"), want + rest);
    Open(directory, 5000);
    EXPECT_EQ(Lines(directory), want) << rest.size();
    TestDirectory::Write(directory.File("metrics.jsonl"), rest);
    Open(directory, 5000);
    EXPECT_EQ(Lines(directory), "") << rest.size();
  }
}

TEST(RunMetrics, ATrainingThatBeginsAgainBeginsTheFileAgain) {
  const TestDirectory directory;
  {
    const auto metrics = Open(directory, 0);
    AddSteps(*metrics, 1, 3, 1);
    EXPECT_TRUE(metrics->Sync().ok());
  }
  EXPECT_NE(Lines(directory), "");
  Open(directory, 0);
  EXPECT_EQ(Lines(directory), "");
}

// Whatever wrote it: nothing of it is lost, and it is said.
TEST(RunMetrics, GarbageIsKeptAside) {
  const TestDirectory directory;
  {
    const auto metrics = Open(directory, 0);
    EXPECT_EQ(metrics->TakeRemark(), "");
    AddSteps(*metrics, 1, 3, 1);
    EXPECT_TRUE(metrics->Sync().ok());
  }
  const std::string whole = Lines(directory);
  const size_t end = whole.find("{\"step\":3");
  const std::string garbage = std::string("garbage\n\0\0\n{\"step\":\"no\"}\n", 25);
  TestDirectory::Write(directory.File("metrics.jsonl"), whole.substr(0, end) + garbage + whole.substr(end));
  // Before a line that stays, it is not met.
  EXPECT_EQ(Open(directory, 3)->TakeRemark(), "");
  const auto metrics = Open(directory, 2);
  const std::string remark = metrics->TakeRemark();
  EXPECT_THAT(remark, testing::HasSubstr(directory.File("metrics.jsonl: lines that are no points (3)")));
  EXPECT_THAT(remark, testing::HasSubstr(directory.File("metrics.jsonl.damaged")));
  EXPECT_EQ(metrics->TakeRemark(), "");
  EXPECT_EQ(Lines(directory), whole.substr(0, end));
  EXPECT_EQ(TestDirectory::Read(directory.File("metrics.jsonl.damaged")), garbage + whole.substr(end));
  // What a loss of power leaves of a line.
  TestDirectory::Write(directory.File("metrics.jsonl"), whole.substr(0, end) + std::string(3, '\0'));
  EXPECT_NE(Open(directory, 2)->TakeRemark(), "");
  EXPECT_EQ(TestDirectory::Read(directory.File("metrics.jsonl.damaged")),
            garbage + whole.substr(end) + std::string(3, '\0'));
}

TEST(RunMetrics, FilesThatWereRemovedOrReplacedBeginAnew) {
  const TestDirectory directory;
  const auto metrics = Open(directory, 0);
  AddSteps(*metrics, 1, 2, 1);
  EXPECT_TRUE(metrics->Sync().ok());
  EXPECT_EQ(metrics->TakeRemark(), "");
  const std::string first = Lines(directory);
  TestDirectory::Write(directory.File("new"), "of an editor\n");
  std::filesystem::rename(directory.File("new"), directory.File("metrics.jsonl"));
  AddSteps(*metrics, 3, 3, 1);
  EXPECT_TRUE(metrics->Sync().ok());
  EXPECT_THAT(Lines(directory), testing::MatchesRegex("of an editor\n\\{\"step\":3[^\n]*\n"));
  EXPECT_THAT(metrics->TakeRemark(), testing::HasSubstr("metrics.jsonl was removed or replaced"));
  const std::string events =
      absl::StrCat(directory.File("tensorboard/"), TestDirectory::Names(directory.File("tensorboard")).at(0));
  std::filesystem::remove_all(directory.File("tensorboard"));
  // By the write of every two seconds as well.
  EXPECT_TRUE(metrics->Add({{"step", 4}, {"time", kTime + 2 * RunMetrics::kFlushSeconds}, {"loss", 1}}).ok());
  EXPECT_THAT(metrics->TakeRemark(), testing::HasSubstr("tensorboard was removed or replaced"));
  EXPECT_THAT(TestDirectory::Read(events), testing::HasSubstr("brain.Event:2"));
  EXPECT_EQ(metrics->TakeRemark(), "");
}

// The folder of a mount that is away is not written to; the files that are open are.
TEST(RunMetrics, NothingIsBegunInABareFolder) {
  const TestDirectory directory;
  const std::string dir = directory.File("run");
  std::filesystem::create_directory(dir);
  TestDirectory::Write(dir + "/job.json", "{}");
  auto metrics = RunMetrics::Open(dir, 0, kTime);
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  std::filesystem::rename(dir, directory.File("away"));
  std::filesystem::create_directory(dir);
  AddSteps(**metrics, 1, 1, 1);
  EXPECT_TRUE((*metrics)->Sync().ok());
  EXPECT_THAT(TestDirectory::Names(dir), testing::IsEmpty());
  EXPECT_NE(TestDirectory::Read(directory.File("away/metrics.jsonl")), "");
  EXPECT_EQ((*metrics)->TakeRemark(), "");
}

TEST(RunMetrics, EventFilesAreInTheOrderOfTheAttempts) {
  const TestDirectory directory;
  for (int attempt = 0; attempt < 3; ++attempt) Open(directory, attempt);
  Open(directory, 3, /*second=*/50);
  EXPECT_THAT(TestDirectory::Names(directory.File("tensorboard")),
              testing::ElementsAre("events.out.tfevents.1700000000.tacc", "events.out.tfevents.1700000001.tacc",
                                   "events.out.tfevents.1700000002.tacc", "events.out.tfevents.1700000050.tacc"));
}

TEST(RunMetrics, NamesTheFileThatCannotBeWritten) {
  const TestDirectory directory;
  const auto metrics = RunMetrics::Open(directory.File("none"), 0, kTime);
  EXPECT_TRUE(absl::IsNotFound(metrics.status())) << metrics.status();
  EXPECT_NE(metrics.status().message().find("none/metrics.jsonl"), std::string::npos) << metrics.status();
}

TEST(RunMetrics, WhoMayNotWriteWritesNothing) {
  const TestDirectory directory;
  TestDirectory::Write(directory.File("metrics.jsonl"), "{\"step\":1,\"loss\":2}\n{\"step\":2,\"loss\":2}\n");
  const std::string before = Lines(directory);
  bool may = false;
  const auto may_write = [&] { return may ? absl::OkStatus() : absl::FailedPreconditionError("another writes there"); };
  EXPECT_EQ(RunMetrics::Open(directory.path(), 1, kTime, may_write).status().message(), "another writes there");
  EXPECT_EQ(Lines(directory), before);
  may = true;
  const auto metrics = *RunMetrics::Open(directory.path(), 2, kTime, may_write);
  may = false;
  EXPECT_EQ(metrics->Add({{"step", 3}, {"time", kTime}, {"loss", 1}}).message(), "another writes there");
  EXPECT_EQ(metrics->Sync().message(), "another writes there");
  EXPECT_EQ(Lines(directory), before);
  may = true;
  EXPECT_TRUE(metrics->Sync().ok());
  EXPECT_EQ(Lines(directory), before + "{\"step\":3,\"time\":1700000000.0,\"loss\":1}\n");
}

}  // namespace
}  // namespace tacc::worker
