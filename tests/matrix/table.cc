#include "tests/matrix/table.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace tacc::matrix {

void PrintTable(const std::string& name, const std::string& table) {
  std::fputs(table.c_str(), stdout);
  const char* build = std::getenv("TACC_BUILD");
  if (build == nullptr) return;
  const std::filesystem::path directory = std::filesystem::path(build) / "matrix";
  std::filesystem::create_directories(directory);
  std::ofstream(directory / absl::StrCat(name, ".txt")) << table;
}

}  // namespace tacc::matrix
