// Runs the scripts of testdata, whose language coordinator/core/testing/script.h describes.
// `coordinator_core_script_test --rewrite` writes the outputs anew: only commit a difference that you can explain.
#include "coordinator/core/testing/script.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace tacc::coordinator {
namespace {

bool rewrite = false;

class ScriptTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ScriptTest, DecidesAsWritten) {
  std::ifstream in(GetParam());
  std::stringstream text;
  text << in.rdbuf();
  ASSERT_FALSE(text.str().empty()) << GetParam();
  const std::string result = RunScript(text.str());
  if (rewrite) {
    std::ofstream(GetParam()) << result;
  } else {
    EXPECT_EQ(result, text.str());
  }
}

std::vector<std::string> Files() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator("coordinator/core/testdata")) {
    if (entry.path().extension() == ".script") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

INSTANTIATE_TEST_SUITE_P(Core, ScriptTest, ::testing::ValuesIn(Files()), [](const auto& info) {
  std::string name = std::filesystem::path(info.param).stem();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace tacc::coordinator

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  tacc::coordinator::rewrite = argc > 1 && std::string(argv[1]) == "--rewrite";
  return RUN_ALL_TESTS();
}
