// A child process with pipes on stdin, stdout and stderr, in a process group of its own. Nothing else of this process
// is passed on: no file descriptors, no blocked or handled signals.
#ifndef WORKER_DAEMON_CHILD_PROCESS_H_
#define WORKER_DAEMON_CHILD_PROCESS_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "worker/daemon/supervisor.h"

namespace tacc::worker {

// Not thread-safe. All descriptors are non-blocking; -1 once closed. Destroying it kills and reaps the process.
class ChildProcess {
 public:
  // Starts argv[0] (a path). `environment` is set on top of this process's. NotFound, PermissionDenied or Internal name
  // the program.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const std::vector<std::string>& argv,
                                                             const std::map<std::string, std::string>& environment);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  int stdin_fd() const { return stdin_; }
  int stdout_fd() const { return stdout_; }
  int stderr_fd() const { return stderr_; }

  // Queues a line for stdin (the newline is added) and writes what the pipe takes now.
  void WriteLine(const std::string& line);
  // True when queued bytes wait for the pipe: poll stdin_fd for writing, then call FlushStdin.
  bool WantsToWrite() const { return !unwritten_.empty() && stdin_ >= 0; }
  void FlushStdin();
  // Ends the child's stdin; what is queued is dropped.
  void CloseStdin();

  // Reads what is there now and appends it. False at the end of the stream, which is then closed.
  bool ReadStdout(std::string* data) { return ReadFrom(&stdout_, data); }
  bool ReadStderr(std::string* data) { return ReadFrom(&stderr_, data); }

  // SIGKILL to the process and its group.
  void Kill();
  // Reaps the process if it has ended, and kills what is left of its group. Returns how it ended, from then on.
  absl::optional<ProcessEnd> TryReap();

 private:
  ChildProcess(pid_t pid, int stdin_fd, int stdout_fd, int stderr_fd)
      : pid_(pid), stdin_(stdin_fd), stdout_(stdout_fd), stderr_(stderr_fd) {}
  bool ReadFrom(int* fd, std::string* data);

  pid_t pid_;
  int stdin_;
  int stdout_;
  int stderr_;
  std::string unwritten_;
  absl::optional<ProcessEnd> end_;
};

}  // namespace tacc::worker

#endif  // WORKER_DAEMON_CHILD_PROCESS_H_
