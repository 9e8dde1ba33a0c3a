// Named places where a test makes this process die, fail or wait.
//
// main asks FromEnvironment() once and hands the object to the parts that have failpoints; a part calls Hit("name") at
// the place and returns its error, or asks Errno("name") before a system call. What FromEnvironment() does is chosen
// when a binary is linked: in those for users it ignores TACC_FAILPOINTS, in those for tests, in the build's folder
// failpoints/, it obeys.
#ifndef TACC_FAILPOINT_FAILPOINT_H_
#define TACC_FAILPOINT_FAILPOINT_H_

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace tacc {

class Failpoints {
 public:
  // No failpoint is set: every Hit returns OK.
  Failpoints() = default;
  Failpoints(const Failpoints&) = delete;
  Failpoints& operator=(const Failpoints&) = delete;

  // Parses "name=action[;name=action]". An action is `kill` (SIGKILL to this process), `error` (Hit returns an Internal
  // error), `errno:NAME` (Errno returns that error of the system) or `sleep:SECONDS`; with `@N` it acts at the N-th hit
  // only, else at each. An empty text sets nothing. InvalidArgument names the entry that does not parse.
  static absl::StatusOr<std::unique_ptr<Failpoints>> Parse(const std::string& text);

  // tacc_failpoint_obeyed: Parse of the environment variable TACC_FAILPOINTS. tacc_failpoint_ignored: always the empty
  // set; a line on stderr when the variable is set.
  static absl::StatusOr<std::unique_ptr<Failpoints>> FromEnvironment();

  // Counts one hit of `name` and does what is set for it. Thread-safe.
  absl::Status Hit(const std::string& name);

  // The same where a system call follows: its errno when it is to fail with that, else 0. Thread-safe.
  int Errno(const std::string& name);

 private:
  enum class Action { kKill, kError, kErrno, kSleep };
  struct Point {
    Action action = Action::kError;
    double seconds = 0;
    int error = 0;
    int at = 0;  // Acts at this hit only; 0: at each.
    int hits = 0;
  };
  absl::Mutex mutex_;
  std::map<std::string, Point> points_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tacc

#endif  // TACC_FAILPOINT_FAILPOINT_H_
