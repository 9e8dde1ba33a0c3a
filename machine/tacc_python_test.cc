#include "machine/tacc_python.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tacc {
namespace {

using ::testing::HasSubstr;

class TaccPythonTest : public testing::Test {
 protected:
  TaccPythonTest()
      : root_(testing::TempDir() + "/tacc_python_test_" +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::create_directories(root_ + "/build/tests");
  }
  ~TaccPythonTest() override { std::filesystem::remove_all(root_); }
  const std::string root_;
};

TEST_F(TaccPythonTest, IsThatOfTheCheckout) {
  EXPECT_EQ(FindTaccPython(root_ + "/build/tests"), "");
  std::filesystem::create_directories(root_ + "/.venv/bin");
  std::ofstream(root_ + "/.venv/bin/python") << "";
  EXPECT_EQ(FindTaccPython(root_ + "/build/tests"), "") << "of somebody else's project";
  std::filesystem::create_directories(root_ + "/client/python/tacc");
  for (const char* folder : {"/build/tests", "/build", ""})
    EXPECT_EQ(FindTaccPython(root_ + folder), root_ + "/.venv/bin/python");
}

// This test lies in a checkout, as what is built there does.
TEST_F(TaccPythonTest, CommandsRunWhenTheyArePasted) {
  const std::string text =
      WithTaccPython("convert it:\n  python -m tacc convert --help\nor `python -m tacc sample -h`");
  EXPECT_THAT(text, testing::MatchesRegex("convert it:\n  /[^ ]*/.venv/bin/python -m tacc convert --help\n"
                                          "or `/[^ ]*/.venv/bin/python -m tacc sample -h`"));
  const size_t begin = text.find("  ") + 2;
  const std::string command = text.substr(begin, text.find('\n', begin) - begin);
  FILE* pipe = popen(absl::StrCat("cd / && ", command, " 2>&1").c_str(), "r");
  std::string printed(4096, 0);
  printed.resize(fread(printed.data(), 1, printed.size(), pipe));
  EXPECT_EQ(pclose(pipe), 0) << printed;
  EXPECT_THAT(printed, HasSubstr("-m tacc convert"));
}

TEST_F(TaccPythonTest, WordsOfAShell) {
  EXPECT_EQ(ShellWord("/a/b-c_1.2"), "/a/b-c_1.2");
  EXPECT_EQ(ShellWord("/my data"), "'/my data'");
  EXPECT_EQ(ShellWord("it's"), "'it'\\''s'");
  EXPECT_EQ(ShellWord(""), "''");
}

}  // namespace
}  // namespace tacc
