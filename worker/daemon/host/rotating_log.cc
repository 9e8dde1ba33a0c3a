#include "worker/daemon/host/rotating_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/files/posix_file.h"

namespace tacc::worker {
namespace {

constexpr mode_t kMode = 0600;

}  // namespace

absl::StatusOr<std::unique_ptr<RotatingLog>> RotatingLog::Open(const std::string& path, int64_t max_bytes) {
  const absl::StatusOr<int> fd = OpenToWrite(path, O_APPEND, kMode);
  if (!fd.ok()) return fd.status();
  struct stat info = {};
  fstat(*fd, &info);
  return std::unique_ptr<RotatingLog>(new RotatingLog(path, max_bytes, *fd, info.st_size));
}

RotatingLog::~RotatingLog() {
  if (fd_ >= 0) close(fd_);
}

absl::Status RotatingLog::Append(std::string* text) {
  if (num_bytes_ >= max_bytes_) {
    const std::string before = absl::StrCat(path_, ".1");
    if (rename(path_.c_str(), before.c_str()) != 0) return ErrnoStatus(errno, absl::StrCat(before, ": cannot be made"));
    close(fd_);
    fd_ = -1;
    num_bytes_ = 0;
  }
  if (fd_ < 0) {
    const absl::StatusOr<int> fd = OpenToWrite(path_, O_APPEND, kMode);
    if (!fd.ok()) return fd.status();
    fd_ = *fd;
  }
  size_t done = 0;
  int error = 0;
  while (done < text->size() && error == 0) {
    const ssize_t n = write(fd_, text->data() + done, text->size() - done);
    if (n > 0) done += n;
    if (n < 0 && errno != EINTR) error = errno;
  }
  num_bytes_ += static_cast<int64_t>(done);
  text->erase(0, done);
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, path_);
}

void RotatingLog::Line(const std::string& line) {
  std::string text = absl::StrCat(line, "\n");
  (void)Append(&text);
}

}  // namespace tacc::worker
