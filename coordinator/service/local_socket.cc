#include "coordinator/service/local_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "machine/unix_socket.h"

namespace tacc::coordinator {
namespace {

constexpr char kInUse[] = "another coordinator listens there; stop it, or choose another with --listen";

absl::Status Problem(const std::string& what) { return absl::FailedPreconditionError(what); }

sockaddr_un SocketAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// Whether a process listens on the socket at this path.
bool IsTaken(const std::string& path) {
  const sockaddr_un address = SocketAddress(path);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return true;
  // EAGAIN: it does, and has more connections than it can take now.
  const bool is_taken = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
                        (errno != ECONNREFUSED && errno != ENOENT);
  close(fd);
  return is_taken;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalSocket>> LocalSocket::Listen(const std::string& path, int backlog) {
  absl::Status status = MakePrivateFolder(std::filesystem::path(path).parent_path().string());
  if (!status.ok()) return status;
  std::unique_ptr<LocalSocket> socket(new LocalSocket(path));
  status = socket->TakeLock();
  if (status.ok()) status = socket->RemoveLeft();
  if (status.ok()) status = socket->Bind(backlog);
  if (!status.ok()) return status;
  return socket;
}

LocalSocket::~LocalSocket() {
  if (fd_ >= 0) {
    unlink(path_.c_str());
    close(fd_);
  }
  if (lock_ >= 0) close(lock_);
}

absl::Status LocalSocket::TakeLock() {
  const std::string file = absl::StrCat(path_, ".lock");
  lock_ = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0) return Problem(absl::StrCat("cannot write ", file, ": ", strerror(errno)));
  if (flock(lock_, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  return Problem(errno == EWOULDBLOCK ? kInUse : absl::StrCat("cannot lock ", file, ": ", strerror(errno)));
}

absl::Status LocalSocket::RemoveLeft() {
  struct stat info;
  if (lstat(path_.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : Problem(strerror(errno));
  }
  if (!S_ISSOCK(info.st_mode)) return Problem("what is there is no socket; remove it, or choose another with --listen");
  if (IsTaken(path_)) return Problem(kInUse);
  return unlink(path_.c_str()) == 0 ? absl::OkStatus() : Problem(absl::StrCat("cannot replace it: ", strerror(errno)));
}

absl::Status LocalSocket::Bind(int backlog) {
  const sockaddr_un address = SocketAddress(path_);
  fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  // Nobody connects before it listens, whatever the umask.
  if (fd_ >= 0 && bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      chmod(path_.c_str(), 0600) == 0 && listen(fd_, backlog) == 0)
    return absl::OkStatus();
  return Problem(strerror(errno));
}

}  // namespace tacc::coordinator
