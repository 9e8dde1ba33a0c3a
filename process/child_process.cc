#include "process/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "machine/clock.h"

extern char** environ;

namespace tacc {
namespace {

using Lifetime = ProcessOptions::Lifetime;

// A child that never reads its stdin must not fill this process's memory.
constexpr size_t kMaxUnwrittenBytes = 1 << 20;
// Descriptor of the pipe in a child that lives with its parent.
constexpr int kLifeFd = 3;
// A child that lives with its parent and cannot be killed is left to end with it.
constexpr double kReapSeconds = 60;
constexpr useconds_t kLookMicroseconds = 10000;

std::vector<std::string> EnvironmentWith(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (changes.count(text.substr(0, text.find('='))) == 0) result.push_back(text);
  }
  for (const auto& [name, value] : changes) result.push_back(absl::StrCat(name, "=", value));
  return result;
}

std::vector<char*> Pointers(std::vector<std::string>* strings) {
  std::vector<char*> pointers;
  for (std::string& text : *strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

absl::Status StartError(const std::string& program, int error) {
  const std::string message = absl::StrCat(program, ": cannot be started: ", strerror(error));
  if (error == ENOENT) return absl::NotFoundError(message);
  if (error == EACCES) return absl::PermissionDeniedError(message);
  return absl::InternalError(message);
}

// Its ends close by themselves.
class Pipe {
 public:
  Pipe() = default;
  ~Pipe() {
    for (const int fd : ends_) {
      if (fd >= 0) close(fd);
    }
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  // Returns 0 or an errno.
  int Open() { return pipe2(ends_, O_CLOEXEC) == 0 ? 0 : errno; }
  int read_end() const { return ends_[0]; }
  int write_end() const { return ends_[1]; }
  int ReleaseReadEnd() { return std::exchange(ends_[0], -1); }
  int ReleaseWriteEnd() { return std::exchange(ends_[1], -1); }

 private:
  int ends_[2] = {-1, -1};
};

struct Pipes {
  Pipe in, out, err, life;
};

// Opens those that the child has. Returns 0 or an errno.
int Open(const ProcessOptions& options, Pipes* pipes) {
  std::vector<Pipe*> wanted = {&pipes->out};
  if (options.input == ProcessOptions::Input::kPipe) wanted.push_back(&pipes->in);
  if (options.stderr_path.empty()) wanted.push_back(&pipes->err);
  if (options.lifetime == Lifetime::kWithParent) wanted.push_back(&pipes->life);
  for (Pipe* pipe : wanted) {
    if (const int error = pipe->Open(); error != 0) return error;
  }
  return 0;
}

// Returns 0 or an errno.
int Spawn(const ProcessOptions& options, const Pipes& pipes, pid_t* pid) {
  std::vector<std::string> argv = options.argv, environment = EnvironmentWith(options.environment);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  if (options.input == ProcessOptions::Input::kPipe) {
    posix_spawn_file_actions_adddup2(&actions, pipes.in.read_end(), STDIN_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  }
  posix_spawn_file_actions_adddup2(&actions, pipes.out.write_end(), STDOUT_FILENO);
  if (options.stderr_path.empty()) {
    posix_spawn_file_actions_adddup2(&actions, pipes.err.write_end(), STDERR_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, options.stderr_path.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0644);
  }
  int last_fd = STDERR_FILENO;
  if (options.lifetime == Lifetime::kWithParent) {
    posix_spawn_file_actions_adddup2(&actions, pipes.life.read_end(), kLifeFd);
    argv.insert(argv.end(), {"--exit-with-parent-fd", absl::StrCat(kLifeFd)});
    last_fd = kLifeFd;
  }
  posix_spawn_file_actions_addclosefrom_np(&actions, last_fd + 1);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  const int group = options.lifetime == Lifetime::kDetached ? POSIX_SPAWN_SETSID : POSIX_SPAWN_SETPGROUP;
  posix_spawnattr_setflags(&attributes, static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | group));
  const int error =
      posix_spawn(pid, argv[0].c_str(), &actions, &attributes, Pointers(&argv).data(), Pointers(&environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

std::string ProcessEnd::Text() const {
  return exit_code.has_value() ? absl::StrCat("exited with ", *exit_code) : absl::StrCat("killed by signal ", signal);
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const ProcessOptions& options) {
  Pipes pipes;
  pid_t pid = -1;
  int error = Open(options, &pipes);
  if (error == 0) error = Spawn(options, pipes, &pid);
  if (error != 0) return StartError(options.argv[0], error);
  std::unique_ptr<ChildProcess> child(new ChildProcess(options.lifetime, pid));
  child->stdin_ = pipes.in.ReleaseWriteEnd();
  child->stdout_ = pipes.out.ReleaseReadEnd();
  child->stderr_ = pipes.err.ReleaseReadEnd();
  child->life_ = pipes.life.ReleaseWriteEnd();
  for (const int fd : {child->stdin_, child->stdout_, child->stderr_}) {
    if (fd >= 0) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other)
    : lifetime_(other.lifetime_),
      pid_(other.pid_),
      stdin_(std::exchange(other.stdin_, -1)),
      stdout_(std::exchange(other.stdout_, -1)),
      stderr_(std::exchange(other.stderr_, -1)),
      life_(std::exchange(other.life_, -1)),
      unwritten_(std::move(other.unwritten_)),
      end_(other.end_),
      is_abandoned_(std::exchange(other.is_abandoned_, true)) {}

ChildProcess::~ChildProcess() {
  if (!is_abandoned_ && lifetime_ != Lifetime::kDetached) {
    Kill();
    WaitForEnd(lifetime_ == Lifetime::kWithParent ? kReapSeconds : std::numeric_limits<double>::infinity());
  }
  for (const int fd : {stdin_, stdout_, stderr_, life_}) {
    if (fd >= 0) close(fd);
  }
}

void ChildProcess::WriteLine(const std::string& line) {
  if (stdin_ < 0 || unwritten_.size() + line.size() > kMaxUnwrittenBytes) return;
  absl::StrAppend(&unwritten_, line, "\n");
  FlushStdin();
}

void ChildProcess::FlushStdin() {
  while (WantsToWrite()) {
    // A child that has closed its stdin gives EPIPE.
    const ssize_t n = write(stdin_, unwritten_.data(), unwritten_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) return CloseStdin();
    unwritten_.erase(0, n);
  }
}

void ChildProcess::CloseStdin() {
  if (stdin_ >= 0) close(stdin_);
  stdin_ = -1;
  unwritten_.clear();
}

bool ChildProcess::ReadFrom(int* fd, std::string* data) {
  char buffer[64 << 10];
  while (*fd >= 0) {
    const ssize_t n = read(*fd, buffer, sizeof(buffer));
    if (n > 0) {
      data->append(buffer, n);
      if (data->size() >= (1 << 20)) return true;  // The rest at the next call: other work is waiting.
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    close(*fd);
    *fd = -1;
  }
  return false;
}

void ChildProcess::Signal(int signal) {
  if (!end_.has_value()) kill(pid_, signal);
}

void ChildProcess::Kill() {
  if (end_.has_value()) return;
  kill(-pid_, SIGKILL);
  kill(pid_, SIGKILL);
}

absl::optional<ProcessEnd> ChildProcess::TryReap() {
  if (end_.has_value()) return end_;
  siginfo_t info = {};
  if (waitid(P_PID, pid_, &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
    if (errno == ECHILD) end_ = ProcessEnd{-1};
    return end_;
  }
  if (info.si_pid == 0) return absl::nullopt;
  // While the process is not reaped its id, and so the group's, cannot belong to anyone else.
  kill(-pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  end_ = ProcessEnd();
  if (WIFSIGNALED(status)) {
    end_->signal = WTERMSIG(status);
  } else {
    end_->exit_code = WEXITSTATUS(status);
  }
  return end_;
}

absl::optional<ProcessEnd> ChildProcess::WaitForEnd(double seconds) {
  const double deadline = SteadySeconds() + seconds;
  while (true) {
    const absl::optional<ProcessEnd> end = TryReap();
    if (end.has_value() || SteadySeconds() >= deadline) return end;
    usleep(kLookMicroseconds);
  }
}

std::string ProcessText(pid_t pid) {
  std::ifstream stream(absl::StrCat("/proc/", pid, "/stat"));
  const std::string stat{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  // The name before it may hold anything.
  const size_t name_end = stat.rfind(") ");
  if (name_end == std::string::npos || name_end + 2 >= stat.size()) return absl::StrCat("pid ", pid);
  const char state = stat[name_end + 2];
  const char* const meaning = state == 'D'   ? " (uninterruptible sleep: in a driver or a file system)"
                              : state == 'Z' ? " (ended, held by another process)"
                                             : "";
  return absl::StrCat("pid ", pid, ", state ", std::string(1, state), meaning);
}

}  // namespace tacc
