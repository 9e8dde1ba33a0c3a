#include "coordinator/compile/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

extern char** environ;

namespace tacc::coordinator {
namespace {

constexpr size_t kKeptErrorBytes = 64 << 10;
constexpr int kPollMilliseconds = 20;

class Pipe {
 public:
  Pipe() { open_ = pipe2(ends_, O_CLOEXEC) == 0; }
  ~Pipe() {
    CloseRead();
    CloseWrite();
  }
  bool open() const { return open_; }
  int read_end() const { return ends_[0]; }
  int write_end() const { return ends_[1]; }
  void CloseRead() { Close(&ends_[0]); }
  void CloseWrite() { Close(&ends_[1]); }

 private:
  static void Close(int* fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
  int ends_[2] = {-1, -1};
  bool open_ = false;
};

// Takes what is there to read. False at the end of the stream.
bool Drain(int fd, std::string* text) {
  char buffer[16384];
  const ssize_t got = read(fd, buffer, sizeof(buffer));
  if (got > 0) text->append(buffer, static_cast<size_t>(got));
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& arguments, const Pipe& out, const Pipe& err) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.write_end(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.write_end(), STDERR_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return absl::NotFoundError(absl::StrCat("cannot start ", arguments[0], ": ", strerror(error)));
  return pid;
}

void Limit(pid_t pid, const ChildLimits& limits) {
  // Set from outside, a moment after the start: posix_spawn has no limits of its own.
  const rlimit memory{static_cast<rlim_t>(limits.memory_bytes), static_cast<rlim_t>(limits.memory_bytes)};
  prlimit(pid, RLIMIT_AS, &memory, nullptr);
  // So that it ends even when this process is killed and watches no clock any more.
  const auto seconds = static_cast<rlim_t>(std::ceil(limits.seconds)) + 1;
  const rlimit cpu{seconds, seconds + 1};  // SIGXCPU, which tells it from a stranger's SIGKILL; then SIGKILL.
  prlimit(pid, RLIMIT_CPU, &cpu, nullptr);
  const rlimit core{0, 0};
  prlimit(pid, RLIMIT_CORE, &core, nullptr);
}

}  // namespace

absl::StatusOr<ChildResult> RunChild(const std::vector<std::string>& arguments, const ChildLimits& limits,
                                     const std::atomic<bool>& cancel) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  Pipe out, err;
  if (!out.open() || !err.open()) return absl::ResourceExhaustedError(absl::StrCat("no pipe: ", strerror(errno)));
  absl::StatusOr<pid_t> pid = Spawn(arguments, out, err);
  if (!pid.ok()) return pid.status();
  Limit(*pid, limits);
  out.CloseWrite();
  err.CloseWrite();
  fcntl(out.read_end(), F_SETFL, O_NONBLOCK);
  fcntl(err.read_end(), F_SETFL, O_NONBLOCK);

  ChildResult result;
  bool killed = false;
  int status = 0;
  while (true) {
    pollfd fds[2] = {{out.read_end(), POLLIN, 0}, {err.read_end(), POLLIN, 0}};
    poll(fds, 2, kPollMilliseconds);
    if (fds[0].revents != 0 && !Drain(out.read_end(), &result.out)) out.CloseRead();
    if (fds[1].revents != 0 && !Drain(err.read_end(), &result.err)) err.CloseRead();
    if (result.err.size() > 2 * kKeptErrorBytes) result.err.erase(0, result.err.size() - kKeptErrorBytes);
    const pid_t reaped = waitpid(*pid, &status, WNOHANG);
    if (reaped == *pid || (reaped < 0 && errno != EINTR)) break;
    if (killed) continue;
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    result.timed_out = seconds > limits.seconds;
    result.cancelled = cancel.load();
    result.output_too_long = result.out.size() > limits.output_bytes;
    if (result.timed_out || result.cancelled || result.output_too_long) {
      kill(-*pid, SIGKILL);
      killed = true;
    }
  }
  // What it wrote before it ended. Nothing of its group may go on.
  kill(-*pid, SIGKILL);
  while (out.read_end() >= 0 && result.out.size() <= limits.output_bytes) {
    const size_t before = result.out.size();
    if (!Drain(out.read_end(), &result.out) || result.out.size() == before) break;
  }
  while (err.read_end() >= 0) {
    const size_t before = result.err.size();
    if (!Drain(err.read_end(), &result.err) || result.err.size() == before) break;
  }
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  // The CPU limit is the time limit, seen by the kernel.
  if (result.signal == SIGXCPU) result.timed_out = true;
  // The last words of a C++ program.
  result.out_of_memory = result.signal == SIGABRT && result.err.find("std::bad_alloc") != std::string::npos;
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return result;
}

}  // namespace tacc::coordinator
