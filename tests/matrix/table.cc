#include "tests/matrix/table.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace tacc::matrix {

void PrintTable(const std::string& name, const std::string& table) {
  std::fputs(table.c_str(), stdout);
  const char* folder = std::getenv("TACC_TABLES");
  if (folder == nullptr) return;
  std::filesystem::create_directories(folder);
  std::ofstream(std::filesystem::path(folder) / absl::StrCat(name, ".txt")) << table;
}

}  // namespace tacc::matrix
