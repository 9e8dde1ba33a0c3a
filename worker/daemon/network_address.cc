#include "worker/daemon/network_address.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tacc::worker {
namespace {

bool IsSameHost(const sockaddr& a, const sockaddr& b) {
  if (a.sa_family != b.sa_family) return false;
  if (a.sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(b).sin_addr.s_addr;
  }
  return a.sa_family == AF_INET6 && IN6_ARE_ADDR_EQUAL(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr,
                                                       &reinterpret_cast<const sockaddr_in6&>(b).sin6_addr);
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(const std::string& text) {
  const auto bad = [&text] {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not HOST:PORT, for example 127.0.0.1:7070"));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return bad();
  HostPort result;
  result.host = text.substr(0, colon);
  if (result.host.front() == '[' && result.host.back() == ']') {
    result.host = result.host.substr(1, result.host.size() - 2);
  } else if (absl::StrContains(result.host, ":")) {
    return bad();
  }
  const std::string port = text.substr(colon + 1);
  if (result.host.empty() || port.empty() || port.find_first_not_of("0123456789") != std::string::npos ||
      !absl::SimpleAtoi(port, &result.port) || result.port > 65535) {
    return bad();
  }
  return result;
}

absl::StatusOr<std::string> LocalAddressTowards(const HostPort& target) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(target.host.c_str(), absl::StrCat(target.port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(absl::StrCat(target.host, ": ", gai_strerror(error)));
  std::string address;
  for (const addrinfo* info = found; info != nullptr && address.empty(); info = info->ai_next) {
    const int fd = socket(info->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own = {};
    socklen_t own_bytes = sizeof(own);
    char text[NI_MAXHOST];
    // Connecting a datagram socket only looks up the route.
    if (connect(fd, info->ai_addr, info->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_bytes) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), own_bytes, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) ==
            0) {
      address = text;
    }
    close(fd);
  }
  freeaddrinfo(found);
  if (address.empty()) return absl::UnavailableError(absl::StrCat(target.host, ": no route to it"));
  return address;
}

std::string InterfaceOf(const std::string& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), nullptr, &hints, &found) != 0) return "";
  ifaddrs* interfaces = nullptr;
  std::string name;
  if (getifaddrs(&interfaces) == 0) {
    for (const addrinfo* info = found; info != nullptr && name.empty(); info = info->ai_next) {
      for (const ifaddrs* one = interfaces; one != nullptr && name.empty(); one = one->ifa_next) {
        if (one->ifa_addr != nullptr && IsSameHost(*one->ifa_addr, *info->ai_addr)) name = one->ifa_name;
      }
    }
    freeifaddrs(interfaces);
  }
  freeaddrinfo(found);
  return name;
}

}  // namespace tacc::worker
