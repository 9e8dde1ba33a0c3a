// The Unix socket of a coordinator that serves this user on this machine alone.
#ifndef TACC_CLIENT_TACCCTL_LOCAL_SOCKET_ADDRESS_H_
#define TACC_CLIENT_TACCCTL_LOCAL_SOCKET_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"

namespace tacc::client {

// unix:PATH with a path in `directory`, which is this user's alone; where that is too long for a socket, or has
// characters that a socket's address may not have, in a new folder /tmp/tacc-socket-XXXXXX of mode 0700. Internal: that
// cannot be made.
absl::StatusOr<std::string> NewSocketAddress(const std::string& directory);

// Removes the folder that NewSocketAddress has made for this address, if it made one.
void RemoveSocketFolder(const std::string& address);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_LOCAL_SOCKET_ADDRESS_H_
