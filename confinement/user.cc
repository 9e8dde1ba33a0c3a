#include "confinement/user.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"

namespace tacc {
namespace {

absl::Status Denied(const User& user, const char* what, int error) {
  return absl::PermissionDeniedError(absl::StrCat("user ", user.name, ": ", what, ": ", strerror(error),
                                                  "; only root can take another user's rights"));
}

}  // namespace

absl::StatusOr<User> FindUser(const std::string& name) {
  std::vector<char> buffer(64 << 10);
  passwd entry = {};
  passwd* found = nullptr;
  const int error = getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) {
    return absl::NotFoundError(absl::StrCat("there is no user \"", name, "\" on this machine",
                                            error == 0 ? "" : absl::StrCat(": ", strerror(error))));
  }
  User user{name, entry.pw_uid, entry.pw_gid, std::vector<gid_t>(64), entry.pw_dir};
  int num_groups = static_cast<int>(user.groups.size());
  while (getgrouplist(name.c_str(), user.gid, user.groups.data(), &num_groups) < 0)
    user.groups.resize(static_cast<size_t>(num_groups));
  user.groups.resize(static_cast<size_t>(num_groups));
  return user;
}

absl::Status BecomeUser(const User& user) {
  if (setgroups(user.groups.size(), user.groups.data()) != 0) return Denied(user, "setgroups", errno);
  if (setresgid(user.gid, user.gid, user.gid) != 0) return Denied(user, "setresgid", errno);
  if (setresuid(user.uid, user.uid, user.uid) != 0) return Denied(user, "setresuid", errno);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return Denied(user, "PR_SET_NO_NEW_PRIVS", errno);
  if (user.uid != 0 && setuid(0) == 0) return absl::InternalError("this process is still root's after setresuid");
  return absl::OkStatus();
}

absl::Status UseFilesAs(const User& user) {
  // Not the library's, which changes all threads. Only the file system's ids: a thread of another user could be
  // signalled by that user, and with it the process.
  if (syscall(SYS_setgroups, user.groups.size(), user.groups.data()) != 0) return Denied(user, "setgroups", errno);
  setfsgid(user.gid);
  setfsuid(user.uid);
  const bool is_done = static_cast<uid_t>(setfsuid(static_cast<uid_t>(-1))) == user.uid &&
                       static_cast<gid_t>(setfsgid(static_cast<gid_t>(-1))) == user.gid;
  return is_done ? absl::OkStatus() : Denied(user, "setfsuid", EPERM);
}

absl::Status GiveTo(const User& user, const std::string& path) {
  if (lchown(path.c_str(), user.uid, user.gid) == 0) return absl::OkStatus();
  return Denied(user, absl::StrCat(path, " cannot be given to it").c_str(), errno);
}

absl::Status CheckCanEnter(const User& user, const std::string& path) {
  absl::Status status;
  std::thread([&] {
    status = UseFilesAs(user);
    for (size_t end = 0; status.ok(); end = path.find('/', end + 1)) {
      const std::string folder = path.substr(0, end);
      const int fd = open(absl::StrCat(folder, "/.").c_str(), O_PATH | O_CLOEXEC);
      if (fd < 0)
        status = absl::InvalidArgumentError(
            absl::StrCat(path, ": user ", user.name, " cannot enter ", folder, ": ", strerror(errno)));
      if (fd >= 0) close(fd);
      if (end == std::string::npos) break;
    }
  }).join();
  return status;
}

}  // namespace tacc
