#include "worker/run_folder/append_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "machine/testing/test_directory.h"

namespace tacc::worker {
namespace {

TEST(AppendFile, GoesOnAtTheEnd) {
  const TestDirectory directory;
  const std::string path = directory.File("a");
  TestDirectory::Write(path, "one\n");
  auto file = AppendFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  (*file)->Append("two\n");
  EXPECT_EQ(TestDirectory::Read(path), "one\n");
  EXPECT_TRUE((*file)->Flush().ok());
  EXPECT_EQ(TestDirectory::Read(path), "one\ntwo\n");
  (*file)->Append("three\n");
  EXPECT_TRUE((*file)->Sync().ok());
  EXPECT_EQ(TestDirectory::Read(path), "one\ntwo\nthree\n");
}

TEST(AppendFile, LosesNothingToADiskThatIsFullForAWhile) {
  const TestDirectory directory;
  const std::string path = directory.File("a");
  auto file = AppendFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit full = {5, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  (*file)->Append("one\ntwo\n");
  const absl::Status status = (*file)->Flush();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(status.message().find(path), std::string::npos) << status;
  EXPECT_EQ(TestDirectory::Read(path), "one\nt");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  (*file)->Append("three\n");
  EXPECT_TRUE((*file)->Flush().ok());
  EXPECT_EQ(TestDirectory::Read(path), "one\ntwo\nthree\n");
}

TEST(AppendFile, NamesTheFileThatCannotBeMade) {
  const TestDirectory directory;
  const auto file = AppendFile::Open(directory.File("no/such"));
  EXPECT_TRUE(absl::IsNotFound(file.status())) << file.status();
  EXPECT_NE(file.status().message().find("no/such"), std::string::npos);
}

}  // namespace
}  // namespace tacc::worker
