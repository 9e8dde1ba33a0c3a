#include "confinement/open_beneath.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <vector>

#include "absl/strings/str_split.h"

namespace tacc {
namespace {

constexpr int kFlags = O_PATH | O_CLOEXEC;
// A path with `..` is not resolved while somebody renames folders on its way.
constexpr int kMaxTries = 100;

int OpenAt2(int root, const char* path, Links links) {
  open_how how = {};
  how.flags = kFlags;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | (links == Links::kNone ? RESOLVE_NO_SYMLINKS : 0);
  int fd = -1;
  for (int i = 0; i < kMaxTries; ++i) {
    fd = static_cast<int>(syscall(SYS_openat2, root, path, &how, sizeof(how)));
    if (fd >= 0 || (errno != EAGAIN && errno != EINTR)) break;
  }
  return fd;
}

Descriptor FindByName(int root, const std::string& path) {
  Descriptor at(openat(root, ".", kFlags | O_DIRECTORY));
  for (const absl::string_view name : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    if (!at.is_open()) return at;
    if (name == ".") continue;
    if (name == "..") {
      errno = EXDEV;
      return Descriptor();
    }
    at = Descriptor(openat(at.get(), std::string(name).c_str(), kFlags | O_NOFOLLOW));
    struct stat info = {};
    if (at.is_open() && (fstat(at.get(), &info) != 0 || S_ISLNK(info.st_mode))) {
      errno = ELOOP;
      return Descriptor();
    }
  }
  return at;
}

}  // namespace

Descriptor FindBeneath(int root, const std::string& path, Links links, Resolver resolver) {
  const std::string relative = path.empty() ? "." : path;
  return resolver == Resolver::kKernel ? Descriptor(OpenAt2(root, relative.c_str(), links))
                                       : FindByName(root, relative);
}

Resolver BestResolver() {
  // A container's filter of system calls may refuse it with EPERM.
  static const bool has_openat2 =
      Descriptor(OpenAt2(AT_FDCWD, ".", Links::kNone)).is_open() || (errno != ENOSYS && errno != EPERM);
  return has_openat2 ? Resolver::kKernel : Resolver::kByName;
}

}  // namespace tacc
