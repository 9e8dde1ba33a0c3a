#include "worker/daemon/supervision/line_splitter.h"

#include <gtest/gtest.h>

namespace tacc::worker {
namespace {

using Lines = std::vector<std::string>;

Lines Split(const std::string& text, size_t chunk, size_t max_line_bytes) {
  LineSplitter splitter(max_line_bytes);
  Lines lines;
  for (size_t at = 0; at < text.size(); at += chunk) {
    const std::string part = text.substr(at, chunk);
    for (const std::string& line : splitter.Add(part.data(), part.size())) lines.push_back(line);
  }
  for (const std::string& line : splitter.Finish()) lines.push_back(line);
  return lines;
}

TEST(LineSplitterTest, TheSameLinesHoweverTheBytesArrive) {
  const std::string text = "one\n\ntwo\r\nthree\xc3\xa9\nlast";
  for (size_t chunk = 1; chunk <= text.size(); ++chunk) {
    EXPECT_EQ(Split(text, chunk, 100), (Lines{"one", "two", "three\xc3\xa9", "last"})) << chunk;
  }
}

TEST(LineSplitterTest, CutsLongLines) {
  EXPECT_EQ(Split("abcdefgh\nij\n", 3, 4), (Lines{"abcd", "efgh", "ij"}));
  EXPECT_EQ(Split("abcde", 5, 4), (Lines{"abcd", "e"}));
}

TEST(LineSplitterTest, BytesThatAreNotUtf8AreReplaced) {
  EXPECT_EQ(Split("a\xff\nb\xc3\n\xe2\x82\xac", 3, 100), (Lines{"a?", "b?", "\xe2\x82\xac"}));
  EXPECT_EQ(Split(std::string("a\0b\n", 4), 4, 100), (Lines{"a b"}));
  // A line that is cut within a character.
  EXPECT_EQ(Split("ab\xe2\x82\xac", 3, 4), (Lines{"ab??", "?"}));
}

}  // namespace
}  // namespace tacc::worker
