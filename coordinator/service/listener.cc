#include "coordinator/service/listener.h"

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
  const auto fail = [&address](const std::string& why) {
    return absl::FailedPreconditionError(absl::StrCat("cannot listen on ", address, ": ", why));
  };
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 || port > 65535)
    return fail("give HOST:PORT, the port at most 65535");
  const std::string host = address.substr(0, colon);
  absl::string_view name = host;
  if (absl::ConsumePrefix(&name, "[")) absl::ConsumeSuffix(&name, "]");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(std::string(name).c_str(), nullptr, &hints, &list); error != 0)
    return fail(gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> found(list, freeaddrinfo);

  std::unique_ptr<Listener> listener(new Listener());
  listener->end_ = eventfd(0, EFD_CLOEXEC);
  if (listener->end_ < 0) return fail(strerror(errno));
  int missing = EADDRNOTAVAIL;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    const int fd = ListenOn(*one, port);
    if (fd >= 0) {
      listener->sockets_.push_back(fd);
      port = PortOf(fd);
    } else if (errno == EADDRINUSE) {
      return fail("is the port in use by another coordinator? Choose another with --listen");
    } else if (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL) {
      missing = errno;  // A name may stand for addresses of a family that this machine does not have.
    } else {
      return fail(strerror(errno));
    }
  }
  if (listener->sockets_.empty()) return fail(strerror(missing));
  listener->address_ = absl::StrCat(host, ":", port);
  return listener;
}

Listener::~Listener() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    if (write(end_, &one, sizeof(one)) < 0) std::abort();  // Our own eventfd.
    thread_.join();
  }
  for (const int fd : sockets_) close(fd);
  if (end_ >= 0) close(end_);
}

void Listener::Start(int max_descriptor, std::function<void(int, int)> take) {
  max_descriptor_ = max_descriptor;
  take_ = std::move(take);
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
    const double now = SteadySeconds();
    const bool silent = last_said_ == 0 || now - last_said_ >= kSaySeconds;
    if (silent && (!status.ok() || num_refused_ > 0)) {
      last_said_ = now;
      if (!status.ok()) {
        spdlog::error("{}: cannot take connections now: {}; trying again", address_, std::string(status.message()));
      } else {
        spdlog::error(
            "{}: {} connections refused: this process may open only so many files (ulimit -n), and {} are for "
            "connections",
            address_, num_refused_, max_descriptor_);
      }
      num_refused_ = 0;
    }
    if (!status.ok() && WaitForEnd(kPauseMilliseconds)) return;
  }
}

absl::Status Listener::AcceptAll(int listener) {
  while (true) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= max_descriptor_) {
      // The lowest free number is taken: all below are in use.
      close(fd);
      ++num_refused_;
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
