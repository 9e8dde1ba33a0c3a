// HOST:PORT texts and this machine's own addresses.
#ifndef TACC_WORKER_DAEMON_NETWORK_ADDRESS_H_
#define TACC_WORKER_DAEMON_NETWORK_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"

namespace tacc::worker {

struct HostPort {
  std::string host;  // Without the brackets of IPv6.
  int port = 0;
};

// Parses "HOST:PORT" or "[IPV6]:PORT", port 0 to 65535. Errors: InvalidArgument, with what is wrong.
absl::StatusOr<HostPort> ParseHostPort(const std::string& text);

// Returns the address of this machine from which packets to `target` leave. Other machines can reach it, unlike the
// machine's host name, which many systems resolve to a loopback address. Sends nothing. Errors: Unavailable when the
// name does not resolve or there is no route.
absl::StatusOr<std::string> LocalAddressTowards(const HostPort& target);

// Returns the name of this machine's interface that has `address`, a number or a name; empty: none has.
std::string InterfaceOf(const std::string& address);

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_NETWORK_ADDRESS_H_
