// What fuzz targets share: an input as text or as a file, and the end of a run in which a promise was broken.
#ifndef TACC_TESTS_FUZZ_INPUT_H_
#define TACC_TESTS_FUZZ_INPUT_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tacc::fuzz {

inline absl::string_view TextOf(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// libFuzzer keeps the input of a process that aborts.
inline void Require(bool kept, absl::string_view promise) {
  if (kept) return;
  std::fprintf(stderr, "broken promise: %.*s\n", static_cast<int>(promise.size()), promise.data());
  std::abort();
}

// A file in memory alone, for readers that take a path.
class InputFile {
 public:
  explicit InputFile(absl::string_view content) : file_(memfd_create("input", MFD_CLOEXEC)) {
    Require(file_ >= 0 && write(file_, content.data(), content.size()) == static_cast<ssize_t>(content.size()),
            "the machine holds the input's file");
  }
  ~InputFile() { close(file_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  std::string path() const { return absl::StrCat("/proc/self/fd/", file_); }

 private:
  const int file_;
};

}  // namespace tacc::fuzz

#endif  // TACC_TESTS_FUZZ_INPUT_H_
