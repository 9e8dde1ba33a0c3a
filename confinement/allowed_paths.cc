#include "confinement/allowed_paths.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "confinement/open_beneath.h"
#include "machine/descriptor.h"

namespace tacc {
namespace {

constexpr size_t kMaxQuotedBytes = 200;
constexpr size_t kMaxPathBytes = PATH_MAX - 1;

// As of files that may be there later: NotFound, PermissionDenied, or Unavailable.
absl::Status Outage(int error, const std::string& what) {
  const std::string message = absl::StrCat(what, ": ", strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
  return absl::UnavailableError(message);
}

std::vector<std::string> Names(const std::string& path) { return absl::StrSplit(path, '/', absl::SkipEmpty()); }

// What follows `root` in `path`, both absolute; nothing if it is not below it by its names.
std::optional<std::string> RestBelow(const std::string& root, const std::string& path) {
  const std::vector<std::string> above = Names(root), names = Names(path);
  if (names.size() < above.size() || !std::equal(above.begin(), above.end(), names.begin())) return std::nullopt;
  return absl::StrJoin(names.begin() + static_cast<ptrdiff_t>(above.size()), names.end(), "/");
}

// As above; the root may be named by its own links or without them.
std::optional<std::string> RestBelowEither(const std::string& root, const std::string& path) {
  std::optional<std::string> rest = RestBelow(root, path);
  std::error_code error;
  if (!rest.has_value()) {
    const std::string real = std::filesystem::canonical(root, error).string();
    if (!error) rest = RestBelow(real, path);
  }
  return rest;
}

// Takes its last name from a path.
std::string TakeLast(std::string* path) {
  const size_t slash = path->rfind('/');
  std::string last = slash == std::string::npos ? *path : path->substr(slash + 1);
  path->resize(slash == std::string::npos ? 0 : slash);
  return last;
}

}  // namespace

std::string QuotedPath(const std::string& path) {
  size_t end = std::min(path.size(), kMaxQuotedBytes);
  while (end < path.size() && end > 0 && (static_cast<unsigned char>(path[end]) & 0xC0) == 0x80) --end;
  const std::string more = end < path.size() ? absl::StrCat("... (", path.size(), " bytes)") : "";
  return absl::StrCat("\"", absl::Utf8SafeCHexEscape(path.substr(0, end)), "\"", more);
}

absl::Status CheckPathText(const std::string& path) {
  const auto wrong = [&path](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(QuotedPath(path), ": ", what));
  };
  if (path.empty() || path[0] != '/') return wrong("not an absolute path");
  if (path.size() > kMaxPathBytes)
    return wrong(absl::StrCat("longer than the ", kMaxPathBytes, " bytes that a path may have"));
  for (const char c : path) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c)))
      return wrong("has a control character, such as a newline; give the file another name");
  }
  for (const std::string& name : Names(path)) {
    if (name.size() > NAME_MAX) return wrong(absl::StrCat("has a name of more than ", NAME_MAX, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status AllowedPaths::Refused(const std::string& path, const std::string& why) const {
  return absl::InvalidArgumentError(
      absl::StrCat(QuotedPath(path), ": ", why, "; files of jobs must be in ", absl::StrJoin(roots_, " or "),
                   " here (--allow-path): put it there, or ask whoever runs this service to allow another folder"));
}

absl::Status AllowedPaths::CheckBeneath(const std::string& root, const std::string& path, const std::string& rest,
                                        Use use) const {
  const Descriptor folder(open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open()) return Outage(errno, absl::StrCat(root, " (--allow-path): cannot be opened"));
  const Links links = use == Use::kWrite ? Links::kNone : Links::kBeneath;
  Descriptor found;
  bool is_there = true;
  for (std::string left = rest;; is_there = false) {
    found = FindBeneath(folder.get(), left, links, BestResolver());
    if (found.is_open() || errno != ENOENT || left.empty()) break;
    // A name that comes after one that is not there says nothing yet, unless it leads up again.
    if (TakeLast(&left) == "..") {
      errno = EXDEV;
      break;
    }
  }
  if (!found.is_open()) {
    if (errno == EXDEV && use == Use::kRead)
      return Refused(path,
                     "a symbolic link, or .., in it leads out of the folder that is allowed (a link with an "
                     "absolute path counts as such)");
    if (errno == EXDEV || errno == ELOOP) return Refused(path, "it leads through a symbolic link, or out by ..");
    if (errno == ENOTDIR) return absl::InvalidArgumentError(absl::StrCat(QuotedPath(path), ": a part of it is a file"));
    return Outage(errno, absl::StrCat(QuotedPath(path), ": cannot be looked at"));
  }
  struct stat info = {};
  if (fstat(found.get(), &info) != 0) return Outage(errno, QuotedPath(path));
  if (S_ISDIR(info.st_mode) || (is_there && S_ISREG(info.st_mode))) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(QuotedPath(path), is_there ? ": neither a file nor a folder, but a pipe, a socket or a device"
                                              : ": a part of it is a file"));
}

absl::Status AllowedPaths::Check(const std::string& path, Use use) const {
  if (absl::Status status = CheckPathText(path); !status.ok() || !IsLimited()) return status;
  std::vector<std::string> roots = roots_;
  if (use == Use::kRead) roots.insert(roots.end(), read_roots_.begin(), read_roots_.end());
  absl::Status status = Refused(path, "not in a folder that is allowed");
  // Of roots within roots one suffices.
  for (const std::string& root : roots) {
    const std::optional<std::string> rest = RestBelowEither(root, path);
    if (!rest.has_value()) continue;
    status = CheckBeneath(root, path, *rest, use);
    if (status.ok()) return status;
  }
  return status;
}

absl::StatusOr<std::vector<std::string>> RootsOfFlag(const std::string& flag, const std::vector<std::string>& values) {
  std::vector<std::string> roots;
  for (const std::string& value : values) {
    std::error_code error;
    const std::filesystem::path root = std::filesystem::absolute(value, error);
    if (error || !std::filesystem::is_directory(root, error)) {
      return absl::InvalidArgumentError(absl::StrCat(flag, " ", QuotedPath(value), ": not a folder",
                                                     error ? absl::StrCat(": ", error.message()) : ""));
    }
    roots.push_back(absl::StrCat("/", absl::StrJoin(Names(root.lexically_normal().string()), "/")));
  }
  return roots;
}

}  // namespace tacc
