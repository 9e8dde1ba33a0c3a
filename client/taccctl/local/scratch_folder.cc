#include "client/taccctl/local/scratch_folder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace tacc::client {
namespace {

constexpr char kPrefix[] = "tacc-local-";
constexpr char kLockFile[] = "lock";
constexpr size_t kRandomCharacters = 6;  // As mkdtemp makes them.

bool IsName(absl::string_view name) {
  return absl::ConsumePrefix(&name, kPrefix) && name.size() == kRandomCharacters &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) { return absl::ascii_isalnum(c); });
}

enum class Lock { kNone, kFree, kHeld };

// kHeld where it cannot be found out, too. A lock is a plain file.
Lock LookAt(const std::string& file) {
  const int fd = open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return errno == ENOENT ? Lock::kNone : Lock::kHeld;
  struct stat info;
  const bool is_free = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0;
  close(fd);
  return is_free ? Lock::kFree : Lock::kHeld;
}

// Whether a process that was killed has left the folder. Its coordinator and workers live a moment longer.
bool IsLeft(const std::filesystem::path& folder) {
  struct stat info;
  if (!IsName(folder.filename().string()) || lstat(folder.c_str(), &info) != 0) return false;
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) return false;
  if (LookAt(folder / kLockFile) != Lock::kFree) return false;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->symlink_status(ignored).type() == std::filesystem::file_type::directory &&
        LookAt(it->path() / kLockFile) == Lock::kHeld)
      return false;
  }
  return !error;
}

void RemoveOld(const std::string& base) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(base, error), end; !error && it != end; it.increment(error)) {
    if (!IsLeft(it->path())) continue;
    std::error_code ignored;  // Another process removes it as well.
    std::filesystem::remove_all(it->path(), ignored);
  }
}

// Made anew: others may write to the run's folder, and a link there is not written through.
bool CopyLogs(const std::string& from, const std::string& to) {
  std::error_code error;
  if (!std::filesystem::create_directories(to, error) && error) return false;
  if (std::filesystem::is_symlink(std::filesystem::symlink_status(to, error))) return false;
  for (std::filesystem::directory_iterator it(from, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() != ".log") continue;
    const std::filesystem::path copy = std::filesystem::path(to) / it->path().filename();
    std::filesystem::remove(copy, error);
    if (!error) std::filesystem::copy_file(it->path(), copy, error);
    if (error) return false;
  }
  return !error;
}

// Locks a new folder; -1 where that is not possible.
int TakeLock(const std::string& folder) {
  const std::string file = absl::StrCat(folder, "/", kLockFile), fresh = file + ".new";
  const int fd = open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return -1;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0 && rename(fresh.c_str(), file.c_str()) == 0) return fd;
  unlink(fresh.c_str());
  close(fd);
  return -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ScratchFolder>> ScratchFolder::Make(const std::string& base) {
  RemoveOld(base);
  std::string path = absl::StrCat(base, "/", kPrefix, "XXXXXX");
  if (mkdtemp(path.data()) == nullptr)
    return absl::InternalError(absl::StrCat("cannot make a folder in ", base, "; set TMPDIR to one that is writable"));
  return std::unique_ptr<ScratchFolder>(new ScratchFolder(path, TakeLock(path)));
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!stays_) std::filesystem::remove_all(path_, ignored);
  if (lock_fd_ >= 0) close(lock_fd_);
}

std::string ScratchFolder::KeepLogs(const std::string& dir) {
  has_kept_logs_ = true;
  // One that stays has been named.
  if (!stays_ && CopyLogs(path_, dir)) return dir;
  stays_ = true;
  unlink(absl::StrCat(path_, "/", kLockFile).c_str());
  return path_;
}

}  // namespace tacc::client
