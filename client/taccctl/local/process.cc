#include "client/taccctl/local/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

extern char** environ;

namespace tacc::client {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxLineBytes = 4096;
// How often who waits for a line looks for an interrupt.
constexpr int kLookMilliseconds = 100;
// Descriptor of the pipe in the child.
constexpr int kLifeFd = 3;

// A pipe whose ends close by themselves. [0] is read.
struct Pipe {
  int fds[2] = {-1, -1};
  ~Pipe() {
    Close(0);
    Close(1);
  }
  bool Open() { return pipe2(fds, O_CLOEXEC) == 0; }
  void Close(int i) {
    if (fds[i] >= 0) close(fds[i]);
    fds[i] = -1;
  }
  int Release(int i) {
    const int fd = fds[i];
    fds[i] = -1;
    return fd;
  }
};

absl::Status Errno(const std::string& what, int error) {
  return absl::InternalError(absl::StrCat(what, ": ", strerror(error)));
}

int MillisecondsUntil(Clock::time_point time) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(time - Clock::now()).count();
  return static_cast<int>(std::max<int64_t>(0, std::min<int64_t>(left + 1, 60000)));
}

// Starts `binary`. Descriptors 0..2 are set by `actions`; none above `last_fd` is passed on.
absl::StatusOr<pid_t> Spawn(const std::string& binary, const std::vector<std::string>& arguments,
                            posix_spawn_file_actions_t* actions, int last_fd, short session_flag) {
  posix_spawn_file_actions_addclosefrom_np(actions, last_fd + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | session_flag));
  std::vector<std::string> words = {binary};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, binary.c_str(), actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  if (error == ENOENT)
    return absl::InternalError(
        absl::StrCat(binary, " is missing; it belongs beside taccctl (build it, or install all of tacc)"));
  if (error != 0) return Errno(absl::StrCat("cannot start ", binary), error);
  return pid;
}

ProcessEnd EndOf(int status) {
  ProcessEnd end;
  if (WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  return end;
}

}  // namespace

std::string ProcessEnd::Text() const {
  return signal != 0 ? absl::StrCat("killed by signal ", signal) : absl::StrCat("exited with ", exit_code);
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const ProcessOptions& options) {
  Pipe output, life;
  if (!output.Open() || !life.Open()) return Errno("pipe", errno);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                   0644);
  posix_spawn_file_actions_adddup2(&actions, output.fds[1], STDOUT_FILENO);
  std::vector<std::string> arguments = options.arguments;
  int last_fd = STDERR_FILENO;
  if (options.lifetime == Lifetime::kWithParent) {
    posix_spawn_file_actions_adddup2(&actions, life.fds[0], kLifeFd);
    arguments.insert(arguments.end(), {"--exit-with-parent-fd", absl::StrCat(kLifeFd)});
    last_fd = kLifeFd;
  }
  const absl::StatusOr<pid_t> pid =
      Spawn(options.binary, arguments, &actions, last_fd,
            options.lifetime == Lifetime::kDetached ? POSIX_SPAWN_SETSID : POSIX_SPAWN_SETPGROUP);
  posix_spawn_file_actions_destroy(&actions);
  if (!pid.ok()) return pid.status();
  auto child = std::unique_ptr<ChildProcess>(new ChildProcess());
  child->lifetime_ = options.lifetime;
  child->pid_ = *pid;
  child->stdout_fd_ = output.Release(0);
  if (options.lifetime == Lifetime::kWithParent) child->life_fd_ = life.Release(1);
  return child;
}

ChildProcess::~ChildProcess() {
  if (lifetime_ == Lifetime::kWithParent && !reaped_) {
    Signal(SIGKILL);
    Wait(60);
  }
  if (stdout_fd_ >= 0) close(stdout_fd_);
  if (life_fd_ >= 0) close(life_fd_);
}

absl::StatusOr<std::string> ChildProcess::ReadLine(double seconds, const Interrupt* interrupt) {
  const int interrupts_seen = interrupt == nullptr ? 0 : interrupt->count();
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  while (true) {
    const size_t newline = buffer_.find('\n');
    if (newline != std::string::npos) return buffer_.substr(0, newline);
    if (buffer_.size() > kMaxLineBytes) return absl::InternalError("a line that is too long");
    const int left_ms = MillisecondsUntil(deadline);
    if (left_ms == 0) return absl::DeadlineExceededError("no line in time");
    if (interrupt != nullptr && interrupt->count() > interrupts_seen) return absl::CancelledError("interrupted");
    struct pollfd waiting = {stdout_fd_, POLLIN, 0};
    const int ready = poll(&waiting, 1, std::min(left_ms, kLookMilliseconds));
    if (ready <= 0) continue;
    char bytes[512];
    const ssize_t count = read(stdout_fd_, bytes, sizeof(bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return absl::UnavailableError("ended before it was ready");
    buffer_.append(bytes, static_cast<size_t>(count));
  }
}

bool ChildProcess::Wait(double seconds) {
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  while (!reaped_) {
    int status = 0;
    const pid_t pid = waitpid(pid_, &status, WNOHANG);
    if (pid == pid_ || (pid < 0 && errno == ECHILD)) {
      reaped_ = true;
      end_ = EndOf(status);
    } else if (Clock::now() >= deadline) {
      return false;
    } else {
      usleep(10000);
    }
  }
  return true;
}

void ChildProcess::Signal(int signal) {
  if (!reaped_) kill(pid_, signal);
}

absl::StatusOr<ProgramOutput> RunProgram(const std::string& binary, const std::vector<std::string>& arguments,
                                         double seconds, size_t max_bytes, Interrupt* interrupt) {
  const int interrupts_seen = interrupt->count();
  Pipe out, err;
  if (!out.Open() || !err.Open()) return Errno("pipe", errno);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.fds[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.fds[1], STDERR_FILENO);
  const absl::StatusOr<pid_t> pid = Spawn(binary, arguments, &actions, STDERR_FILENO, POSIX_SPAWN_SETPGROUP);
  posix_spawn_file_actions_destroy(&actions);
  if (!pid.ok()) return pid.status();
  out.Close(1);
  err.Close(1);
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  ProgramOutput output;
  bool timed_out = false;
  // Before the program is reaped, its number is nobody else's.
  auto hook = std::make_unique<Interrupt::Hook>(interrupt, interrupts_seen, [pid] { kill(-*pid, SIGKILL); });
  struct pollfd waiting[2] = {{out.fds[0], POLLIN, 0}, {err.fds[0], POLLIN, 0}};
  while (waiting[0].fd >= 0 || waiting[1].fd >= 0) {
    const int wait_ms = MillisecondsUntil(deadline);
    if (wait_ms == 0) {
      timed_out = true;
      break;
    }
    if (poll(waiting, 2, wait_ms) <= 0) continue;
    for (int i = 0; i < 2; ++i) {
      if (waiting[i].fd < 0 || waiting[i].revents == 0) continue;
      char bytes[65536];
      const ssize_t count = read(waiting[i].fd, bytes, sizeof(bytes));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        waiting[i].fd = -1;
        continue;
      }
      std::string& kept = i == 0 ? output.out : output.err;
      kept.append(bytes, std::min(static_cast<size_t>(count), max_bytes - std::min(max_bytes, kept.size())));
    }
  }
  if (timed_out) kill(-*pid, SIGKILL);
  hook.reset();
  int status = 0;
  while (waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (timed_out) return absl::DeadlineExceededError(absl::StrCat(binary, " was stopped after ", seconds, " s"));
  output.end = EndOf(status);
  if (output.end.signal == SIGKILL && interrupt->count() > interrupts_seen)
    return absl::CancelledError(absl::StrCat(binary, " was stopped: interrupted"));
  return output;
}

std::vector<std::string> LastLines(const std::string& path, size_t count) {
  constexpr std::streamoff kTailBytes = 16384;
  std::ifstream stream(path, std::ios::binary | std::ios::ate);
  if (!stream) return {};
  const std::streamoff size = stream.tellg();
  stream.seekg(std::max<std::streamoff>(0, size - kTailBytes));
  std::string tail(static_cast<size_t>(std::min<std::streamoff>(size, kTailBytes)), '\0');
  stream.read(tail.data(), static_cast<std::streamsize>(tail.size()));
  std::vector<std::string> lines = absl::StrSplit(tail, '\n', absl::SkipEmpty());
  if (lines.size() > count) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(count));
  return lines;
}

}  // namespace tacc::client
