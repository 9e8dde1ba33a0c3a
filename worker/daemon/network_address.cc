#include "worker/daemon/network_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tacc::worker {

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

bool IsLoopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
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

}  // namespace tacc::worker
