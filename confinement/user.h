// Another user, whose rights a process of root takes.
#ifndef TACC_CONFINEMENT_USER_H_
#define TACC_CONFINEMENT_USER_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tacc {

struct User {
  std::string name;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;
  std::string home;
};

// NotFound: this machine knows no user of this name.
absl::StatusOr<User> FindUser(const std::string& name);

// Makes this process, which has one thread, that user's for good, without a way back. PermissionDenied: it is not
// root's.
absl::Status BecomeUser(const User& user);

// From now on this thread alone uses files with that user's rights, and what it makes is that user's.
absl::Status UseFilesAs(const User& user);

// Makes a file or a folder that user's.
absl::Status GiveTo(const User& user, const std::string& path);

// InvalidArgument: a folder on the way to `path`, or it, cannot be entered by that user; names it.
absl::Status CheckCanEnter(const User& user, const std::string& path);

}  // namespace tacc

#endif  // TACC_CONFINEMENT_USER_H_
