#include "worker/daemon/rotating_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/posix_file.h"

namespace tacc::worker {
namespace {

int OpenForAppending(const std::string& path) {
  return open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RotatingLog>> RotatingLog::Open(const std::string& path, int64_t max_bytes) {
  const int fd = OpenForAppending(path);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat(path, ": cannot be opened"));
  struct stat info = {};
  fstat(fd, &info);
  return std::unique_ptr<RotatingLog>(new RotatingLog(path, max_bytes, fd, info.st_size));
}

RotatingLog::~RotatingLog() {
  if (fd_ >= 0) close(fd_);
}

void RotatingLog::Line(const std::string& line) {
  if (num_bytes_ >= max_bytes_) {
    if (fd_ >= 0) close(fd_);
    rename(path_.c_str(), absl::StrCat(path_, ".1").c_str());
    fd_ = OpenForAppending(path_);
    num_bytes_ = 0;
  }
  if (fd_ < 0) return;
  const std::string text = absl::StrCat(line, "\n");
  const ssize_t written = write(fd_, text.data(), text.size());
  if (written > 0) num_bytes_ += written;
}

}  // namespace tacc::worker
