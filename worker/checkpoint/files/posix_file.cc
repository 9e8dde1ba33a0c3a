#include "worker/checkpoint/files/posix_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tacc::worker {
namespace {

// One write or read call. Large enough to cost nothing per call, small enough to hash while it is in the cache.
constexpr size_t kChunkBytes = 1 << 20;
constexpr int kForReading = O_RDONLY | O_CLOEXEC | O_NONBLOCK;  // a pipe that nobody writes would be waited for

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// Returns bytes read, 0 at the end of the file, -1 with errno.
ssize_t ReadRetrying(int fd, char* data, size_t num_bytes) {
  ssize_t n;
  do {
    n = read(fd, data, num_bytes);
  } while (n < 0 && errno == EINTR);
  return n;
}

// Descriptors are the process's, so their number is.
std::atomic<int64_t> num_kept_open{0};

int64_t MostKeptOpen() {
  rlimit limit = {};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<int64_t>(limit.rlim_cur / 2) : 0;
}

absl::Status OpenError(const std::string& path) { return ErrnoStatus(errno, absl::StrCat(path, ": cannot be opened")); }

}  // namespace

absl::Status ErrnoStatus(int error, const std::string& what) {
  const char* advice = error == EMFILE ? "; give it a higher limit of open files (ulimit -Hn)" : "";
  const std::string message = absl::StrCat(what, ": ", std::strerror(error), advice);
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENAMETOOLONG:  // However long one waits.
      return absl::InvalidArgumentError(message);
    default:
      return absl::UnavailableError(message);
  }
}

bool IsOutage(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsPermissionDenied(status) || absl::IsUnavailable(status) ||
         absl::IsResourceExhausted(status);
}

absl::StatusOr<int> OpenToWrite(const std::string& path, int flags, mode_t mode) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | flags, mode);
  struct stat info = {};
  if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) return fd;
  const int error = fd >= 0 ? ENXIO : errno;
  if (fd >= 0) close(fd);
  if (lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is a ", S_ISLNK(info.st_mode) ? "symbolic link" : "pipe, a socket or a device",
                     ", through which nothing is written; remove it"));
  }
  return ErrnoStatus(error, absl::StrCat(path, ": cannot be opened for writing"));
}

absl::StatusOr<std::unique_ptr<OutputFile>> OutputFile::Create(const std::string& path) {
  absl::StatusOr<int> fd = OpenToWrite(path, O_EXCL, 0666);
  struct stat info = {};
  if (!fd.ok() && lstat(path.c_str(), &info) == 0 && !S_ISDIR(info.st_mode)) {
    // Once: who puts one there again in this moment means no good.
    if (unlink(path.c_str()) != 0) return ErrnoStatus(errno, absl::StrCat(path, ": cannot be replaced"));
    fd = OpenToWrite(path, O_EXCL, 0666);
  }
  if (!fd.ok()) return fd.status();
  return std::unique_ptr<OutputFile>(new OutputFile(path, *fd));
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status OutputFile::Append(const void* data, size_t num_bytes) {
  const char* next = static_cast<const char*>(data);
  while (num_bytes > 0) {
    const ssize_t n = write(fd_, next, std::min(num_bytes, kChunkBytes));
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, absl::StrCat(path_, ": cannot write after ", num_bytes_, " bytes"));
    }
    sha256_.Update(next, n);
    next += n;
    num_bytes -= n;
    num_bytes_ += n;
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Finish() {
  const int sync_error = fsync(fd_) == 0 ? 0 : errno;
  const int close_error = close(fd_) == 0 ? 0 : errno;
  fd_ = -1;
  if (sync_error != 0) return ErrnoStatus(sync_error, absl::StrCat(path_, ": cannot be forced to the disk"));
  if (close_error != 0) return ErrnoStatus(close_error, absl::StrCat(path_, ": cannot be closed"));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<InputFile>> InputFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), kForReading);
  if (fd < 0) return OpenError(path);
  ++num_kept_open;
  std::unique_ptr<InputFile> file(new InputFile(path, fd));
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  file->num_bytes_ = info.st_size;
  file->inode_ = info.st_ino;
  if (num_kept_open > MostKeptOpen()) file->Close();
  return file;
}

InputFile::~InputFile() { Close(); }

void InputFile::Close() {
  if (fd_ < 0) return;
  close(fd_);
  fd_ = -1;
  --num_kept_open;
}

absl::Status InputFile::Read(int64_t offset, char* out, int64_t num_bytes) const {
  if (fd_ >= 0) return ReadFrom(fd_, offset, out, num_bytes);
  FileDescriptor fd(open(path_.c_str(), kForReading));
  if (fd.get() < 0) return OpenError(path_);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, path_);
  if (info.st_ino != inode_)
    return absl::InvalidArgumentError(absl::StrCat(path_, ": was replaced while it was being read"));
  return ReadFrom(fd.get(), offset, out, num_bytes);
}

absl::Status InputFile::ReadFrom(int fd, int64_t offset, char* out, int64_t num_bytes) const {
  while (num_bytes > 0) {
    const ssize_t n = pread(fd, out, num_bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat(path_, ": cannot be read"));
    if (n == 0) return absl::InvalidArgumentError(absl::StrCat(path_, ": ends at byte ", offset, "; it is cut short"));
    out += n;
    offset += n;
    num_bytes -= n;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t max_bytes, Pipes pipes) {
  FileDescriptor fd(open(path.c_str(), pipes == Pipes::kRefused ? kForReading : O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return OpenError(path);
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, path);
  if (S_ISDIR(info.st_mode)) return ErrnoStatus(EISDIR, path);
  if (pipes == Pipes::kRefused && !S_ISREG(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  std::string content;
  std::vector<char> buffer(64 << 10);
  while (true) {
    const ssize_t n = ReadRetrying(fd.get(), buffer.data(), buffer.size());
    if (n < 0) return ErrnoStatus(errno, absl::StrCat(path, ": cannot be read"));
    if (n == 0) return content;
    content.append(buffer.data(), n);
    if (static_cast<int64_t>(content.size()) > max_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": larger than the limit of ", max_bytes, " bytes"));
    }
  }
}

absl::Status WriteSmallFile(const std::string& path, const std::string& content) {
  auto file = OutputFile::Create(path);
  if (!file.ok()) return file.status();
  if (absl::Status status = (*file)->Append(content.data(), content.size()); !status.ok()) return status;
  return (*file)->Finish();
}

absl::StatusOr<FileHash> HashFile(const std::string& path, const std::function<void()>& progress) {
  FileDescriptor fd(open(path.c_str(), kForReading));
  if (fd.get() < 0) return OpenError(path);
  Sha256 sha256;
  FileHash result;
  std::vector<char> buffer(kChunkBytes);
  while (true) {
    const ssize_t n = ReadRetrying(fd.get(), buffer.data(), buffer.size());
    if (n < 0) return ErrnoStatus(errno, absl::StrCat(path, ": cannot be read"));
    if (n == 0) break;
    sha256.Update(buffer.data(), n);
    result.num_bytes += n;
    if (progress) progress();
  }
  result.sha256 = sha256.HexDigest();
  return result;
}

absl::Status SyncDirectory(const std::string& path) {
  FileDescriptor fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return OpenError(path);
  // Some network file systems cannot sync a directory and say EINVAL; they order renames by themselves.
  if (fsync(fd.get()) != 0 && errno != EINVAL)
    return ErrnoStatus(errno, absl::StrCat(path, ": cannot be forced to the disk"));
  return absl::OkStatus();
}

absl::Status MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0777) == 0) return absl::OkStatus();
  const int error = errno;
  struct stat info = {};
  if (error != EEXIST || lstat(path.c_str(), &info) != 0)
    return ErrnoStatus(error, absl::StrCat(path, ": cannot be created"));
  if (S_ISDIR(info.st_mode)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": a folder is wanted, and there is a ",
                                                 S_ISLNK(info.st_mode) ? "symbolic link" : "file",
                                                 " of this name; remove it"));
}

absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path) {
  std::error_code error;
  std::vector<std::string> names;
  std::filesystem::directory_iterator it(path, error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return ErrnoStatus(error.value(), absl::StrCat(path, ": cannot be listed"));
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat(path, ": cannot be removed"));
  return absl::OkStatus();
}

}  // namespace tacc::worker
