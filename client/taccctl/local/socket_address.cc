#include "client/taccctl/local/socket_address.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "machine/unix_socket.h"

namespace tacc::client {
namespace {

constexpr char kSocket[] = "/coordinator.sock";
constexpr char kFolderPrefix[] = "/tmp/tacc-socket-";

}  // namespace

absl::StatusOr<std::string> NewSocketAddress(const std::string& directory) {
  if (std::string address = UnixAddress(directory + kSocket); UnixSocketPath(address).ok()) return address;
  std::string folder = absl::StrCat(kFolderPrefix, "XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::InternalError(absl::StrCat("cannot make the folder ", folder, " for the coordinator's socket: ",
                                            strerror(errno), "; make /tmp writable, or set a shorter XDG_STATE_HOME"));
  }
  return UnixAddress(folder + kSocket);
}

void RemoveSocketFolder(const std::string& address) {
  const absl::StatusOr<std::string> path = UnixSocketPath(address);
  if (!path.ok() || !absl::StartsWith(*path, kFolderPrefix)) return;
  std::error_code ignored;
  std::filesystem::remove_all(std::filesystem::path(*path).parent_path(), ignored);
}

}  // namespace tacc::client
