#include "machine/unix_socket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace tacc {
namespace {

constexpr absl::string_view kScheme = "unix:";
constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;

bool IsPlain(unsigned char c) {
  return absl::ascii_isalnum(c) || absl::StrContains("/._~+@-", absl::string_view(reinterpret_cast<char*>(&c), 1));
}

}  // namespace

bool IsUnixAddress(absl::string_view address) { return absl::StartsWith(address, kScheme); }

std::string UnixAddress(absl::string_view path) { return absl::StrCat(kScheme, path); }

absl::StatusOr<std::string> UnixSocketPath(absl::string_view address) {
  absl::string_view path = address;
  if (!absl::ConsumePrefix(&path, kScheme) || !absl::StartsWith(path, "/") || absl::EndsWith(path, "/"))
    return absl::InvalidArgumentError(absl::StrCat("\"", address, "\" is not unix:/PATH, with a whole path"));
  if (path.size() > kMaxPathBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the path of ", address, " has ", path.size(),
                                                   " bytes; that of a socket may have ", kMaxPathBytes,
                                                   ": give a shorter one"));
  }
  if (!std::all_of(path.begin(), path.end(), IsPlain)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the path of ", address, " has other characters than letters, digits and /._~+@-; give another"));
  }
  return std::string(path);
}

absl::Status MakePrivateFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return absl::FailedPreconditionError(absl::StrCat("cannot make the folder ", path, ": ", strerror(errno)));
  struct stat info;
  // Its user could have it lead elsewhere later.
  if (lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode) && !IsOwnUser(info.st_uid)) {
    return absl::FailedPreconditionError(
        absl::StrCat("folder ", path, " is a symbolic link of user ", info.st_uid, "; take another"));
  }
  if (stat(path.c_str(), &info) != 0)
    return absl::FailedPreconditionError(absl::StrCat("folder ", path, ": ", strerror(errno)));
  if (!S_ISDIR(info.st_mode)) return absl::FailedPreconditionError(absl::StrCat(path, " is not a folder"));
  if (info.st_uid != geteuid()) {
    return absl::FailedPreconditionError(
        absl::StrCat("folder ", path, " belongs to user ", info.st_uid, ", not to ", geteuid(), "; take another"));
  }
  if ((info.st_mode & 077) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("folder %s can be entered by other users (mode %04o); `chmod 700` it, or take another", path,
                      info.st_mode & 07777));
}

absl::optional<uid_t> PeerUser(int fd) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return absl::nullopt;
  return peer.uid;
}

bool IsOwnUser(uid_t user) { return user == geteuid() || user == 0; }

}  // namespace tacc
