// Inputs that came compressed.
#include <zlib.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/rank/session/inflate.h"
#include "worker/rank/session/testing/client_link_fixture.h"
#include "worker/rank/session/testing/test_client.h"

namespace tacc::worker {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string Zlib(const std::string& text) {
  std::string packed(compressBound(text.size()), '\0');
  uLongf size = packed.size();
  EXPECT_EQ(compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(text.data()),
                     text.size()),
            Z_OK);
  return packed.substr(0, size);
}

TEST(InflateTest, FillsItsPlaceAndNothingBehindIt) {
  const std::string text(1000, 'x');
  std::string to(1000, '\0');
  EXPECT_TRUE(Inflate(Zlib(text), absl::MakeSpan(to)).ok());
  EXPECT_EQ(to, text);
  EXPECT_TRUE(Inflate(Zlib(""), absl::Span<char>()).ok());
  // What inflates to more than was said, here a thousandfold, is refused when its place is full.
  std::string room(1000 + 16, '!');
  const absl::Status bomb = Inflate(Zlib(std::string(1 << 20, 'x')), absl::MakeSpan(room).subspan(0, 1000));
  EXPECT_THAT(std::string(bomb.message()), HasSubstr("holds more than the 1000 bytes"));
  EXPECT_EQ(room.substr(1000), std::string(16, '!'));
  EXPECT_FALSE(Inflate(Zlib(text.substr(1)), absl::MakeSpan(to)).ok()) << "less";
  EXPECT_FALSE(Inflate(Zlib(text) + "x", absl::MakeSpan(to)).ok()) << "more behind it";
  EXPECT_FALSE(Inflate(Zlib(text).substr(0, 8), absl::MakeSpan(to)).ok()) << "cut short";
  EXPECT_FALSE(Inflate("no zlib stream", absl::MakeSpan(to)).ok());
  EXPECT_FALSE(Inflate("", absl::MakeSpan(to)).ok());
}

class PackedInputsTest : public ClientLinkTest {
 protected:
  int64_t InputBytes() const override { return 64; }
};

TEST_F(PackedInputsTest, TakesInputsThatCameCompressed) {
  TestClient client(endpoint());
  client.Hello(endpoint(), "a");
  const std::string first(64, 'a'), second(64, 'b'), packed = Zlib(first);
  ASSERT_LT(packed.size(), first.size());
  json step = Step(1);
  step["packed"] = json::parse(absl::StrCat("[[", packed.size(), "], [0]]"));
  step["state_bytes"] = 3;
  client.Send(step, packed + second + "pos");
  const auto command = link_->Next(kSoon);
  ASSERT_NE(command, nullptr);
  EXPECT_EQ(std::string(command->tensors[0][0], 64), first);
  EXPECT_EQ(std::string(command->tensors[1][0], 64), second);
  EXPECT_EQ(command->state, "pos");
}

TEST_F(PackedInputsTest, TakesCompressedInputsOfOtherLengths) {
  TestClient client(endpoint());
  client.Hello(endpoint(), "a");
  const std::string first(128, 'a'), second(64, 'b'), packed = Zlib(first);
  json step = Step(1);
  step["lengths"] = {4, 2};
  step["packed"] = json::parse(absl::StrCat("[[", packed.size(), "], [0]]"));
  client.Send(step, packed + second);
  const auto command = link_->Next(kSoon);
  ASSERT_NE(command, nullptr);
  EXPECT_EQ(command->buckets, (std::vector<size_t>{1, 0}));
  EXPECT_EQ(std::string(command->tensors[0][0], 128), first);
  EXPECT_EQ(std::string(command->tensors[1][0], 64), second);
  step["lengths"] = {2, 2};
  EXPECT_THAT(ErrorOf(step, packed + second), HasSubstr("more than the 64 bytes"));
}

TEST_F(PackedInputsTest, RefusesCompressedInputsThatAreNone) {
  const std::string whole(64, 'a'), bomb = Zlib(std::string(65, 'x'));
  const auto error = [&](const std::string& packed, const std::string& bytes) {
    json step = Step(1);
    step["packed"] = json::parse(packed);
    return ErrorOf(step, bytes);
  };
  EXPECT_THAT(error(absl::StrCat("[[", bomb.size(), "], [0]]"), bomb + whole), HasSubstr("more than the 64 bytes"));
  EXPECT_THAT(error("[[5], [0]]", "abcde" + whole), HasSubstr("no whole zlib stream"));
  EXPECT_THAT(error("[[0], [65]]", whole + whole), HasSubstr("compressed to 65, is not inside"));
  EXPECT_THAT(error("[[0], [64]]", whole + "abc"), HasSubstr("is not inside the 67 bytes"));
  EXPECT_THAT(error("[[0], [-1]]", whole + whole), HasSubstr("compressed to -1, is not inside"));
  EXPECT_THAT(error("[[0], [\"x\"]]", whole + whole), HasSubstr("is not inside"));
  EXPECT_THAT(error("[[0]]", whole + whole), HasSubstr("\"packed\" tells of 64"));
  EXPECT_THAT(error("[[0], [0], [0]]", whole + whole), HasSubstr("no list of a list for each micro-batch"));
  EXPECT_THAT(error("[[0, 0], [0]]", whole + whole), HasSubstr("a size for each input"));
  EXPECT_THAT(error("7", whole + whole), HasSubstr("no list of a list"));
}

}  // namespace
}  // namespace tacc::worker
