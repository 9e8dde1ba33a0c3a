// Addresses of Unix sockets, "unix:PATH" as gRPC has them, and who is at their other end.
#ifndef TACC_MACHINE_UNIX_SOCKET_H_
#define TACC_MACHINE_UNIX_SOCKET_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace tacc {

// Whether the address is of a Unix socket, whatever its path.
bool IsUnixAddress(absl::string_view address);

std::string UnixAddress(absl::string_view path);

// The path of a Unix socket's address. InvalidArgument: it is relative, longer than the 107 bytes that a socket's may
// have, or has other characters than letters, digits and "/._~+@-", which gRPC would read otherwise.
absl::StatusOr<std::string> UnixSocketPath(absl::string_view address);

// Makes the folder, mode 0700, where it is missing. FailedPrecondition: there is one that is not this user's, or that
// others may enter, or a link of another user's; or it cannot be made.
absl::Status MakePrivateFolder(const std::string& path);

// The user of the process at the other end of a Unix socket, as it was when it connected or listened.
absl::optional<uid_t> PeerUser(int fd);

// Whether `user` may do here what this process's user may: the same, or root.
bool IsOwnUser(uid_t user);

}  // namespace tacc

#endif  // TACC_MACHINE_UNIX_SOCKET_H_
