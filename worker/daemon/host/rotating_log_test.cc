#include "worker/daemon/host/rotating_log.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "machine/testing/test_directory.h"

namespace tacc::worker {
namespace {

TEST(RotatingLogTest, KeepsTheLastLinesWithinTheBound) {
  TestDirectory directory;
  const std::string path = directory.File("rank.log");
  for (int i = 0; i < 100; ++i) {
    auto log = RotatingLog::Open(path, 100);  // Opened anew: the size on disk counts.
    ASSERT_TRUE(log.ok());
    (*log)->Line("line " + std::to_string(i));
  }
  const std::string content = TestDirectory::Read(path + ".1") + TestDirectory::Read(path);
  EXPECT_EQ(TestDirectory::Names(directory.path()).size(), 2u);
  EXPECT_LE(content.size(), 220u);
  EXPECT_EQ(content.substr(content.size() - 16), "line 98\nline 99\n");
}

TEST(RotatingLogTest, AFullDiskIsSaidAndCostsNothingOnceThereIsRoom) {
  TestDirectory directory;
  const std::string path = directory.File("rank.log");
  auto log = RotatingLog::Open(path, 100);
  ASSERT_TRUE(log.ok());
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit full = {5, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  std::string text = "one\ntwo\n";
  const absl::Status status = (*log)->Append(&text);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(text, "wo\n");
  EXPECT_TRUE((*log)->Append(&text).ok());
  EXPECT_EQ(TestDirectory::Read(path), "one\ntwo\n");
}

TEST(RotatingLogTest, AMissingFolderIsNamed) { EXPECT_FALSE(RotatingLog::Open("/nonexistent/rank.log", 100).ok()); }

}  // namespace
}  // namespace tacc::worker
