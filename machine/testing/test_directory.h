// For tests: a fresh directory that is removed with all its content at the end of the scope.
#ifndef TACC_MACHINE_TESTING_TEST_DIRECTORY_H_
#define TACC_MACHINE_TESTING_TEST_DIRECTORY_H_

#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

namespace tacc {

class TestDirectory {
 public:
  TestDirectory() : path_("/tmp/tacc_test_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) abort();
  }
  ~TestDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

  // The names in a directory, sorted; none when it cannot be listed.
  static std::vector<std::string> Names(const std::string& path) {
    std::vector<std::string> names;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(path, ignored))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  static std::string Read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  static void Write(const std::string& path, const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
  }
  // Writes an executable script and returns its path.
  std::string Script(const std::string& name, const std::string& body) const {
    Write(File(name), "#!/bin/sh\n" + body);
    chmod(File(name).c_str(), 0755);
    return File(name);
  }

 private:
  std::string path_;
};

}  // namespace tacc

#endif  // TACC_MACHINE_TESTING_TEST_DIRECTORY_H_
