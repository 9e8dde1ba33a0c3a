// What runs for a job gets no more rights than the job's files need: a process for good, or one piece of work of a
// daemon.
#ifndef TACC_CONFINEMENT_CONFINE_H_
#define TACC_CONFINEMENT_CONFINE_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "confinement/allowed_paths.h"
#include "confinement/user.h"

namespace tacc {

struct Confinement {
  AllowedPaths paths;
  std::optional<User> user;  // Otherwise the user stays.
  // Files of code that a process, not a piece of work, may read beside what the paths allow.
  std::vector<std::string> libraries = {};

  bool IsNone() const { return !paths.IsLimited() && !user.has_value(); }
};

// Confines this process and its children for good: to the user, and to the paths by Landlock, beside what it reads of
// the system and of its own libraries. Before it starts a thread. Without Landlock only the user is changed, which
// Warning says. FailedPrecondition: threads run. PermissionDenied: only root can change the user. Internal.
absl::Status ConfineProcess(const Confinement& confinement);

// Runs `work` on a thread of its own that is confined as above, and waits for it. `work` does not run on an error.
// Without a confinement it runs here.
absl::Status RunConfined(const Confinement& confinement, const std::function<void()>& work);

// The flags by which a program of this project confines itself so (confinement/flags.h).
std::vector<std::string> ConfinementArguments(const Confinement& confinement);

// What of it this kernel cannot do, for the log; empty: nothing.
std::string Warning(const Confinement& confinement);

}  // namespace tacc

#endif  // TACC_CONFINEMENT_CONFINE_H_
