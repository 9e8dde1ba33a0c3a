#include "json/parse_json.h"

#include <string>

#include "gtest/gtest.h"

namespace tacc {
namespace {

std::string Nested(int levels, const std::string& open, const std::string& close) {
  std::string text;
  for (int i = 0; i < levels; ++i) text += open;
  text += "1";
  for (int i = 0; i < levels; ++i) text += close;
  return text;
}

TEST(ParseJson, ReadsWhatIsWithinTheLimits) {
  EXPECT_EQ(ParseJson(R"({"b": [1, "x"], "a": null})").dump(), R"({"a":null,"b":[1,"x"]})");
  EXPECT_EQ(ParseOrderedJson(R"({"b": 1, "a": 2})").dump(), R"({"b":1,"a":2})");
  EXPECT_TRUE(ParseJson(Nested(kMaxJsonDepth, "[", "]")).is_array());
  EXPECT_TRUE(ParseJson(Nested(kMaxJsonDepth, R"({"a":)", "}")).is_object());
}

TEST(ParseJson, RefusesWhatIsNotJson) {
  for (const char* text : {"", "{", "[1,]", "{} {}", "\"\\", "]", "nan"})
    EXPECT_TRUE(ParseJson(text).is_discarded()) << text;
}

TEST(ParseJson, RefusesDeepNesting) {
  EXPECT_TRUE(ParseJson(Nested(kMaxJsonDepth + 1, "[", "]")).is_discarded());
  EXPECT_TRUE(ParseJson(Nested(kMaxJsonDepth + 1, R"({"a":)", "}")).is_discarded());
  EXPECT_TRUE(ParseOrderedJson(Nested(1'000'000, "[", "]")).is_discarded());
}

TEST(ParseJson, CountsNoBracketsInStrings) {
  const std::string brackets(1000, '[');
  EXPECT_EQ(ParseJson("[\"" + brackets + "\"]")[0], brackets);
  EXPECT_EQ(ParseJson("{\"\\\"" + brackets + "\": 1}").size(), 1);
  // A quote behind an escaped backslash ends the string.
  EXPECT_TRUE(ParseJson("[\"\\\\\"," + Nested(kMaxJsonDepth, "[", "]") + "]").is_discarded());
  // Many beside each other are not deep.
  std::string wide = "[0";
  for (int i = 0; i < 1000; ++i) wide += ",[]";
  EXPECT_EQ(ParseJson(wide + "]").size(), 1001);
}

TEST(ParseJson, RefusesWhatIsTooLong) {
  EXPECT_TRUE(IsWithinJsonLimits("[]"));
  // What is too long is not looked at, and so need not be there.
  EXPECT_FALSE(IsWithinJsonLimits(absl::string_view("[]", kMaxJsonBytes + 1)));
}

}  // namespace
}  // namespace tacc
