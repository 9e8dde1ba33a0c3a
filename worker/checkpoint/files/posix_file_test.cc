#include "worker/checkpoint/files/posix_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "machine/testing/test_directory.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;

// In a folder where others write too: what stands where a file is to be is replaced, not written through.
class LinkTest : public ::testing::Test {
 protected:
  LinkTest() { TestDirectory::Write(directory_.File("victim"), "theirs"); }
  std::string Path(const std::string& name) const { return directory_.File(name); }
  std::string Victim() const { return TestDirectory::Read(Path("victim")); }
  TestDirectory directory_;
};

TEST_F(LinkTest, ANewFileReplacesALink) {
  std::filesystem::create_symlink(Path("victim"), Path("symbolic"));
  std::filesystem::create_symlink(Path("nowhere"), Path("dangling"));
  std::filesystem::create_hard_link(Path("victim"), Path("hard"));
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0666), 0);
  TestDirectory::Write(Path("file"), "a longer text that was here before");
  for (const char* name : {"symbolic", "dangling", "hard", "pipe", "file"}) {
    const absl::Status status = WriteSmallFile(Path(name), "new");
    EXPECT_TRUE(status.ok()) << name << ": " << status;
    EXPECT_EQ(TestDirectory::Read(Path(name)), "new") << name;
    EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(Path(name)))) << name;
  }
  EXPECT_EQ(Victim(), "theirs");
  EXPECT_FALSE(std::filesystem::exists(Path("nowhere")));
}

TEST_F(LinkTest, NothingIsAppendedThroughALinkOrAPipe) {
  std::filesystem::create_symlink(Path("victim"), Path("symbolic"));
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0666), 0);
  for (const char* name : {"symbolic", "pipe"}) {
    const absl::StatusOr<int> fd = OpenToWrite(Path(name), O_APPEND, 0666);
    EXPECT_TRUE(absl::IsInvalidArgument(fd.status())) << fd.status();
    EXPECT_THAT(std::string(fd.status().message()), HasSubstr(Path(name) + ": is a "));
  }
  const absl::StatusOr<int> fd = OpenToWrite(Path("victim"), O_APPEND, 0666);
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_EQ(write(*fd, "!", 1), 1);
  close(*fd);
  EXPECT_EQ(Victim(), "theirs!");
}

TEST_F(LinkTest, APipeOrADeviceIsNotReadAsAFile) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0666), 0);  // Which nobody writes.
  std::filesystem::create_symlink("/dev/null", Path("device"));
  for (const char* name : {"pipe", "device"}) {
    const absl::Status status = ReadSmallFile(Path(name), 100).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(status.message(), Path(name) + ": not a regular file");
  }
  EXPECT_EQ(*ReadSmallFile(Path("victim"), 100), "theirs");
  EXPECT_EQ(*ReadSmallFile(Path("device"), 100, Pipes::kRead), "");
}

TEST_F(LinkTest, AFolderIsNoLinkToOne) {
  std::filesystem::create_directory(Path("folder"));
  std::filesystem::create_directory_symlink(Path("folder"), Path("symbolic"));
  EXPECT_TRUE(MakeDirectory(Path("folder")).ok());
  EXPECT_THAT(std::string(MakeDirectory(Path("symbolic")).message()), HasSubstr("symbolic link"));
  EXPECT_THAT(std::string(MakeDirectory(Path("victim")).message()), HasSubstr("a file"));
}

}  // namespace
}  // namespace tacc::worker
