#include "worker/checkpoint/tensors/model_fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "machine/testing/test_directory.h"
#include "worker/checkpoint/tensors/safetensors.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

using Tensors = std::vector<std::pair<SafetensorsWriter::Tensor, std::string>>;

void WriteTensors(const std::string& path, const Tensors& tensors) {
  std::vector<SafetensorsWriter::Tensor> declared;
  for (const auto& [tensor, bytes] : tensors) declared.push_back(tensor);
  auto writer = SafetensorsWriter::Create(path, declared, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const auto& [tensor, bytes] : tensors) ASSERT_TRUE((*writer)->Append(bytes.data(), bytes.size()).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
}

std::string FingerprintOf(const Tensors& tensors, int64_t budget_bytes = kFingerprintBytes) {
  TestDirectory directory;
  WriteTensors(directory.File("model.safetensors"), tensors);
  const auto fingerprint = ModelFingerprint(directory.path(), budget_bytes);
  EXPECT_TRUE(fingerprint.ok()) << fingerprint.status();
  return *fingerprint;
}

const Tensors kModel = {{{"a", "F32", {2}}, "abcdefgh"}, {{"b", "BF16", {2, 2}}, "ijklmnop"}};

TEST(ModelFingerprintTest, IsOfTheTensorsAndNotOfTheFiles) {
  const std::string one = FingerprintOf(kModel);
  EXPECT_THAT(one, StartsWith("2 tensors, 16 bytes, "));
  TestDirectory split;
  WriteTensors(split.File("x-1.safetensors"), {kModel[1]});
  WriteTensors(split.File("x-2.safetensors"), {kModel[0]});
  TestDirectory::Write(split.File("model.safetensors.index.json"),
                       R"({"weight_map": {"a": "x-2.safetensors", "b": "x-1.safetensors"}})");
  TestDirectory::Write(split.File("config.json"), "{}");
  EXPECT_EQ(*ModelFingerprint(split.path()), one);
}

TEST(ModelFingerprintTest, EveryChangeCounts) {
  const std::string one = FingerprintOf(kModel);
  for (size_t i = 0; i < kModel.size(); ++i) {
    for (size_t at = 0; at < 8; ++at) {
      Tensors changed = kModel;
      changed[i].second[at] ^= 1;
      EXPECT_NE(FingerprintOf(changed), one) << i << " " << at;
    }
  }
  Tensors changed = kModel;
  changed[0].first.name = "c";
  EXPECT_NE(FingerprintOf(changed), one);
  changed = kModel;
  changed[1].first.dtype = "F16";
  EXPECT_NE(FingerprintOf(changed), one);
  changed = kModel;
  changed[1].first.shape = {4};
  EXPECT_NE(FingerprintOf(changed), one);
}

// Of a model over the budget, pieces count that are spread over each tensor.
TEST(ModelFingerprintTest, ALargeModelIsHashedInPieces) {
  constexpr int64_t kPiece = 64 << 10, kPieces = 10;
  const Tensors model = {{{"a", "U8", {kPieces * kPiece}}, std::string(kPieces * kPiece, 'a')},
                         {{"b", "U8", {8}}, "ijklmnop"}};
  const std::string one = FingerprintOf(model, 5 * kPiece);  // Each third one.
  for (int64_t piece = 0; piece < kPieces; ++piece) {
    Tensors changed = model;
    changed[0].second[piece * kPiece + 5] ^= 1;
    EXPECT_EQ(FingerprintOf(changed, 5 * kPiece) != one, piece % 3 == 0) << piece;
  }
  Tensors changed = model;
  changed[1].second[0] ^= 1;
  EXPECT_NE(FingerprintOf(changed, 5 * kPiece), one);
}

TEST(ModelFingerprintTest, DamageIsNamed) {
  TestDirectory directory;
  EXPECT_EQ(ModelFingerprint(directory.path()).status().code(), absl::StatusCode::kNotFound);
  WriteTensors(directory.File("model.safetensors"), kModel);
  const std::string whole = TestDirectory::Read(directory.File("model.safetensors"));
  for (const size_t size : {size_t{0}, size_t{5}, size_t{20}, whole.size() - 1}) {
    TestDirectory::Write(directory.File("model.safetensors"), whole.substr(0, size));
    const auto fingerprint = ModelFingerprint(directory.path());
    EXPECT_EQ(fingerprint.status().code(), absl::StatusCode::kInvalidArgument) << size;
    EXPECT_THAT(std::string(fingerprint.status().message()), HasSubstr("model.safetensors: ")) << size;
  }
}

}  // namespace
}  // namespace tacc::worker
