// A child process with pipes on stdin, stdout and stderr, in a process group of its own. Nothing else of this process
// is passed on: no file descriptors, no blocked or handled signals.
#ifndef TACC_WORKER_DAEMON_HOST_CHILD_PROCESS_H_
#define TACC_WORKER_DAEMON_HOST_CHILD_PROCESS_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "worker/daemon/supervision/rank_process.h"
#include "worker/daemon/supervision/supervisor.h"

namespace tacc::worker {

class ChildProcess : public RankProcess {
 public:
  // Starts argv[0] (a path). `environment` is set on top of this process's. NotFound, PermissionDenied or Internal name
  // the program.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const std::vector<std::string>& argv,
                                                             const std::map<std::string, std::string>& environment);
  ~ChildProcess() override;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const override { return pid_; }
  int stdin_fd() const override { return stdin_; }
  int stdout_fd() const override { return stdout_; }
  int stderr_fd() const override { return stderr_; }

  void WriteLine(const std::string& line) override;
  bool WantsToWrite() const override { return !unwritten_.empty() && stdin_ >= 0; }
  void FlushStdin() override;
  void CloseStdin() override;

  bool ReadStdout(std::string* data) override { return ReadFrom(&stdout_, data); }
  bool ReadStderr(std::string* data) override { return ReadFrom(&stderr_, data); }

  void Kill() override;
  absl::optional<ProcessEnd> TryReap() override;
  void Abandon() override { is_abandoned_ = true; }

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
  bool is_abandoned_ = false;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_HOST_CHILD_PROCESS_H_
