#include "machine/tacc_python.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace tacc {

std::string FindTaccPython(const std::string& folder) {
  std::error_code ignored;
  for (std::filesystem::path checkout = folder;; checkout = checkout.parent_path()) {
    const std::filesystem::path python = checkout / ".venv/bin/python";
    if (std::filesystem::exists(checkout / "client/python/tacc", ignored) && std::filesystem::exists(python, ignored))
      return python.string();
    if (checkout == checkout.parent_path()) return "";
  }
}

std::string WithTaccPython(absl::string_view text) {
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::string found = FindTaccPython(program.parent_path().string());
  const std::string python = found.empty() ? "CHECKOUT/.venv/bin/python" : ShellWord(found);
  return absl::StrReplaceAll(text, {{"python -m tacc", absl::StrCat(python, " -m tacc")}});
}

std::string ShellWord(const std::string& word) {
  const auto is_plain = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::string_view("/._-+=:,@%").find(c) != std::string::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

}  // namespace tacc
