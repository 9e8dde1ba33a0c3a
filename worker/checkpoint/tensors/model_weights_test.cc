#include "worker/checkpoint/tensors/model_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <numeric>

#include "machine/testing/test_directory.h"
#include "worker/checkpoint/tensors/element.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;

// One tensor of the values 0, 1, 2, ...
void WriteCounting(const std::string& path, const std::string& name, const std::string& dtype,
                   const std::vector<int64_t>& shape) {
  auto writer = SafetensorsWriter::Create(path, {{name, dtype, shape}}, {});
  ASSERT_TRUE(writer.ok());
  std::vector<float> values(*NumElements(shape));
  std::iota(values.begin(), values.end(), 0);
  std::vector<char> bytes(values.size() * *DtypeBytes(dtype));
  ASSERT_TRUE(ConvertFromFloat(dtype, values.data(), values.size(), bytes.data()).ok());
  ASSERT_TRUE((*writer)->Append(bytes.data(), bytes.size()).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
}

TEST(ModelWeightsTest, ReadsRectanglesOfAReshape) {
  for (const char* dtype : {"F32", "BF16", "F16"}) {
    TestDirectory directory;
    WriteCounting(directory.File("model.safetensors"), "w", dtype, {6, 2});
    const auto model = ModelWeights::Open(directory.path());
    ASSERT_TRUE(model.ok()) << model.status();
    std::vector<float> out(4);
    ASSERT_TRUE((*model)->ReadFloat("w", {3, 2, 2}, {{1, 1, 0}, {2, 1, 2}}, out.data()).ok());
    EXPECT_EQ(out, (std::vector<float>{6, 7, 10, 11})) << dtype;
  }
}

TEST(ModelWeightsTest, ReadsSomeOfTheRows) {
  for (const char* dtype : {"F32", "BF16"}) {
    TestDirectory directory;
    WriteCounting(directory.File("model.safetensors"), "w", dtype, {6, 2});
    const auto model = ModelWeights::Open(directory.path());
    ASSERT_TRUE(model.ok()) << model.status();
    std::vector<float> out(4);
    ASSERT_TRUE((*model)->ReadFloat("w[2:6]", {2, 2, 2}, {{0, 1, 0}, {2, 1, 2}}, out.data()).ok());
    EXPECT_EQ(out, (std::vector<float>{6, 7, 10, 11})) << dtype;
    EXPECT_THAT(std::string((*model)->ReadFloat("w[2:7]", {5, 2}, {{0, 0}, {1, 1}}, out.data()).message()),
                HasSubstr("tensor \"w\" has shape [6,2], no rows 2 to 7"));
    EXPECT_EQ((*model)->ReadFloat("w[2]", {1}, {{0}, {1}}, out.data()).code(), absl::StatusCode::kNotFound);
  }
}

TEST(ModelWeightsTest, ReadsSomeOfTheRowsOfEachEntry) {
  for (const char* dtype : {"F32", "BF16"}) {
    TestDirectory directory;
    WriteCounting(directory.File("model.safetensors"), "w", dtype, {3, 4, 2});
    const auto model = ModelWeights::Open(directory.path());
    ASSERT_TRUE(model.ok()) << model.status();
    std::vector<float> out(4);
    ASSERT_TRUE((*model)->ReadFloat("w[:,2:4]", {3, 2, 2}, {{1, 0, 1}, {2, 2, 1}}, out.data()).ok());
    EXPECT_EQ(out, (std::vector<float>{13, 15, 21, 23})) << dtype;
    ASSERT_TRUE((*model)->ReadFloat("w[:,1:3]", {3, 4}, {{0, 1}, {2, 2}}, out.data()).ok());
    EXPECT_EQ(out, (std::vector<float>{3, 4, 11, 12})) << dtype;
    EXPECT_THAT(std::string((*model)->ReadFloat("w[:,2:5]", {3, 3, 2}, {{0, 0, 0}, {1, 1, 1}}, out.data()).message()),
                HasSubstr("tensor \"w\" has shape [3,4,2], no rows 2 to 5 in each entry"));
    EXPECT_THAT(std::string((*model)->ReadFloat("w[:,2:4]", {6, 2}, {{0, 0}, {1, 1}}, out.data()).message()),
                HasSubstr("stored shape [3,2,2] cannot be read as [6,2]"));
  }
}

TEST(ModelWeightsTest, ReadsAStackFromItsEntries) {
  TestDirectory directory;
  WriteCounting(directory.File("model-0.safetensors"), "e.0.w", "F32", {2, 3});
  WriteCounting(directory.File("model-1.safetensors"), "e.1.w", "BF16", {2, 3});
  TestDirectory::Write(directory.File("model.safetensors.index.json"),
                       R"({"weight_map": {"e.0.w": "model-0.safetensors", "e.1.w": "model-1.safetensors"}})");
  const auto model = ModelWeights::Open(directory.path());
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<float> out(8);
  ASSERT_TRUE((*model)->ReadFloat("e.*.w", {2, 2, 3}, {{0, 0, 1}, {2, 2, 2}}, out.data()).ok());
  EXPECT_EQ(out, (std::vector<float>{1, 2, 4, 5, 1, 2, 4, 5}));
  EXPECT_EQ((*model)->ReadFloat("e.*.w", {3, 2, 3}, {{2, 0, 0}, {1, 1, 1}}, out.data()).message(),
            directory.path() + ": no tensor \"e.2.w\"");
  EXPECT_THAT(std::string((*model)->ReadFloat("e.*.w", {2, 2, 3}, {{1, 0, 0}, {2, 1, 1}}, out.data()).message()),
              HasSubstr("stack \"e.*.w\": [2,1,1] at [1,0,0] is not inside [2,2,3]"));
}

TEST(ModelWeightsTest, AFileThatIsCutUnderTheReaderIsAnError) {
  for (const char* dtype : {"F32", "BF16"}) {
    TestDirectory directory;
    const std::string file = directory.File("model.safetensors");
    WriteCounting(file, "w", dtype, {6, 2});
    const auto model = ModelWeights::Open(directory.path());
    ASSERT_TRUE(model.ok());
    ASSERT_EQ(truncate(file.c_str(), 20), 0);
    float out[12];
    EXPECT_EQ((*model)->ReadFloat("w", {6, 2}, {{0, 0}, {6, 2}}, out).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string((*model)->ReadFloat("w", {6, 2}, {{4, 0}, {2, 2}}, out).message()),
                HasSubstr(file + ": ends at byte "));
  }
}

TEST(ModelWeightsTest, BadReadsNameTheTensor) {
  TestDirectory directory;
  WriteCounting(directory.File("model.safetensors"), "w", "F32", {6, 2});
  const auto model = ModelWeights::Open(directory.path());
  ASSERT_TRUE(model.ok());
  float out[16];
  EXPECT_EQ((*model)->ReadFloat("v", {1}, {{0}, {1}}, out).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string((*model)->ReadFloat("w", {6, 3}, {{0, 0}, {1, 1}}, out).message()),
              HasSubstr("tensor \"w\": stored shape [6,2] cannot be read as [6,3]"));
  EXPECT_THAT(std::string((*model)->ReadFloat("w", {6, 2}, {{5, 0}, {2, 1}}, out).message()),
              HasSubstr("is not inside [6,2]"));
}

TEST(ModelWeightsTest, ReadsAnIndexedDirectory) {
  TestDirectory directory;
  WriteCounting(directory.File("a.safetensors"), "a", "F32", {2});
  WriteCounting(directory.File("b.safetensors"), "b", "F32", {3});
  const std::string index = directory.File("model.safetensors.index.json");
  TestDirectory::Write(index, R"({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}})");
  const auto model = ModelWeights::Open(directory.path());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->tensors().size(), 2u);

  const auto message = [&](const std::string& text) {
    TestDirectory::Write(index, text);
    const auto bad = ModelWeights::Open(directory.path());
    EXPECT_EQ(bad.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(bad.status().message());
  };
  EXPECT_THAT(message("nonsense"), HasSubstr("weight_map"));
  EXPECT_THAT(message(R"({"weight_map": {"a": "../a.safetensors"}})"), HasSubstr("not a file name"));
  EXPECT_THAT(message(R"({"weight_map": {"a": "c.safetensors"}})"), HasSubstr("c.safetensors: cannot be opened"));
  EXPECT_THAT(message(R"({"weight_map": {"a": "b.safetensors"}})"),
              HasSubstr("b.safetensors: tensor \"a\" is missing"));
  WriteCounting(directory.File("b.safetensors"), "a", "F32", {3});
  EXPECT_THAT(message(R"({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}})"),
              HasSubstr("tensor \"a\" is also in"));
}

TEST(ModelWeightsTest, APipeIsRefusedAndNotWaitedFor) {
  TestDirectory directory;
  const std::string path = directory.File("model.safetensors");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);  // which nobody writes
  EXPECT_EQ(ModelWeights::Open(directory.path()).status().message(), path + ": not a regular file");
}

TEST(ModelWeightsTest, NoWeightsIsNotFound) {
  TestDirectory directory;
  EXPECT_EQ(ModelWeights::Open(directory.path()).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tacc::worker
