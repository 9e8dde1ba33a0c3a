#include "worker/run_folder/append_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "worker/checkpoint/files/posix_file.h"

namespace tacc::worker {

namespace {

constexpr mode_t kMode = 0666;

}  // namespace

absl::StatusOr<std::unique_ptr<AppendFile>> AppendFile::Open(const std::string& path) {
  const absl::StatusOr<int> fd = OpenToWrite(path, O_APPEND, kMode);
  if (!fd.ok()) return fd.status();
  return std::unique_ptr<AppendFile>(new AppendFile(path, *fd));
}

AppendFile::~AppendFile() { close(fd_); }

bool AppendFile::IsInPlace() const {
  struct stat open_file = {}, named_file = {};
  return fstat(fd_, &open_file) == 0 && stat(path_.c_str(), &named_file) == 0 &&
         open_file.st_dev == named_file.st_dev && open_file.st_ino == named_file.st_ino;
}

absl::Status AppendFile::Reopen(absl::string_view head) {
  const absl::StatusOr<int> fd = OpenToWrite(path_, O_APPEND, kMode);
  if (!fd.ok()) return fd.status();
  close(fd_);
  fd_ = *fd;
  struct stat file = {};
  if (fstat(fd_, &file) == 0 && file.st_size == 0) waiting_.insert(0, head.data(), head.size());
  return absl::OkStatus();
}

absl::Status AppendFile::Flush() {
  size_t done = 0;
  int error = 0;
  while (done < waiting_.size() && error == 0) {
    const ssize_t n = write(fd_, waiting_.data() + done, waiting_.size() - done);
    if (n > 0) done += n;
    if (n < 0 && errno != EINTR) error = errno;
  }
  waiting_.erase(0, done);
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, path_);
}

absl::Status AppendFile::Sync() {
  const absl::Status flushed = Flush();
  if (!flushed.ok()) return flushed;
  return fsync(fd_) == 0 ? absl::OkStatus() : ErrnoStatus(errno, path_);
}

}  // namespace tacc::worker
