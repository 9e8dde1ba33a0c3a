#include "machine/tcp_peers.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace tacc {
namespace {

// Local and remote address, as the kernel writes them.
using Ends = std::pair<std::string, std::string>;
struct Socket {
  uid_t user = 0;
  std::string inode;
};
constexpr char kOrphan[] = "0";  // Inode of a socket that no process has any more.

// All TCP sockets of this machine that have another end.
absl::Status ReadTable(const std::string& path, std::map<Ends, Socket>* sockets) {
  // Number, local, remote, state, queues, timer, retransmissions, user, timeout, inode.
  constexpr size_t kLocal = 1, kRemote = 2, kState = 3, kUser = 7, kInode = 9;
  constexpr absl::string_view kListens = "0A";
  std::ifstream table(path);
  if (!table) return absl::InternalError(absl::StrCat("cannot read ", path));
  std::string line;
  std::getline(table, line);  // Names of the columns.
  while (std::getline(table, line)) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    Socket socket;
    if (words.size() <= kInode || words[kState] == kListens || !absl::SimpleAtoi(words[kUser], &socket.user)) continue;
    socket.inode = words[kInode];
    (*sockets)[{words[kLocal], words[kRemote]}] = std::move(socket);
  }
  return absl::OkStatus();
}

// Inodes of the sockets that this process has open.
std::set<std::string> OwnSockets() {
  std::set<std::string> inodes;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const std::string link = std::filesystem::read_symlink(entry.path(), ignored).string();
    absl::string_view inode = link;
    if (absl::ConsumePrefix(&inode, "socket:[") && absl::ConsumeSuffix(&inode, "]")) inodes.emplace(inode);
  }
  return inodes;
}

}  // namespace

absl::StatusOr<std::set<uid_t>> TcpPeerUsers() {
  std::map<Ends, Socket> sockets;
  if (absl::Status status = ReadTable("/proc/self/net/tcp", &sockets); !status.ok()) return status;
  // Not there on a machine without IPv6.
  if (const std::string v6 = "/proc/self/net/tcp6"; std::filesystem::exists(v6)) {
    if (absl::Status status = ReadTable(v6, &sockets); !status.ok()) return status;
  }
  const std::set<std::string> own = OwnSockets();
  std::set<uid_t> users;
  for (const auto& [ends, socket] : sockets) {
    if (own.count(socket.inode) == 0) continue;
    const auto other = sockets.find({ends.second, ends.first});
    if (other != sockets.end() && other->second.inode != kOrphan) users.insert(other->second.user);
  }
  return users;
}

}  // namespace tacc
