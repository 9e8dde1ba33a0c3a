// Child processes. A child gets this process's environment, or a part of it, and nothing else of it: no descriptors, no
// blocked or handled signals.
#ifndef TACC_PROCESS_CHILD_PROCESS_H_
#define TACC_PROCESS_CHILD_PROCESS_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace tacc {

// How a process ended: exactly one of both.
struct ProcessEnd {
  absl::optional<int> exit_code;
  int signal = 0;
  // "exited with 2", "killed by signal 9".
  std::string Text() const;
};

struct ProcessOptions {
  std::vector<std::string> argv;  // argv[0] is the path of the program.
  // Which variables of this process's environment the child gets; empty: all.
  std::function<bool(absl::string_view name)> inherits = {};
  // Set on top of those.
  std::map<std::string, std::string> environment = {};
  enum class Input {
    kPipe,
    kEmpty,
  } input = Input::kPipe;
  // stderr is appended to this file, which is made if it is missing. Empty: a pipe.
  std::string stderr_path = {};
  // Of a cgroup, the path of its file cgroup.procs: the child is in it before it runs the program. Empty: in this
  // process's.
  std::string cgroup_procs = {};
  enum class Lifetime {
    kOwned,       // Destroying the object kills and reaps the child.
    kWithParent,  // The same; the child is given `--exit-with-parent-fd N` and ends when this process does, however.
    kDetached,    // The child leads a session of its own and stays.
  } lifetime = Lifetime::kOwned;
};

// One child, the leader of a process group of its own. Not thread-safe. All descriptors are non-blocking; -1 where
// there is no pipe, and once it is closed. SIGPIPE must be ignored by who writes.
class ChildProcess {
 public:
  // NotFound, PermissionDenied or Internal name the program, or what else cannot be opened.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const ProcessOptions& options);
  virtual ~ChildProcess();
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

  // Sends `signal` to the process alone; nothing once it was reaped.
  void Signal(int signal);
  // SIGKILL to the process and its group.
  void Kill();
  // Reaps the process if it has ended, and kills what is left of its group. Returns how it ended, from then on. An
  // end that this process cannot learn, because somebody else reaped it, has exit code -1. Virtual so that a test can
  // hold the end back.
  virtual absl::optional<ProcessEnd> TryReap();
  // Waits up to `seconds` (0: only looks) for the end. Returns as TryReap.
  absl::optional<ProcessEnd> WaitForEnd(double seconds);
  // It was killed and does not end: destroying the object does not wait for it.
  void Abandon() { is_abandoned_ = true; }

  // A child of lifetime kOwned that is not reaped, as another object can take it over: in this process, also after an
  // execve in it, if the descriptors stay open there.
  struct Held {
    pid_t pid = -1;
    int stdin_fd = -1;
    int stdout_fd = -1;
    int stderr_fd = -1;
    std::string unwritten;  // What waits for the pipe.
  };
  // Gives it up with its descriptors; this object does nothing more to it.
  Held Release();
  static std::unique_ptr<ChildProcess> TakeOver(Held held);

 protected:
  // Takes over the child; `other` has none.
  ChildProcess(ChildProcess&& other);

 private:
  ChildProcess(ProcessOptions::Lifetime lifetime, pid_t pid) : lifetime_(lifetime), pid_(pid) {}
  bool ReadFrom(int* fd, std::string* data);

  const ProcessOptions::Lifetime lifetime_;
  const pid_t pid_;
  int stdin_ = -1;
  int stdout_ = -1;
  int stderr_ = -1;
  int life_ = -1;  // The end of the pipe that the child watches. It closes with this process.
  std::string unwritten_;
  absl::optional<ProcessEnd> end_;
  bool is_abandoned_ = false;
};

// For people: "pid 71, state D (uninterruptible sleep: in a driver or a file system)", as /proc/PID/stat has it.
std::string ProcessText(pid_t pid);

}  // namespace tacc

#endif  // TACC_PROCESS_CHILD_PROCESS_H_
