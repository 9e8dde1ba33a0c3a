// For tests: a fresh directory that is removed with all its content at the end of the scope.
#ifndef TACC_WORKER_CHECKPOINT_TESTING_TEST_DIRECTORY_H_
#define TACC_WORKER_CHECKPOINT_TESTING_TEST_DIRECTORY_H_

#include <stdlib.h>

#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "worker/checkpoint/files/posix_file.h"

namespace tacc::worker {

class TestDirectory {
 public:
  TestDirectory() : path_("/tmp/tacc_test_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) abort();
  }
  ~TestDirectory() { (void)RemoveTree(path_); }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

  // The names in a directory, sorted; none when it cannot be listed.
  static std::vector<std::string> Names(const std::string& path) {
    auto names = ListDirectory(path);
    return names.ok() ? *std::move(names) : std::vector<std::string>();
  }
  static std::string Read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  static void Write(const std::string& path, const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
  }

 private:
  std::string path_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_TESTING_TEST_DIRECTORY_H_
