// Child processes: started with posix_spawn, in a process group of their own, so that Ctrl-C reaches only taccctl.
#ifndef TACC_CLIENT_TACCCTL_LOCAL_PROCESS_H_
#define TACC_CLIENT_TACCCTL_LOCAL_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/taccctl/session/interrupt.h"

namespace tacc::client {

enum class Lifetime {
  // The child is given --exit-with-parent-fd N, and ends when this process does, however that happens.
  kWithParent,
  // The child leads a session of its own and stays when this process ends.
  kDetached,
};

struct ProcessOptions {
  // Absolute path of the binary, and its arguments.
  std::string binary;
  std::vector<std::string> arguments;
  Lifetime lifetime = Lifetime::kWithParent;
  // stderr is appended to this file.
  std::string log_path;
};

// How a process ended, in words: "exited with 2", "killed by signal 9".
struct ProcessEnd {
  int exit_code = -1;
  int signal = 0;
  std::string Text() const;
};

// One child. Not thread-safe. The destructor kills and reaps a child that lives with its parent.
class ChildProcess {
 public:
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const ProcessOptions& options);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }

  // The first line of the child's stdout without its newline. DeadlineExceeded after `seconds`; Unavailable when the
  // child closed stdout before; Cancelled when `interrupt` (may be null) is raised meanwhile.
  absl::StatusOr<std::string> ReadLine(double seconds, const Interrupt* interrupt);

  // Waits up to `seconds` (0: only looks) for the child's end; true when it has ended and was reaped.
  bool Wait(double seconds);
  // How it ended, once Wait was true.
  const ProcessEnd& end() const { return end_; }

  void Signal(int signal);

 private:
  ChildProcess() = default;

  Lifetime lifetime_ = Lifetime::kWithParent;
  pid_t pid_ = -1;
  bool reaped_ = false;
  ProcessEnd end_;
  int stdout_fd_ = -1;
  // The end of the pipe that the child watches.
  int life_fd_ = -1;
  std::string buffer_;
};

// What a program that ran to its end printed.
struct ProgramOutput {
  ProcessEnd end;
  std::string out;
  std::string err;
};

// Runs a program to its end. stdin is empty; each stream is kept up to `max_bytes`. The program is killed after
// `seconds` (DeadlineExceeded), and when `interrupt` is raised meanwhile (Cancelled).
absl::StatusOr<ProgramOutput> RunProgram(const std::string& binary, const std::vector<std::string>& arguments,
                                         double seconds, size_t max_bytes, Interrupt* interrupt);

// Lines at the end of a file, at most `count`.
std::vector<std::string> LastLines(const std::string& path, size_t count);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_LOCAL_PROCESS_H_
