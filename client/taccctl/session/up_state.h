// What `taccctl up` started, as `down` and the other commands find it.
#ifndef TACC_CLIENT_TACCCTL_SESSION_UP_STATE_H_
#define TACC_CLIENT_TACCCTL_SESSION_UP_STATE_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/taccctl/session/context.h"

namespace tacc::client {

struct UpProcess {
  // "coordinator", "worker-0", ...; its log is NAME.log.
  std::string name;
  // 0: not started yet.
  pid_t pid = 0;
  // Start time of the process in clock ticks since boot, which tells it from a later process with the same number.
  uint64_t start_ticks = 0;
};

// Enough to start again what has ended, as it was.
struct UpState {
  // HOST:PORT or unix:PATH.
  std::string address;
  std::string metrics_address;  // Empty: it has none.
  // Workers are PREFIX-0, PREFIX-1, ...
  std::string worker_prefix;
  // Of each worker.
  int threads = 0;
  // 0: on GPUs, what is free there.
  int64_t memory_bytes = 0;
  // Of the workers, one after the other.
  std::vector<std::string> devices;
  // The coordinator, then the workers.
  std::vector<UpProcess> processes;
  // Of the workers' /metrics; empty in the file of an older version, whose workers have none.
  std::vector<std::string> worker_metrics;
  // Of each worker: --op-library. Empty in the file of an older version.
  std::vector<std::string> op_libraries;
};

// $XDG_STATE_HOME/tacc/up, or ~/.local/state/tacc/up.
std::string UpDirectory(const Context& context);

// $XDG_CACHE_HOME/tacc/job-number, or ~/.cache/tacc/job-number, which `down` leaves: ids of jobs do not come back with
// the next `up`. Empty where neither variable is an absolute path.
std::string JobNumberFile(const Context& context);

// Held while a command changes what is up, in a folder that exists.
class UpLock {
 public:
  explicit UpLock(const std::string& directory);
  ~UpLock();
  UpLock(const UpLock&) = delete;
  UpLock& operator=(const UpLock&) = delete;
  // False: another command holds it.
  bool held() const { return held_; }

 private:
  const int fd_;
  const bool held_;
};

// NotFound when nothing was started; InvalidArgument when the file is damaged.
absl::StatusOr<UpState> ReadUpState(const std::string& directory);

// Written to a new file and renamed.
absl::Status WriteUpState(const std::string& directory, const UpState& state);

// The process as it runs now; start_ticks 0 when there is none.
UpProcess LookAtProcess(const std::string& name, pid_t pid);

// Whether it still runs (a zombie does not).
bool IsRunning(const UpProcess& process);

// Names of the processes that do not run any more.
std::vector<std::string> EndedProcesses(const UpState& state);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_SESSION_UP_STATE_H_
