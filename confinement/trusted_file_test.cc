#include "confinement/trusted_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "machine/testing/test_directory.h"

namespace tacc {
namespace {

using ::testing::HasSubstr;

class TrustedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    mkdir(directory_.File("folder").c_str(), 0755);
    TestDirectory::Write(file_, "code");
    chmod(file_.c_str(), 0644);
  }
  static std::string Error(const std::string& path) {
    const absl::StatusOr<std::string> found = TrustedFile(path);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument) << path;
    return std::string(found.status().message());
  }

  TestDirectory directory_;
  const std::string folder_ = directory_.File("folder"), file_ = absl::StrCat(folder_, "/ops.so");
};

TEST_F(TrustedFileTest, IsAFileOfThisUser) {
  const absl::StatusOr<std::string> found = TrustedFile(file_);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, std::filesystem::canonical(file_).string());
  std::filesystem::create_symlink("folder/ops.so", directory_.File("link.so"));
  EXPECT_EQ(*TrustedFile(directory_.File("link.so")), *found);
}

TEST_F(TrustedFileTest, SaysWhyAnotherIsNone) {
  EXPECT_THAT(Error("ops.so"), HasSubstr("\"ops.so\": not an absolute path"));
  EXPECT_THAT(Error(""), HasSubstr("not an absolute path"));
  EXPECT_THAT(Error("/no/such/ops.so"), HasSubstr("\"/no/such/ops.so\": cannot be found: No such file or directory"));
  EXPECT_THAT(Error(folder_), HasSubstr("not a regular file"));
  EXPECT_THAT(Error("/dev/null"), HasSubstr("not a regular file"));
  EXPECT_THAT(Error("/tmp/a\nb.so"), HasSubstr("control character"));
}

TEST_F(TrustedFileTest, NobodyElseCanWriteIt) {
  for (const mode_t mode : {0664, 0646}) {
    chmod(file_.c_str(), mode);
    EXPECT_THAT(Error(file_), HasSubstr("its group or everybody may write there; run chmod go-w "));
  }
  chmod(file_.c_str(), 0644);
  chmod(folder_.c_str(), 0775);
  const std::string error = Error(file_);
  EXPECT_THAT(error, HasSubstr("folder\": its group or everybody may write there"));
  EXPECT_THAT(error, HasSubstr("so that others than root and this user choose what code runs"));
  chmod(file_.c_str(), 0664);
  EXPECT_THAT(Error(file_), HasSubstr("run chmod go-w " + std::filesystem::canonical(folder_).string() + " " +
                                      std::filesystem::canonical(file_).string() + ","))
      << "all at once";
  chmod(file_.c_str(), 0644);
  // As in /tmp: nobody takes away the name of another's file.
  chmod(folder_.c_str(), 01777);
  EXPECT_TRUE(TrustedFile(file_).ok());
  // A link to it from such a place is none of that place's files.
  std::filesystem::create_symlink(file_, directory_.File("link.so"));
  chmod(folder_.c_str(), 0777);
  EXPECT_THAT(Error(directory_.File("link.so")), HasSubstr("folder\": its group or everybody may write there"));
}

TEST_F(TrustedFileTest, NobodyElseOwnsIt) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  ASSERT_EQ(chown(file_.c_str(), 1234, 0), 0);
  EXPECT_THAT(Error(file_), HasSubstr("ops.so\": belongs to user 1234; give it to root or to user 0"));
  ASSERT_EQ(chown(file_.c_str(), 0, 1234), 0);
  EXPECT_TRUE(TrustedFile(file_).ok());
  ASSERT_EQ(chown(folder_.c_str(), 1234, 0), 0);
  EXPECT_THAT(Error(file_), HasSubstr("folder\": belongs to user 1234"));
}

}  // namespace
}  // namespace tacc
