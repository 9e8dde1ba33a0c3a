#include "coordinator/store/job_number.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tacc::coordinator {
namespace {

absl::StatusOr<int64_t> ReadNumber(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return 0;
  char text[64];
  const ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof(text));
  const int error = errno;
  if (fd >= 0) close(fd);
  if (size < 0) return absl::FailedPreconditionError(absl::StrCat(path, ": cannot be read: ", strerror(error)));
  int64_t number = 0;
  if (absl::SimpleAtoi(absl::string_view(text, static_cast<size_t>(size)), &number) && number >= 0) return number;
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": damaged: wanted the largest number of a job's id, as 12 of quickstart-12; write it there, ",
                   "or remove the file: ids of earlier jobs may then come back"));
}

absl::Status WriteNumber(const std::string& path, int64_t number) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;  // The file cannot be made then either, and says why.
  std::filesystem::create_directories(folder, ignored);
  const std::string temporary = absl::StrCat(path, ".", getpid()), text = absl::StrCat(number, "\n");
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const bool written =
      fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(fd) == 0;
  int error = errno;
  if (fd >= 0) close(fd);
  if (written && rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  if (written) error = errno;
  unlink(temporary.c_str());
  return absl::UnavailableError(absl::StrCat(path, ": cannot be written: ", strerror(error)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobNumberFile>> JobNumberFile::Open(const std::string& path) {
  const absl::StatusOr<int64_t> number = ReadNumber(path);
  if (!number.ok()) return number.status();
  return std::unique_ptr<JobNumberFile>(new JobNumberFile(path, *number));
}

absl::Status JobNumberFile::Raise(int64_t number) const {
  const absl::StatusOr<int64_t> written = ReadNumber(path_);
  return written.ok() && *written >= number ? absl::OkStatus() : WriteNumber(path_, number);
}

}  // namespace tacc::coordinator
