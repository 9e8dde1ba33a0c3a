// For tests: moves the test into a cgroup of its own, with nothing else in it, as a service manager would.
#ifndef TACC_CONFINEMENT_TESTING_OWN_CGROUP_H_
#define TACC_CONFINEMENT_TESTING_OWN_CGROUP_H_

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tacc {

class OwnCgroup {
 public:
  OwnCgroup() {
    for (const char* mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
      struct statfs info = {};
      if (statfs(mount, &info) == 0 && info.f_type == CGROUP2_SUPER_MAGIC) mount_ = mount;
    }
    if (mount_.empty()) {
      trouble_ = "no cgroups: none of version 2 are mounted";
      return;
    }
    std::ifstream in("/proc/self/cgroup");
    for (std::string line; std::getline(in, line);) {
      if (absl::StartsWith(line, "0::/")) before_ = absl::StrCat(mount_, line.substr(3));
    }
    path_ = absl::StrCat(mount_, "/tacc-test-", getpid());
    if (mkdir(path_.c_str(), 0755) != 0 || !Enter(path_))
      trouble_ = absl::StrCat("no cgroups: cannot make ", path_, ": ", strerror(errno));
  }
  ~OwnCgroup() {
    if (!before_.empty()) (void)Enter(before_);
    if (!path_.empty()) rmdir(path_.c_str());
  }

  // Why there is none; empty: there is.
  const std::string& trouble() const { return trouble_; }
  // As trouble(), or that no limits can be set in it.
  std::string LimitTrouble() const {
    if (!trouble_.empty()) return trouble_;
    std::ifstream in(absl::StrCat(path_, "/cgroup.controllers"));
    const std::string text(std::istreambuf_iterator<char>(in), {});
    const bool has_both = absl::StrContains(text, "memory") && absl::StrContains(text, "pids");
    return has_both
               ? ""
               : absl::StrCat("no limits of cgroups: ", path_, " lacks memory or pids among its controllers: ", text);
  }
  const std::string& path() const { return path_; }

 private:
  static bool Enter(const std::string& path) {
    const int fd = open(absl::StrCat(path, "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC);
    const bool is_done = fd >= 0 && write(fd, "0", 1) == 1;
    if (fd >= 0) close(fd);
    return is_done;
  }

  std::string mount_, before_, path_, trouble_;
};

}  // namespace tacc

#endif  // TACC_CONFINEMENT_TESTING_OWN_CGROUP_H_
