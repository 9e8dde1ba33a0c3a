// Who is at the other end of this process's TCP connections, where that is this machine.
#ifndef TACC_MACHINE_TCP_PEERS_H_
#define TACC_MACHINE_TCP_PEERS_H_

#include <sys/types.h>

#include <set>

#include "absl/status/statusor.h"

namespace tacc {

// The users whose processes have the other ends, those that wait to be accepted by this process left out. TCP has no
// SO_PEERCRED: the kernel's tables of all sockets say it. Internal: they cannot be read.
absl::StatusOr<std::set<uid_t>> TcpPeerUsers();

}  // namespace tacc

#endif  // TACC_MACHINE_TCP_PEERS_H_
