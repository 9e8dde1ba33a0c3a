#include "worker/checkpoint/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <numeric>

#include "machine/testing/test_directory.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/testing/verify_checkpoint.h"
#include "worker/checkpoint/writer.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 5;
constexpr int64_t kColumns = 4;

// Writes a [5, 4] tensor of 0..19 cut in four unequal rectangles, and a scalar on the last rank.
void WriteExample(const std::string& directory, int64_t step, int64_t attempt) {
  std::vector<float> whole(kRows * kColumns);
  std::iota(whole.begin(), whole.end(), 0);
  const float scalar = 9;
  const std::vector<Rectangle> cuts = {{{0, 0}, {3, 1}}, {{0, 1}, {3, 3}}, {{3, 0}, {2, 2}}, {{3, 2}, {2, 2}}};
  for (size_t rank = 0; rank < cuts.size(); ++rank) {
    std::vector<float> part(*NumElements(cuts[rank].shape));
    CopyIntersection(reinterpret_cast<const char*>(whole.data()), WholeTensor({kRows, kColumns}),
                     reinterpret_cast<char*>(part.data()), cuts[rank], sizeof(float));
    std::vector<ShardTensor> tensors = {
        {"weights/w", "F32", {kRows, kColumns}, {kRows, kColumns}, cuts[rank], part.data()}};
    if (rank + 1 == cuts.size()) tensors.push_back({"weights/s", "F32", {}, {}, {}, &scalar});
    ASSERT_TRUE(WriteShard(directory, {step, attempt}, static_cast<int>(rank), tensors, nullptr).ok());
  }
  Manifest manifest;
  manifest.step = step;
  manifest.attempt = attempt;
  manifest.layout = {{"fsdp", 4}};
  ASSERT_TRUE(CommitCheckpoint(directory, manifest, static_cast<int>(cuts.size()), nullptr).ok());
}

TEST(ReaderTest, ReadsEveryRectangleFromAnyCut) {
  TestDirectory directory;
  WriteExample(directory.path(), 1, 1);
  const auto checkpoint = Checkpoint::Open(directory.File("step-00000001.a1"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t column = 0; column < kColumns; ++column) {
      for (int64_t rows = 0; rows <= kRows - row; ++rows) {
        for (int64_t columns = 0; columns <= kColumns - column; ++columns) {
          std::vector<float> out(rows * columns, -1);
          ASSERT_TRUE((*checkpoint)->Read("weights/w", {{row, column}, {rows, columns}}, out.data()).ok());
          for (int64_t i = 0; i < rows * columns; ++i) {
            ASSERT_EQ(out[i], (row + i / columns) * kColumns + column + i % columns);
          }
        }
      }
    }
  }
  float scalar = 0;
  ASSERT_TRUE((*checkpoint)->Read("weights/s", {}, &scalar).ok());
  EXPECT_EQ(scalar, 9);
  EXPECT_EQ((*checkpoint)->Read("weights/v", {}, &scalar).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ((*checkpoint)->Read("weights/w", {{0, 0}, {6, 1}}, &scalar).code(), absl::StatusCode::kInvalidArgument);
}

// Cut at any byte or changed in any byte, every file's damage is refused with its name; one that is missing may come.
TEST(ReaderTest, EveryDamageIsRefusedWithTheFileNamed) {
  TestDirectory directory;
  WriteExample(directory.path(), 1, 1);
  const std::string path = directory.File("step-00000001.a1");
  ASSERT_TRUE(VerifyCheckpoint(path).ok());
  for (const std::string& name : TestDirectory::Names(path)) {
    const std::string file = path + "/" + name;
    const std::string whole = TestDirectory::Read(file);
    absl::StatusCode code = absl::StatusCode::kInvalidArgument;
    const auto expect_refused = [&](const std::string& how) {
      const absl::Status status = VerifyCheckpoint(path);
      EXPECT_EQ(status.code(), code) << how;
      EXPECT_THAT(std::string(status.message()), HasSubstr(name == kManifestFileName ? path : file)) << how;
    };
    for (size_t size = 0; size < whole.size(); ++size) {
      TestDirectory::Write(file, whole.substr(0, size));
      expect_refused("cut at " + std::to_string(size));
    }
    TestDirectory::Write(file, whole + "x");
    expect_refused("longer");
    for (size_t at = 0; at < whole.size(); ++at) {
      std::string changed = whole;
      changed[at] ^= 1;
      TestDirectory::Write(file, changed);
      expect_refused("changed at " + std::to_string(at));
    }
    ASSERT_TRUE(RemoveTree(file).ok());
    code = absl::StatusCode::kNotFound;
    expect_refused("removed");
    TestDirectory::Write(file, whole);
  }
  EXPECT_TRUE(VerifyCheckpoint(path).ok());
}

TEST(ReaderTest, AFileThatIsCutUnderTheReaderIsAnError) {
  TestDirectory directory;
  WriteExample(directory.path(), 1, 1);
  const std::string path = directory.File("step-00000001.a1"), file = path + "/rank-00001.safetensors";
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok());
  const std::string whole = TestDirectory::Read(file);
  std::vector<float> out(kRows * kColumns);
  for (const size_t size : {size_t{0}, whole.size() - 1}) {
    ASSERT_EQ(truncate(file.c_str(), size), 0);
    const absl::Status status = (*checkpoint)->Read("weights/w", {{0, 0}, {kRows, kColumns}}, out.data());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(file + ": ends at byte "));
  }
}

TEST(ReaderTest, AManifestOfAnotherCheckpointIsRefused) {
  TestDirectory directory;
  WriteExample(directory.path(), 1, 1);
  ASSERT_EQ(rename(directory.File("step-00000001.a1").c_str(), directory.File("step-00000002.a1").c_str()), 0);
  const auto opened = Checkpoint::Open(directory.File("step-00000002.a1"));
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr("its manifest is of step 1 and attempt 1"));
}

TEST(ReaderTest, VerifyingIsSharedByStride) {
  TestDirectory directory;
  WriteExample(directory.path(), 1, 1);
  const std::string path = directory.File("step-00000001.a1");
  const std::string file = path + "/rank-00002.safetensors";
  std::string content = TestDirectory::Read(file);
  content.back() ^= 1;
  TestDirectory::Write(file, content);
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_FALSE((*checkpoint)->VerifyData(0, 2).ok());
  EXPECT_TRUE((*checkpoint)->VerifyData(1, 2).ok());
}

TEST(ReaderTest, ListsNewestFirstWithDamage) {
  TestDirectory directory;
  WriteExample(directory.path(), 1, 1);
  WriteExample(directory.path(), 10, 1);
  WriteExample(directory.path(), 10, 2);
  ASSERT_TRUE(MakeDirectory(directory.File(".tmp-step-00000011.a2")).ok());
  ASSERT_TRUE(MakeDirectory(directory.File("hf")).ok());
  const std::string damaged = directory.File("step-00000010.a1/rank-00003.safetensors");
  std::string content = TestDirectory::Read(damaged);
  content.pop_back();
  TestDirectory::Write(damaged, content);
  const auto listed = ListCheckpoints(directory.path());
  ASSERT_TRUE(listed.ok());
  ASSERT_EQ(listed->size(), 3u);
  EXPECT_EQ((*listed)[0].name, "step-00000010.a2");
  EXPECT_TRUE((*listed)[0].status.ok());
  EXPECT_EQ((*listed)[1].name, "step-00000010.a1");
  EXPECT_THAT(std::string((*listed)[1].status.message()), HasSubstr(damaged));
  EXPECT_EQ((*listed)[2].name, "step-00000001.a1");
  EXPECT_EQ(ListCheckpoints(directory.File("missing")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Checkpoint::Open(directory.File("missing")).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tacc::worker
