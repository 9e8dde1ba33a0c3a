#include "worker/rank/session/client_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "machine/unix_socket.h"

namespace tacc::worker {

int ListenLocally(const std::string& name, int backlog) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // An abstract one comes after a zero.
  char* const begin = address.sun_path + (absl::StartsWith(name, "/") ? 0 : 1);
  std::memcpy(begin, name.data(), name.size());
  const socklen_t size = begin - reinterpret_cast<char*>(&address) + name.size();
  const bool has_mode = begin == address.sun_path;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0 || (bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                 (!has_mode || chmod(name.c_str(), 0600) == 0) && listen(fd, backlog) == 0))
    return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

bool IsOwn(int fd) {
  const absl::optional<uid_t> user = PeerUser(fd);
  return user.has_value() && IsOwnUser(*user);
}

void KeepAlive(int fd) {
  struct Option {
    int level, name, value;
  };
  // An idle connection is asked three times; what was sent and not acknowledged is waited for as long in all.
  constexpr Option kOptions[] = {{IPPROTO_TCP, TCP_NODELAY, 1},   {SOL_SOCKET, SO_KEEPALIVE, 1},
                                 {IPPROTO_TCP, TCP_KEEPIDLE, 30}, {IPPROTO_TCP, TCP_KEEPINTVL, 10},
                                 {IPPROTO_TCP, TCP_KEEPCNT, 3},   {IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000}};
  for (const Option& option : kOptions)
    (void)setsockopt(fd, option.level, option.name, &option.value, sizeof(option.value));
}

void GivenDescriptor::Close() {
  if (fd >= 0) close(fd);
  fd = -1;
}

ssize_t Receive(int fd, absl::Span<char> space, GivenDescriptor* given) {
  iovec part = {space.data(), space.size()};
  // The kernel gives as many as have room here, be they wanted or not, and closes the rest.
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t count = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  if (count < 0) return count;
  if (given != nullptr && (message.msg_flags & MSG_CTRUNC) != 0) given->is_unclear = true;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + sizeof(int) <= header->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int came = -1;
      std::memcpy(&came, CMSG_DATA(header) + at, sizeof(int));
      if (given != nullptr && given->fd < 0) {
        given->fd = came;
        continue;
      }
      if (given != nullptr) given->is_unclear = true;
      close(came);
    }
  }
  return count;
}

}  // namespace tacc::worker
