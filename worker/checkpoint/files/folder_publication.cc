#include "worker/checkpoint/files/folder_publication.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/checkpoint/files/posix_file.h"

namespace tacc::worker {
namespace {

constexpr char kPrefix[] = ".tmp-export-";
constexpr char kLockSuffix[] = ".lock";
// The folder that was replaced, where it and the new one cannot change places.
constexpr char kReplacedSuffix[] = ".replaced";
// Of a lock file that another process takes for left behind, in the moment between its making and its locking.
constexpr int kMaxTries = 100;

std::string LockPath(const std::string& directory) { return absl::StrCat(directory, kLockSuffix); }

bool IsSame(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

// Whether `path` still names the open file.
bool IsStill(int fd, const std::string& path) {
  struct stat open_file, named;
  return fstat(fd, &open_file) == 0 && lstat(path.c_str(), &named) == 0 && IsSame(open_file, named);
}

absl::Status RemoveFolder(const std::string& directory) {
  if (absl::Status status = RemoveTree(directory + kReplacedSuffix); !status.ok()) return status;
  if (absl::Status status = RemoveTree(directory); !status.ok()) return status;
  // The lock last: without it nobody would find the rest.
  return RemoveTree(LockPath(directory));
}

// Where locks do not work, or the process lives, the folder stays.
void RemoveIfLeftBehind(const std::string& directory) {
  const std::string lock = LockPath(directory);
  const int fd = open(lock.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0 && IsStill(fd, lock)) (void)RemoveFolder(directory);
  close(fd);
}

void RemoveLeftBehind(const std::string& parent, const std::string& prefix) {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(parent);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, prefix) || !absl::EndsWith(name, kLockSuffix)) continue;
    RemoveIfLeftBehind(absl::StrCat(parent, "/", name.substr(0, name.size() - (sizeof(kLockSuffix) - 1))));
  }
}

absl::Status Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat(from, ": cannot be renamed to ", to));
}

absl::Status Swap(const std::string& directory, const std::string& path) {
  if (rename(directory.c_str(), path.c_str()) == 0) return absl::OkStatus();
  if (errno != ENOTEMPTY && errno != EEXIST) {
    return ErrnoStatus(errno, absl::StrCat(directory, ": cannot be renamed to ", path));
  }
  // An earlier one is there. The exchange is atomic; then `directory` is the old one.
  if (renameat2(AT_FDCWD, directory.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) return absl::OkStatus();
  // Not every file system can exchange.
  if (absl::Status status = Rename(path, directory + kReplacedSuffix); !status.ok()) return status;
  return Rename(directory, path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<FolderPublication>> FolderPublication::Begin(const std::string& path) {
  const std::filesystem::path target(path);
  const std::string parent = target.parent_path().string();
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat(parent, ": cannot be created"));
  const std::string prefix = absl::StrCat(kPrefix, target.filename().string(), ".");
  RemoveLeftBehind(parent, prefix);
  for (int i = 0; i < kMaxTries; ++i) {
    std::string lock = absl::StrCat(parent, "/", prefix, "XXXXXX", kLockSuffix);
    const int fd = mkostemps(lock.data(), sizeof(kLockSuffix) - 1, O_CLOEXEC);
    if (fd < 0) return ErrnoStatus(errno, absl::StrCat(parent, ": cannot be written to"));
    const bool is_taken = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (is_taken || !IsStill(fd, lock)) {
      close(fd);
      continue;
    }
    const std::string directory = lock.substr(0, lock.size() - (sizeof(kLockSuffix) - 1));
    std::unique_ptr<FolderPublication> publication(new FolderPublication(path, directory, fd));
    if (absl::Status status = MakeDirectory(directory); !status.ok()) return status;
    return publication;
  }
  return absl::InternalError(absl::StrCat(parent, ": no lock file could be made in ", kMaxTries, " tries"));
}

FolderPublication::~FolderPublication() {
  (void)RemoveFolder(directory_);  // What stays is removed by the next one.
  close(lock_fd_);
}

absl::Status FolderPublication::Publish() {
  if (absl::Status status = SyncDirectory(directory_); !status.ok()) return status;
  struct stat written, published;
  if (stat(directory_.c_str(), &written) != 0) return ErrnoStatus(errno, directory_);
  if (absl::Status status = Swap(directory_, path_); !status.ok()) return status;
  if (absl::Status status = SyncDirectory(std::filesystem::path(path_).parent_path().string()); !status.ok())
    return status;
  if (stat(path_.c_str(), &published) == 0 && IsSame(written, published)) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(path_, ": another process has put its own folder there in the same moment"));
}

}  // namespace tacc::worker
