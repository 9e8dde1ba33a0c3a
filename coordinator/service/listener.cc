#include "coordinator/service/listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "machine/clock.h"
#include "machine/unix_socket.h"
#include "spdlog/spdlog.h"

namespace tacc::coordinator {
namespace {

constexpr int kBacklog = 4096;
// Of what a connection sends, so long may nothing be acknowledged; accepted sockets inherit it.
constexpr int kSilenceMilliseconds = 20000;
// After an accept that failed, and would fail again at once.
constexpr int kPauseMilliseconds = 100;
constexpr double kSaySeconds = 10;

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

// A socket that listens there, or -1 with errno.
int ListenOn(const addrinfo& found, int port) {
  sockaddr_storage address{};
  memcpy(&address, found.ai_addr, found.ai_addrlen);
  (found.ai_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                               : reinterpret_cast<sockaddr_in*>(&address)->sin_port) = htons(port);
  const int fd = socket(found.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  // Ports of a coordinator that has just ended can be taken, but not of one that runs.
  const int one = 1, zero = 0, silence = kSilenceMilliseconds;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  // [::] is IPv4 as well, whatever the machine's net.ipv6.bindv6only.
  if (found.ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence, sizeof(silence));
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), found.ai_addrlen) == 0 && listen(fd, kBacklog) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Listen(const std::string& address) {
  std::unique_ptr<Listener> listener(new Listener());
  listener->end_ = eventfd(0, EFD_CLOEXEC);
  if (listener->end_ < 0) return Failure(address, strerror(errno));
  const absl::Status status =
      IsUnixAddress(address) ? listener->ListenOnUnixSocket(address) : listener->ListenOnPort(address);
  if (!status.ok()) return status;
  return listener;
}

absl::Status Listener::Failure(const std::string& address, const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat("cannot listen on ", address, ": ", why));
}

absl::Status Listener::ListenOnUnixSocket(const std::string& address) {
  const absl::StatusOr<std::string> path = UnixSocketPath(address);
  if (!path.ok()) return Failure(address, std::string(path.status().message()));
  absl::StatusOr<std::unique_ptr<LocalSocket>> local = LocalSocket::Listen(*path, kBacklog);
  if (!local.ok()) return Failure(address, std::string(local.status().message()));
  local_socket_ = *std::move(local);
  sockets_.push_back(local_socket_->fd());
  address_ = address;
  return absl::OkStatus();
}

absl::Status Listener::ListenOnPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 || port > 65535)
    return Failure(address, "give HOST:PORT, the port at most 65535");
  const std::string host = address.substr(0, colon);
  absl::string_view name = host;
  if (absl::ConsumePrefix(&name, "[")) absl::ConsumeSuffix(&name, "]");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(std::string(name).c_str(), nullptr, &hints, &list); error != 0)
    return Failure(address, gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> found(list, freeaddrinfo);
  int missing = EADDRNOTAVAIL;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    const int fd = ListenOn(*one, port);
    if (fd >= 0) {
      sockets_.push_back(fd);
      port = PortOf(fd);
    } else if (errno == EADDRINUSE) {
      return Failure(address, "is the port in use by another coordinator? Choose another with --listen");
    } else if (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL) {
      missing = errno;  // A name may stand for addresses of a family that this machine does not have.
    } else {
      return Failure(address, strerror(errno));
    }
  }
  if (sockets_.empty()) return Failure(address, strerror(missing));
  address_ = absl::StrCat(host, ":", port);
  return absl::OkStatus();
}

Listener::~Listener() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    if (write(end_, &one, sizeof(one)) < 0) std::abort();  // Our own eventfd.
    thread_.join();
  }
  if (local_socket_ == nullptr) {
    for (const int fd : sockets_) close(fd);
  }
  if (end_ >= 0) close(end_);
}

void Listener::Start(int max_descriptor, std::function<void(int, int)> take, std::function<bool()> make_room) {
  max_descriptor_ = max_descriptor;
  take_ = std::move(take);
  make_room_ = std::move(make_room);
  thread_ = std::thread([this] { Run(); });
}

bool Listener::WaitForEnd(int milliseconds) const {
  pollfd end = {end_, POLLIN, 0};
  return poll(&end, 1, milliseconds) > 0;
}

void Listener::Run() {
  std::vector<pollfd> descriptors;
  for (const int fd : sockets_) descriptors.push_back({fd, POLLIN, 0});
  while (!WaitForEnd(0)) {
    descriptors.push_back({end_, POLLIN, 0});
    poll(descriptors.data(), descriptors.size(), -1);
    descriptors.pop_back();
    absl::Status status;
    for (const int fd : sockets_) status.Update(AcceptAll(fd));
    SayTroubles(status);
    if (!status.ok() && WaitForEnd(kPauseMilliseconds)) return;
  }
}

void Listener::SayTroubles(const absl::Status& accepted) {
  if (accepted.ok() && num_refused_ == 0 && num_strangers_ == 0) return;
  const double now = SteadySeconds();
  if (last_said_ != 0 && now - last_said_ < kSaySeconds) return;
  last_said_ = now;
  if (!accepted.ok())
    spdlog::error("{}: cannot take connections now: {}; trying again", address_, std::string(accepted.message()));
  if (accepted.ok() && num_refused_ > 0) {
    spdlog::error(
        "{}: {} connections refused: this process may open only so many files (ulimit -n), and {} are for connections",
        address_, num_refused_, max_descriptor_);
  }
  if (num_strangers_ > 0) {
    spdlog::warn("{}: {} connections of other users refused, the last of {}", address_, num_strangers_, last_stranger_);
  }
  num_refused_ = num_strangers_ = 0;
}

bool Listener::IsWelcome(int fd) {
  const absl::optional<uid_t> user = PeerUser(fd);
  if (user.has_value() && IsOwnUser(*user)) return true;
  last_stranger_ = user.has_value() ? absl::StrCat("user ", *user) : "an unknown user";
  ++num_strangers_;
  return false;
}

absl::Status Listener::AcceptAll(int listener) {
  while (true) {
    int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= max_descriptor_ && make_room_ != nullptr && make_room_()) {
      const int high = fd;
      fd = fcntl(high, F_DUPFD_CLOEXEC, 0);
      close(high);
    }
    if (fd >= max_descriptor_) {
      // The lowest free number is taken: all below are in use.
      close(fd);
      ++num_refused_;
    } else if (fd >= 0 && local_socket_ != nullptr && !IsWelcome(fd)) {
      close(fd);
    } else if (fd >= 0) {
      take_(listener, fd);
    } else if (errno == EAGAIN) {
      return absl::OkStatus();
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return absl::ErrnoToStatus(errno, "accept");
    }
  }
}

}  // namespace tacc::coordinator
