#include "worker/checkpoint/tensors/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "machine/testing/test_directory.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;

std::string File(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  return bytes + header + data;
}

std::string Message(const std::string& content) {
  const auto header = ParseSafetensors(content.data(), content.size(), "f.safetensors");
  EXPECT_FALSE(header.ok());
  EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(header.status().message());
}

TEST(SafetensorsTest, WritesWhatTheReferenceImplementationWrites) {
  TestDirectory directory;
  auto writer =
      SafetensorsWriter::Create(directory.File("a"), {{"x", "F32", {2}}, {"y", "BF16", {1, 2}}}, {{"format", "pt"}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  const float x[2] = {1, 2};
  ASSERT_TRUE((*writer)->Append(x, 8).ok());
  ASSERT_TRUE((*writer)->Append("abcd", 4).ok());
  const auto hash = (*writer)->Finish();
  ASSERT_TRUE(hash.ok());
  const std::string content = TestDirectory::Read(directory.File("a"));
  EXPECT_THAT(content,
              HasSubstr(R"({"__metadata__":{"format":"pt"},"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                        R"("y":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]}})"));
  EXPECT_EQ((content.size() - 12) % 8, 0u);
  EXPECT_EQ(hash->num_bytes, static_cast<int64_t>(content.size()));
  EXPECT_EQ(HashFile(directory.File("a"))->sha256, hash->sha256);

  const auto file = SafetensorsFile::Open(directory.File("a"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->header().metadata.at("format"), "pt");
  const SafetensorsEntry& y = (*file)->header().tensors.at("y");
  EXPECT_EQ(y.shape, (std::vector<int64_t>{1, 2}));
  std::string read(4, ' ');
  ASSERT_TRUE((*file)->Read(y.begin, WholeTensor(y.shape), WholeTensor(y.shape), 2, read.data()).ok());
  EXPECT_EQ(read, "abcd");
}

TEST(SafetensorsTest, EveryCutIsRefused) {
  const std::string whole = File(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "01234567");
  ASSERT_TRUE(ParseSafetensors(whole.data(), whole.size(), "f").ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(Message(whole.substr(0, size)), HasSubstr("f.safetensors: ")) << size;
  }
}

TEST(SafetensorsTest, EachRuleNamesFileAndTensor) {
  const std::string x = R"("x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string data = "01234567";
  EXPECT_THAT(Message(File("{" + x + "}", data + "8")), HasSubstr("1 bytes after the last tensor"));
  EXPECT_THAT(Message(File("[]", "")), HasSubstr("not a JSON object"));
  EXPECT_THAT(Message(File("{" + x + "," + x + "}", data)), HasSubstr("\"x\" twice"));
  EXPECT_THAT(Message(File(R"({"x":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}})", data)),
              HasSubstr("\"dtype\" twice"));
  EXPECT_THAT(Message(File("{" + x + R"(,"y":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", data)),
              HasSubstr("tensor \"y\": data begins at byte 4 of the data, which overlaps"));
  EXPECT_THAT(Message(File(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", data)),
              HasSubstr("leaves a gap"));
  EXPECT_THAT(Message(File(R"({"x":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}})", data)),
              HasSubstr("unknown dtype \"F99\""));
  EXPECT_THAT(Message(File(R"({"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", data)),
              HasSubstr("F32[3] needs 12"));
  EXPECT_THAT(Message(File(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", data)),
              HasSubstr("before they begin"));
  EXPECT_THAT(Message(File(R"({"x":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", data)), HasSubstr("extent"));
  EXPECT_THAT(Message(File(R"({"x":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", data)), HasSubstr("extent"));
  EXPECT_THAT(Message(File(R"({"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", data)),
              HasSubstr("too large"));
  EXPECT_THAT(Message(File(R"({"x":{"dtype":"F32","data_offsets":[0,8]}})", data)), HasSubstr("shape is missing"));
  EXPECT_THAT(Message(File(R"({"x":{"dtype":"F32","shape":[2]}})", data)), HasSubstr("data_offsets is missing"));
  EXPECT_THAT(Message(File(R"({"x":{"shape":[2],"data_offsets":[0,8]}})", data)), HasSubstr("dtype is missing"));
  EXPECT_THAT(Message(File(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"z":1}})", data)),
              HasSubstr("unknown key \"z\""));
  EXPECT_THAT(Message(File(R"({"x":7})", data)), HasSubstr("tensor \"x\": the entry is not an object"));
  EXPECT_THAT(Message(File(R"({"__metadata__":{"a":1}})", "")), HasSubstr("\"a\" is not a string"));
  EXPECT_THAT(Message(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)), HasSubstr("over the limit of 100000000"));
}

TEST(SafetensorsTest, DeepNestingIsRefusedNotRecursed) {
  EXPECT_THAT(Message(File(std::string(1000000, '['), "")), HasSubstr("not a JSON object"));
  EXPECT_THAT(Message(File("{\"x\":" + std::string(100000, '[') + std::string(100000, ']') + "}", "")),
              HasSubstr("not a JSON object"));
}

TEST(SafetensorsTest, EmptyFileOfNoTensorsAndEmptyTensors) {
  const std::string none = File("{}", "");
  EXPECT_TRUE(ParseSafetensors(none.data(), none.size(), "f").ok());
  const std::string empty = File(
      R"({"x":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]},"y":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})",
      "a");
  EXPECT_TRUE(ParseSafetensors(empty.data(), empty.size(), "f").ok());
}

TEST(SafetensorsTest, WriterRefusesWhatItCannotDeclare) {
  TestDirectory directory;
  const std::string path = directory.File("a");
  EXPECT_FALSE(SafetensorsWriter::Create(path, {{"x", "F32", {2}}, {"x", "F32", {2}}}, {}).ok());
  EXPECT_FALSE(SafetensorsWriter::Create(path, {{"x", "F31", {2}}}, {}).ok());
  EXPECT_FALSE(SafetensorsWriter::Create(path, {{"x", "F32", {-2}}}, {}).ok());
  EXPECT_FALSE(SafetensorsWriter::Create(path, {{"\xff\xfe", "F32", {2}}}, {}).ok());
  auto writer = SafetensorsWriter::Create(path, {{"x", "F32", {2}}}, {});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Append("abcd", 4).ok());
  EXPECT_EQ((*writer)->Finish().status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tacc::worker
