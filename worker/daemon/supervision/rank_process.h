// A rank's process as its host sees it.
#ifndef TACC_WORKER_DAEMON_SUPERVISION_RANK_PROCESS_H_
#define TACC_WORKER_DAEMON_SUPERVISION_RANK_PROCESS_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "worker/daemon/supervision/supervisor.h"

namespace tacc::worker {

// Not thread-safe. All descriptors are non-blocking; -1 once closed. Destroying it kills and reaps the process, unless
// it was abandoned.
class RankProcess {
 public:
  virtual ~RankProcess() = default;

  virtual pid_t pid() const = 0;
  virtual int stdin_fd() const = 0;
  virtual int stdout_fd() const = 0;
  virtual int stderr_fd() const = 0;

  // Queues a line for stdin (the newline is added) and writes what the pipe takes now.
  virtual void WriteLine(const std::string& line) = 0;
  // True when queued bytes wait for the pipe: poll stdin_fd for writing, then call FlushStdin.
  virtual bool WantsToWrite() const = 0;
  virtual void FlushStdin() = 0;
  // Ends the child's stdin; what is queued is dropped.
  virtual void CloseStdin() = 0;

  // Reads what is there now and appends it. False at the end of the stream, which is then closed.
  virtual bool ReadStdout(std::string* data) = 0;
  virtual bool ReadStderr(std::string* data) = 0;

  // SIGKILL to the process and its group.
  virtual void Kill() = 0;
  // Reaps the process if it has ended, and kills what is left of its group. Returns how it ended, from then on.
  virtual absl::optional<ProcessEnd> TryReap() = 0;
  // It was killed and does not end: destroying the object does not wait for it.
  virtual void Abandon() = 0;
};

// Starts argv[0] (a path) with `environment` on top of this process's.
using StartProcess = std::function<absl::StatusOr<std::unique_ptr<RankProcess>>(
    const std::vector<std::string>& argv, const std::map<std::string, std::string>& environment)>;

// For people: "pid 71, state D (uninterruptible sleep: in a driver or a file system)", as /proc/PID/stat has it.
std::string ProcessText(pid_t pid);

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_SUPERVISION_RANK_PROCESS_H_
