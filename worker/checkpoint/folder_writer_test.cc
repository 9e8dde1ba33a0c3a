#include "worker/checkpoint/folder_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "machine/testing/test_directory.h"

namespace tacc::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(FolderWriterTest, IsReadAsItWasWritten) {
  TestDirectory directory;
  FolderWriter writer;
  writer.service = "1f6b";
  writer.job = "tiny-1";
  writer.attempt = 3;
  writer.last_attempt = 2;
  writer.since = 1.75e9;
  writer.has_ended = true;
  writer.locked_boot = "boot";
  ASSERT_TRUE(WriteFolderWriter(directory.path(), writer).ok());
  const auto read = ReadFolderWriter(directory.path());
  ASSERT_TRUE(read.ok() && read->has_value());
  EXPECT_EQ((*read)->service, "1f6b");
  EXPECT_EQ((*read)->job, "tiny-1");
  EXPECT_EQ((*read)->attempt, 3);
  EXPECT_EQ((*read)->last_attempt, 2);
  EXPECT_EQ((*read)->pid, getpid());
  EXPECT_EQ((*read)->since, 1.75e9);
  EXPECT_TRUE((*read)->has_ended);
  EXPECT_EQ((*read)->locked_boot, "boot");
  const std::string where =
      absl::StrCat(" (attempt 3, pid ", getpid(), " on ", (*read)->host, ", since 2025-06-15 15:06:40 UTC)");
  EXPECT_EQ(FolderUser("/runs/a", **read, "2a7c"),
            absl::StrCat("checkpoint.dir /runs/a is used by job tiny-1 of another service", where));
  EXPECT_EQ(FolderUser("/runs/a", **read, "1f6b"), absl::StrCat("checkpoint.dir /runs/a is used by job tiny-1", where));
  EXPECT_THAT(TestDirectory::Names(directory.path()), ElementsAre("writer.json"));
  struct stat info;
  ASSERT_EQ(stat(directory.File("writer.json").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0644u);
}

TEST(FolderWriterTest, IsReadByWhomTheUmaskLetsIn) {
  TestDirectory directory;
  FolderWriter writer;
  writer.service = "a";
  const mode_t old_mask = umask(077);
  EXPECT_TRUE(WriteFolderWriter(directory.path(), writer).ok());
  umask(old_mask);
  struct stat info;
  ASSERT_EQ(stat(directory.File("writer.json").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(FolderWriterTest, EachWriteIsAnotherText) {
  TestDirectory directory;
  FolderWriter writer;
  writer.service = "a";
  ASSERT_TRUE(WriteFolderWriter(directory.path(), writer).ok());
  const std::string before = TestDirectory::Read(directory.File("writer.json"));
  ASSERT_TRUE(WriteFolderWriter(directory.path(), writer).ok());
  EXPECT_NE(TestDirectory::Read(directory.File("writer.json")), before);
}

TEST(FolderWriterTest, NobodyWrites) {
  TestDirectory directory;
  for (const char* text : {"", "{", "[]", "{}", R"({"service":5,"job":"a"})", R"({"service":"a","attempt":2147483647})",
                           R"({"service":"a","attempt":18446744073709551615})", R"({"service":"a","last_attempt":-1})",
                           R"({"service":"a","attempt":1e300})", R"({"service":"a","pid":"7"})"}) {
    TestDirectory::Write(directory.File("writer.json"), text);
    const auto read = ReadFolderWriter(directory.path());
    ASSERT_TRUE(read.ok()) << text;
    EXPECT_FALSE(read->has_value()) << text;
  }
  const auto missing = ReadFolderWriter(directory.File("missing"));
  EXPECT_TRUE(missing.ok() && !missing->has_value());
  // Not to be read is not the same as nobody.
  ASSERT_EQ(unlink(directory.File("writer.json").c_str()), 0);
  ASSERT_EQ(mkdir(directory.File("writer.json").c_str(), 0777), 0);
  EXPECT_TRUE(absl::IsUnavailable(ReadFolderWriter(directory.path()).status()));
  FolderWriter writer;
  writer.service = "a";
  EXPECT_THAT(std::string(WriteFolderWriter(directory.path(), writer).message()),
              HasSubstr("writer.json: cannot be written: "));
  EXPECT_THAT(TestDirectory::Names(directory.path()), ElementsAre("writer.json"));
}

}  // namespace
}  // namespace tacc::worker
