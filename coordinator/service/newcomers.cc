#include "coordinator/service/newcomers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "machine/clock.h"

namespace tacc::coordinator {
namespace {

constexpr double kBoundSeconds = 0.01;

struct Received {
  int64_t bytes = -1;        // As BytesReceived.
  bool is_complete = false;  // The other end sends no more.
};

Received ReceivedBy(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  constexpr uint8_t kClosed = 7, kOtherEndClosed = 8;  // TCP_CLOSE, TCP_CLOSE_WAIT, which only netinet/tcp.h names.
  if (info.tcpi_state == kClosed) return {};
  return {static_cast<int64_t>(info.tcpi_bytes_received), info.tcpi_state == kOtherEndClosed};
}

}  // namespace

std::string AddressOfPeer(absl::string_view peer) {
  absl::ConsumePrefix(&peer, "ipv4:");
  absl::ConsumePrefix(&peer, "ipv6:");
  std::string address = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  const size_t scope = address.find('%');
  if (scope != std::string::npos) address.erase(scope, address.find(']', scope) - scope);
  return address;
}

std::string AddressOfOtherEnd(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(&address);
    inet_ntop(AF_INET, &in->sin_addr, text, sizeof(text));
    return absl::StrCat(text, ":", ntohs(in->sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  const auto* in = reinterpret_cast<const sockaddr_in6*>(&address);
  if (IN6_IS_ADDR_V4MAPPED(&in->sin6_addr)) {
    inet_ntop(AF_INET, &in->sin6_addr.s6_addr[12], text, sizeof(text));
    return absl::StrCat(text, ":", ntohs(in->sin6_port));
  }
  inet_ntop(AF_INET6, &in->sin6_addr, text, sizeof(text));
  return absl::StrCat("[", text, "]:", ntohs(in->sin6_port));
}

void EndConnection(int fd) {
  shutdown(fd, SHUT_RDWR);
  while (recv(fd, nullptr, INT_MAX, MSG_TRUNC | MSG_DONTWAIT) > 0) {
  }
}

int64_t BytesReceived(int fd) { return ReceivedBy(fd).bytes; }

Newcomers::Newcomers(Limits limits, std::function<void(int, int)> take)
    : limits_(limits),
      take_(std::move(take)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = wake_;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) != 0) std::abort();  // No descriptor is left at the start.
  thread_ = std::thread([this] { Run(); });
}

Newcomers::~Newcomers() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  Wake();
  thread_.join();
  for (const Newcomer& one : silent_) close(one.fd);
  for (const Newcomer& one : speaking_) close(one.fd);
  close(epoll_);
  close(wake_);
}

void Newcomers::Wake() {
  const uint64_t one = 1;
  if (write(wake_, &one, sizeof(one)) < 0 && errno != EAGAIN) std::abort();  // Our own eventfd.
}

void Newcomers::Arrive(int listener_fd, int fd) {
  bool first = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP;
    event.data.fd = fd;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
      close(fd);
      return;
    }
    first = silent_.empty();
    silent_.push_back({listener_fd, fd, SteadySeconds(), AddressOfOtherEnd(fd), -1});
    silent_by_fd_[fd] = std::prev(silent_.end());
  }
  if (first) Wake();  // It may sleep without an end.
}

bool Newcomers::MakeRoom() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (silent_.empty()) return false;
  close(TakeSilent(silent_.begin()).fd);
  return true;
}

Newcomers::Newcomer Newcomers::TakeSilent(std::list<Newcomer>::iterator one) {
  Newcomer taken = std::move(*one);
  silent_by_fd_.erase(taken.fd);
  silent_.erase(one);
  return taken;
}

int Newcomers::Greet(absl::string_view peer) {
  const std::string address = AddressOfPeer(peer);
  std::lock_guard<std::mutex> lock(mutex_);
  // The newest: another one may have had that port before.
  const auto reversed = std::find_if(speaking_.rbegin(), speaking_.rend(),
                                     [&address](const Newcomer& one) { return one.address == address; });
  if (reversed == speaking_.rend()) return -1;
  const auto found = std::prev(reversed.base());
  const int taken = found->taken;
  close(found->fd);
  speaking_.erase(found);
  return taken;
}

void Newcomers::Hear(int fd) {
  Newcomer one;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = silent_by_fd_.find(fd);
    if (found == silent_by_fd_.end()) return;  // It was closed meanwhile.
    one = TakeSilent(found->second);
    epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
    char byte = 0;
    const bool has_spoken = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
    const int watched = has_spoken ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (watched < 0) {
      close(fd);
      return;
    }
    speaking_.push_back({one.listener_fd, watched, one.since, one.address, fd});
    if (speaking_.size() > limits_.max_speaking) Drop(speaking_.begin());
  }
  take_(one.listener_fd, fd);
}

std::list<Newcomers::Newcomer>::iterator Newcomers::Drop(std::list<Newcomer>::iterator one) {
  EndConnection(one->fd);  // gRPC, which has it, then closes it.
  close(one->fd);
  return speaking_.erase(one);
}

double Newcomers::Bound(double now) {
  std::lock_guard<std::mutex> lock(mutex_);
  while (!silent_.empty() && now - silent_.front().since > limits_.seconds) close(TakeSilent(silent_.begin()).fd);
  bool has_large = false;
  for (auto one = speaking_.begin(); one != speaking_.end();) {
    const auto [bytes, is_complete] = ReceivedBy(one->fd);
    const bool is_large = bytes > limits_.bytes && !is_complete;
    if (bytes < 0 || bytes > (has_large ? limits_.bytes : limits_.large_bytes) || now - one->since > limits_.seconds) {
      one = Drop(one);
    } else {
      has_large = has_large || is_large;
      ++one;
    }
  }
  if (!speaking_.empty()) return kBoundSeconds;
  if (!silent_.empty()) return std::max(0.0, silent_.front().since + limits_.seconds - now) + kBoundSeconds;
  return -1;
}

void Newcomers::Run() {
  epoll_event events[64];
  double pause = -1;
  while (true) {
    const int num_events = epoll_wait(epoll_, events, 64, pause < 0 ? -1 : static_cast<int>(pause * 1000) + 1);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (ending_) return;
    }
    for (int i = 0; i < num_events; ++i) {
      uint64_t ignored = 0;
      if (events[i].data.fd != wake_) {
        Hear(events[i].data.fd);
      } else if (read(wake_, &ignored, sizeof(ignored)) < 0 && errno != EAGAIN) {
        std::abort();  // Our own eventfd.
      }
    }
    pause = Bound(SteadySeconds());
  }
}

}  // namespace tacc::coordinator
