#include "coordinator/service/log_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "coordinator/core/membership.h"
#include "machine/testing/test_directory.h"

namespace tacc::coordinator {
namespace {

using ::testing::ElementsAre;

class LogFilesTest : public ::testing::Test {
 protected:
  static v1::RankLog Lines(const std::vector<std::string>& lines) {
    v1::RankLog log;
    log.set_time(1.5);
    for (const std::string& line : lines) log.add_lines(line);
    return log;
  }
  // All lines from `position` on; moves it to the end.
  static std::vector<std::string> Read(LogFiles* logs, int64_t* position) {
    std::vector<std::string> lines;
    while (true) {
      auto page = logs->Read("toy-1", *position);
      EXPECT_TRUE(page.ok());
      for (const v1::LogLine& line : page->lines) lines.push_back(line.text());
      if (page->next == *position) return lines;
      *position = page->next;
    }
  }

  TestDirectory directory_;
  const std::string dir_ = directory_.path();
};

TEST_F(LogFilesTest, GivesLinesBackAndGoesOn) {
  LogFiles logs(dir_, 1 << 20);
  int64_t position = 0;
  EXPECT_THAT(Read(&logs, &position), ElementsAre());
  ASSERT_TRUE(logs.Append(IdOf("toy-1", 2, 3), Lines({"one", "two\tof them"})).ok());
  auto page = logs.Read("toy-1", 0);
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->lines[0].attempt(), 2);
  EXPECT_EQ(page->lines[0].rank(), 3);
  EXPECT_EQ(page->lines[0].time(), 1.5);
  EXPECT_THAT(Read(&logs, &position), ElementsAre("one", "two\tof them"));
  ASSERT_TRUE(logs.Append(IdOf("toy-1", 2, 3), Lines({"three"})).ok());
  EXPECT_THAT(Read(&logs, &position), ElementsAre("three"));
  LogFiles again(dir_, 1 << 20);
  position = 0;
  EXPECT_THAT(Read(&again, &position), ElementsAre("one", "two\tof them", "three"));
}

TEST_F(LogFilesTest, DropsTheOldestFile) {
  LogFiles logs(dir_, 1000);
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(logs.Append(IdOf("toy-1", 1, 0), Lines({absl::StrCat("line ", i)})).ok());
  int64_t position = 0;
  const std::vector<std::string> lines = Read(&logs, &position);
  EXPECT_LT(lines.size(), 150u);
  EXPECT_GT(lines.size(), 40u);
  EXPECT_EQ(lines.back(), "line 499");
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i], absl::StrCat("line ", 500 - lines.size() + i));
}

TEST_F(LogFilesTest, APositionHoldsForALaterProcess) {
  int64_t position = 0;
  std::vector<std::string> lines, wanted;
  for (int i = 0; i < 200; ++i) {
    LogFiles logs(dir_, 1000);
    ASSERT_TRUE(logs.Append(IdOf("toy-1", 1, 0), Lines({absl::StrCat("line ", i)})).ok());
    wanted.push_back(absl::StrCat("line ", i));
    for (const std::string& line : Read(&logs, &position)) lines.push_back(line);
  }
  EXPECT_EQ(lines, wanted);
  EXPECT_GT(position, 3000);
  // A log that is another one since.
  LogFiles(dir_, 1000).Forget("toy-1");
  LogFiles logs(dir_, 1000);
  EXPECT_THAT(Read(&logs, &position), ElementsAre());
  ASSERT_TRUE(logs.Append(IdOf("toy-1", 1, 0), Lines({"anew"})).ok());
  EXPECT_THAT(Read(&logs, &position), ElementsAre("anew"));
}

TEST_F(LogFilesTest, KeepsBytesThatAreNoTextOutOfTheMessages) {
  LogFiles logs(dir_, 1 << 20);
  ASSERT_TRUE(logs.Append(IdOf("toy-1", 1, 0), Lines({"a\nb", std::string("nul\0byte", 8), "bad \xff\xc3 good \xc3\xa4",
                                                      std::string(9000, 'x')}))
                  .ok());
  int64_t position = 0;
  const std::vector<std::string> lines = Read(&logs, &position);
  EXPECT_THAT(lines, ElementsAre("a b", "nul byte", "bad ?? good \xc3\xa4", std::string(4096, 'x')));
}

TEST_F(LogFilesTest, ATornLineIsNoEndlessLoop) {
  std::filesystem::create_directories(dir_ + "/toy-1");
  std::ofstream(dir_ + "/toy-1/ranks.log") << "1.0\t1\t0\twhole\n1.0\t1\t0\tto";
  LogFiles logs(dir_, 1 << 20);
  int64_t position = 0;
  EXPECT_THAT(Read(&logs, &position), ElementsAre("whole"));
}

}  // namespace
}  // namespace tacc::coordinator
