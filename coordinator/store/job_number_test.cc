#include "coordinator/store/job_number.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "machine/testing/test_directory.h"

namespace tacc::coordinator {
namespace {

using ::testing::HasSubstr;

TEST(JobNumberFileTest, IsNeverLowered) {
  const TestDirectory dir;
  const std::string path = dir.path() + "/cache/tacc/job-number";
  const auto number = [&path] {
    const auto file = JobNumberFile::Open(path);
    EXPECT_TRUE(file.ok()) << file.status();
    return (*file)->number();
  };
  EXPECT_EQ(number(), 0);
  const auto first = JobNumberFile::Open(path), second = JobNumberFile::Open(path);
  EXPECT_TRUE((*first)->Raise(3).ok());
  EXPECT_EQ(number(), 3);
  EXPECT_TRUE((*second)->Raise(7).ok());
  EXPECT_TRUE((*first)->Raise(4).ok());
  EXPECT_EQ(number(), 7);
  int num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path() + "/cache/tacc")) num_files += entry.exists();
  EXPECT_EQ(num_files, 1);
}

TEST(JobNumberFileTest, SaysWhatIsWrong) {
  const TestDirectory dir;
  const std::string path = dir.path() + "/job-number";
  for (const char* content : {"", "many\n", "-1\n"}) {
    std::ofstream(path) << content;
    const auto file = JobNumberFile::Open(path);
    EXPECT_EQ(file.status().code(), absl::StatusCode::kFailedPrecondition) << content;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(path + ": damaged"));
  }
  std::filesystem::remove(path);
  const auto file = JobNumberFile::Open(path);
  std::filesystem::create_directory(path);
  const absl::Status status = (*file)->Raise(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path + ": cannot be written: Is a directory"));
}

}  // namespace
}  // namespace tacc::coordinator
