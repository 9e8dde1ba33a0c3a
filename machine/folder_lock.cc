#include "machine/folder_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tacc {
namespace {

std::string LockFile(const std::string& dir) { return absl::StrCat(dir, "/.lock"); }

// Of an open file, not of a process: it ends when all descriptors that came of one open() are closed.
struct flock WholeFile(short type) {  // NOLINT(google-runtime-int): its type there.
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

// The file's first two lines.
struct User {
  std::string name;
  std::string coordinator;
};
User ReadUser(int fd) {
  char buffer[1024];
  const ssize_t size = pread(fd, buffer, sizeof(buffer), 0);
  const std::string text(buffer, size > 0 ? static_cast<size_t>(size) : 0);
  const size_t end = text.find('\n');
  if (end == std::string::npos) return {};
  return {text.substr(0, end), text.substr(end + 1, text.find('\n', end + 1) - end - 1)};
}

absl::Status Used(const std::string& dir, const std::string& user) {
  return absl::FailedPreconditionError(absl::StrCat("checkpoint.dir ", dir, " is used by ",
                                                    user.empty() ? "another job" : user,
                                                    ": wait for it, or give another checkpoint.dir"));
}

// Who holds the lock alone, if anybody does.
std::optional<User> AloneUser(const std::string& dir) {
  const int fd = open(LockFile(dir).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return std::nullopt;
  struct flock lock = WholeFile(F_RDLCK);
  const bool is_used = fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  User user = ReadUser(fd);
  close(fd);
  if (!is_used) return std::nullopt;
  return user;
}

// Best effort: the lock is what counts.
void WriteUser(int fd, const std::string& text) {
  if (ftruncate(fd, 0) == 0) (void)!pwrite(fd, text.data(), text.size(), 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<FolderLock>> FolderLock::Take(const std::string& dir, Kind kind,
                                                             const std::string& user) {
  char host[256] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) host[0] = 0;
  const std::string whole = absl::StrCat(user, " (pid ", getpid(), " on ", host, ")");
  int fd = open(LockFile(dir).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (fd >= 0) {
    struct flock lock = WholeFile(kind == Kind::kAlone ? F_WRLCK : F_RDLCK);
    if (fcntl(fd, F_OFD_SETLK, &lock) == 0) {
      WriteUser(fd, absl::StrCat(whole, "\n"));
    } else {
      const bool is_used = errno == EAGAIN || errno == EACCES;
      const std::string other = ReadUser(fd).name;
      close(fd);
      if (is_used) return Used(dir, other);
      fd = -1;
    }
  }
  return std::unique_ptr<FolderLock>(new FolderLock(fd, whole));
}

absl::Status FolderLock::Check(const std::string& dir, const std::string& coordinator) {
  const std::optional<User> user = AloneUser(dir);
  if (!user.has_value() || (!user->coordinator.empty() && user->coordinator == coordinator)) return absl::OkStatus();
  return Used(dir, user->name);
}

bool FolderLock::IsFor(const std::string& dir, const std::string& coordinator) {
  const std::optional<User> user = AloneUser(dir);
  return user.has_value() && !coordinator.empty() && user->coordinator == coordinator;
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) close(fd_);
}

void FolderLock::SetCoordinator(const std::string& address) {
  if (fd_ >= 0) WriteUser(fd_, absl::StrCat(user_, "\n", address, "\n"));
}

}  // namespace tacc
