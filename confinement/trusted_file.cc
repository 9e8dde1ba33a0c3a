#include "confinement/trusted_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "confinement/allowed_paths.h"
#include "machine/descriptor.h"

namespace tacc {
namespace {

constexpr char kSoThat[] = ", so that others than root and this user choose what code runs";

// Whether others than root and this user own what is there, and whether they may write there. In a folder with the
// sticky bit nobody else can take away a name.
absl::Status CheckOwner(const std::string& path, const struct stat& info) {
  if (info.st_uid == 0 || info.st_uid == geteuid()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(QuotedPath(path), ": belongs to user ", info.st_uid,
                                                 "; give it to root or to user ", geteuid(), kSoThat));
}
bool MayOthersWrite(const struct stat& info) {
  const bool is_sticky = S_ISDIR(info.st_mode) && (info.st_mode & S_ISVTX) != 0;
  return (info.st_mode & (S_IWGRP | S_IWOTH)) != 0 && !is_sticky;
}

}  // namespace

absl::StatusOr<std::string> TrustedFile(const std::string& path) {
  if (absl::Status status = CheckPathText(path); !status.ok()) return status;
  const auto cannot = [&path](const char* what) {
    return absl::InvalidArgumentError(absl::StrCat(QuotedPath(path), ": ", what, ": ", strerror(errno)));
  };
  const std::unique_ptr<char, decltype(&free)> real(realpath(path.c_str(), nullptr), &free);
  if (real == nullptr) return cannot("cannot be found");
  const std::string file = real.get();
  struct stat info = {};
  std::vector<std::string> writable;  // By others: all of them, for one chmod.
  for (size_t end = 0; end != std::string::npos; end = file.find('/', end + 1)) {
    const std::string folder = end == 0 ? "/" : file.substr(0, end);
    if (stat(folder.c_str(), &info) != 0) return cannot("cannot be looked at");
    if (absl::Status status = CheckOwner(folder, info); !status.ok()) return status;
    if (MayOthersWrite(info)) writable.push_back(folder);
  }
  if (stat(file.c_str(), &info) != 0) return cannot("cannot be looked at");
  if (!S_ISREG(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(QuotedPath(path), ": not a regular file, as a library is one"));
  if (absl::Status status = CheckOwner(file, info); !status.ok()) return status;
  if (MayOthersWrite(info)) writable.push_back(file);
  if (!writable.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(QuotedPath(writable.front()),
                                                   ": its group or everybody may write there; run chmod go-w ",
                                                   absl::StrJoin(writable, " "), kSoThat));
  }
  if (!Descriptor(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)).is_open()) return cannot("cannot be read");
  return file;
}

}  // namespace tacc
