#include "content_store/content_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <limits>

#include "machine/testing/test_directory.h"

namespace tacc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ListedFile Listed(const std::string& name, const std::string& content) {
  worker::Sha256 sha256;
  sha256.Update(content.data(), content.size());
  return {name, sha256.HexDigest(), static_cast<int64_t>(content.size())};
}

// What a folder of one small file takes: a block, and two for its list and the link.
constexpr int64_t kFolderSpace = 3 * 4096;

class ContentStoreTest : public ::testing::Test {
 protected:
  void SetUp() override { Open({}); }
  void Open(const ContentStore::Limits& limits) {
    auto store = ContentStore::Open(directory_.File("store"), limits);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  absl::Status Put(const ListedFile& file, const std::string& content, int64_t offset = 0) {
    auto writer = store_->Write(file.sha256, file.num_bytes, offset);
    if (!writer.ok()) return writer.status();
    if (absl::Status status = (*writer)->Append(content.substr(static_cast<size_t>(offset))); !status.ok())
      return status;
    return (*writer)->Finish();
  }
  // A folder with one file; its id.
  std::string PutFolder(const std::string& content) {
    const FileList files = {Listed("f", content)};
    EXPECT_TRUE(store_->Prepare(files, {}).ok());
    EXPECT_TRUE(Put(files[0], content).ok());
    const auto made = store_->Prepare(files, {});
    EXPECT_TRUE(made.ok() && made->is_whole) << made.status();
    return made.ok() ? made->id : "";
  }

  TestDirectory directory_;
  std::unique_ptr<ContentStore> store_;
};

TEST_F(ContentStoreTest, AFolderIsThereWhenItsFilesAreAndAfterARestart) {
  const FileList files = {Listed("model.graph", "graph"), Listed("a copy", "graph"), Listed("empty", "")};
  auto contents = store_->Prepare(files, {});
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_FALSE(contents->is_whole);
  EXPECT_THAT(contents->num_bytes, ElementsAre(0, 0, 0));
  EXPECT_FALSE(store_->List(contents->id).ok());
  ASSERT_TRUE(Put(files[0], "graph").ok());
  EXPECT_EQ(Put(files[0], "graph").code(), absl::StatusCode::kAlreadyExists);
  contents = store_->Prepare(files, {});
  ASSERT_TRUE(contents.ok() && contents->is_whole) << contents.status();
  EXPECT_EQ(contents->id, FolderId({files[2], files[0], files[1]})) << "the order does not count";
  Open({});
  EXPECT_EQ(TestDirectory::Read(store_->FolderPath(contents->id) + "/a copy"), "graph");
  EXPECT_EQ(store_->List(contents->id)->size(), 3u);
  struct stat info;
  ASSERT_EQ(stat((store_->FolderPath(contents->id) + "/model.graph").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(store_->FolderPath(contents->id).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(ContentStoreTest, AFileThatBrokeOffGoesOnWhereItWas) {
  const FileList files = {Listed("weights", "0123456789")};
  {
    auto writer = store_->Write(files[0].sha256, 10, 0);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append("0123").ok());
    EXPECT_EQ(store_->Write(files[0].sha256, 10, 0).status().code(), absl::StatusCode::kUnavailable);
  }
  Open({});
  EXPECT_THAT(store_->Prepare(files, {})->num_bytes, ElementsAre(4));
  EXPECT_EQ(Put(files[0], "0123456789", 5).code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(Put(files[0], "0123456789", 4).ok());
  EXPECT_TRUE(store_->Prepare(files, {})->is_whole);
}

TEST_F(ContentStoreTest, WhatIsNotWhatWasSaidIsNotKept) {
  const ListedFile file = Listed("weights", "0123456789");
  const absl::Status other = Put(file, "0123456780");
  EXPECT_EQ(other.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(other.message()), HasSubstr("it was changed on its way"));
  EXPECT_THAT(store_->Prepare({file}, {})->num_bytes, ElementsAre(0));
  EXPECT_EQ(Put(file, "0123").code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(store_->Prepare({file}, {})->num_bytes, ElementsAre(4)) << "its beginning stays";
  EXPECT_THAT(std::string(Put(file, "0123456789a").message()), HasSubstr("has 10 bytes; at byte 0 came 11 more"));
}

TEST_F(ContentStoreTest, RefusesListsThatAreNone) {
  const ListedFile file = Listed("a", "b");
  for (const std::string name : {"", "a/b", "..", ".hidden", "a\nb"})
    EXPECT_FALSE(store_->Prepare({{name, file.sha256, 1}}, {}).ok()) << name;
  EXPECT_THAT(std::string(store_->Prepare({file, file}, {}).status().message()), HasSubstr("a is there twice"));
  EXPECT_FALSE(store_->Prepare({{"a", "../../../etc/passwd", 1}}, {}).ok());
  EXPECT_FALSE(store_->Prepare({{"a", file.sha256, -1}}, {}).ok());
  EXPECT_FALSE(
      store_->Prepare({{"a", file.sha256, int64_t{1} << 62}, {"b", Listed("b", "c").sha256, int64_t{1} << 62}}, {})
          .ok());
  EXPECT_FALSE(store_->Write(file.sha256, std::numeric_limits<int64_t>::max(), 0).ok());
  EXPECT_FALSE(store_->Prepare({}, {}).ok());
  EXPECT_FALSE(store_->List("../lists").ok());
  EXPECT_FALSE(ParseFileList("abc\n").ok());
  ASSERT_TRUE(Put(file, "b").ok());
  EXPECT_THAT(std::string(store_->Prepare({{"a", file.sha256, 2}}, {}).status().message()), HasSubstr("has 1"));
}

TEST_F(ContentStoreTest, WhatWasUsedLongestAgoMakesRoomButNothingInUse) {
  Open({.max_bytes = 3 * kFolderSpace, .keep_seconds = 0});
  const std::string first = PutFolder(std::string(10, 'a')), second = PutFolder(std::string(10, 'b'));
  const std::string third = PutFolder(std::string(10, 'c'));
  ASSERT_TRUE(store_->List(first).ok());  // A use.
  const auto held = store_->Hold(third);
  ASSERT_TRUE(held.ok()) << held.status();
  const std::string fourth = PutFolder(std::string(10, 'd'));
  EXPECT_FALSE(store_->List(second).ok());
  EXPECT_TRUE(store_->List(first).ok());
  const absl::Status full = store_->Prepare({Listed("f", std::string(5000, 'e'))}, {fourth}).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("no room in "));
  EXPECT_FALSE(store_->List(first).ok()) << "all that may go has gone";
  EXPECT_TRUE(store_->List(third).ok());
  EXPECT_TRUE(store_->List(fourth).ok());
}

TEST_F(ContentStoreTest, WhatWasUsedJustNowStays) {
  Open({.max_bytes = kFolderSpace * 3 / 2});
  const std::string first = PutFolder(std::string(10, 'a'));
  EXPECT_EQ(store_->Prepare({Listed("f", std::string(10, 'b'))}, {}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(store_->List(first).ok());
}

TEST_F(ContentStoreTest, WhoeverAsksForNoRoomHasNoMoreThanThereIs) {
  Open({.max_bytes = 4 * 4096, .keep_seconds = 0});
  const ListedFile big = Listed("f", std::string(5 * 4096, 'a'));
  EXPECT_EQ(store_->Write(big.sha256, big.num_bytes, 0).status().code(), absl::StatusCode::kResourceExhausted);
  // Nor has one of several that write at the same time what another has to come.
  const ListedFile first = Listed("f", std::string(3 * 4096, 'b')), second = Listed("f", std::string(2 * 4096, 'c'));
  {
    const auto writer = store_->Write(first.sha256, first.num_bytes, 0);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append(std::string(100, 'b')).ok());
    const absl::Status full = store_->Write(second.sha256, second.num_bytes, 0).status();
    EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(full.message()), HasSubstr("no room in "));
    EXPECT_FALSE(store_->Prepare({second}, {}).ok());
  }
  // It was given up, and has one block.
  const auto writer = store_->Write(second.sha256, second.num_bytes, 0);
  EXPECT_TRUE(writer.ok()) << writer.status();
}

TEST_F(ContentStoreTest, NothingIsLeftOfAFileOfWhichNothingCame) {
  const ListedFile file = Listed("f", "0123456789");
  EXPECT_TRUE(store_->Write(file.sha256, file.num_bytes, 0).ok());
  EXPECT_THAT(*worker::ListDirectory(directory_.File("store/partial")), ElementsAre());
}

TEST_F(ContentStoreTest, FoldersOfOneFileTakeRoomToo) {
  Open({.max_bytes = 4096 + 3 * 2 * 4096, .keep_seconds = 0});
  const ListedFile file = Listed("f", "content");
  ASSERT_TRUE(Put(file, "content").ok());
  for (const char* name : {"a", "b", "c"}) EXPECT_TRUE(store_->Prepare({{name, file.sha256, file.num_bytes}}, {}).ok());
  const std::string oldest = FolderId({{"a", file.sha256, file.num_bytes}});
  EXPECT_TRUE(store_->Prepare({{"d", file.sha256, file.num_bytes}}, {})->is_whole);
  EXPECT_FALSE(store_->List(oldest).ok()) << "it has made room";
  EXPECT_EQ(worker::ListDirectory(directory_.File("store/folders"))->size(), 3u);
}

TEST_F(ContentStoreTest, AFolderWhoseRemovalWasCutShortGoesWithTheNextOne) {
  Open({.max_bytes = kFolderSpace, .keep_seconds = 0});
  const std::string first = PutFolder("a");
  ASSERT_EQ(unlink((directory_.File("store/lists/") + first).c_str()), 0);
  const std::string second = PutFolder("b");
  EXPECT_FALSE(std::filesystem::exists(store_->FolderPath(first)));
  EXPECT_THAT(*worker::ListDirectory(directory_.File("store/files")), ElementsAre(Listed("f", "b").sha256));
}

}  // namespace
}  // namespace tacc
