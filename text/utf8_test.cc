#include "text/utf8.h"

#include <gtest/gtest.h>

namespace tacc {
namespace {

TEST(ValidUtf8Test, LeavesTextAlone) {
  const std::string text = "plain, \xc3\xa4, \xe2\x82\xac, \xf0\x9f\x98\x80\n";
  EXPECT_EQ(ValidUtf8(text, 100), text);
}

TEST(ValidUtf8Test, ReplacesWhatIsNoCharacter) {
  EXPECT_EQ(ValidUtf8(std::string("a\0b", 3), 100), "a b");
  EXPECT_EQ(ValidUtf8("\xff\xc3 x", 100), "?? x");
  EXPECT_EQ(ValidUtf8("\xc0\xaf", 100), "??");            // Overlong.
  EXPECT_EQ(ValidUtf8("\xe0\x80\xaf", 100), "???");       // Overlong.
  EXPECT_EQ(ValidUtf8("\xed\xa0\x80", 100), "???");       // Surrogate.
  EXPECT_EQ(ValidUtf8("\xf4\x90\x80\x80", 100), "????");  // Above U+10FFFF.
  EXPECT_EQ(ValidUtf8("cut \xe2\x82", 100), "cut ??");
  EXPECT_EQ(ValidUtf8("\xf5\x80 \xc3"), "?? ?");
}

TEST(ValidUtf8Test, CutsBetweenCharacters) {
  EXPECT_EQ(ValidUtf8("ab\xe2\x82\xac", 4), "ab");
  EXPECT_EQ(ValidUtf8("abcdef", 3), "abc");
}

}  // namespace
}  // namespace tacc
