#include "process/child_process.h"

#include <fcntl.h>
#include <signal.h>
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
#include "machine/descriptor.h"

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

std::vector<std::string> EnvironmentOf(const ProcessOptions& options) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry, name = text.substr(0, text.find('='));
    if (options.environment.count(name) == 0 && (!options.inherits || options.inherits(name))) result.push_back(text);
  }
  for (const auto& [name, value] : options.environment) result.push_back(absl::StrCat(name, "=", value));
  return result;
}

std::vector<char*> Pointers(std::vector<std::string>* strings) {
  std::vector<char*> pointers;
  for (std::string& text : *strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

absl::Status StartError(const std::string& what, int error) {
  const std::string message = absl::StrCat(what, ": ", strerror(error));
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

// Opened before there is a child, whose errors could not be told apart.
struct Files {
  Descriptor in, err, cgroup;
};

// Opens what `options` names, and /dev/null.
absl::StatusOr<Files> OpenFiles(const ProcessOptions& options) {
  Files files;
  const auto open_file = [](const std::string& path, int flags, Descriptor* file) {
    *file = Descriptor(open(path.c_str(), flags | O_CLOEXEC, 0600));
    return file->is_open() ? absl::OkStatus() : StartError(absl::StrCat(path, ": cannot be opened"), errno);
  };
  absl::Status status;
  if (options.input == ProcessOptions::Input::kEmpty) status.Update(open_file("/dev/null", O_RDONLY, &files.in));
  if (!options.stderr_path.empty())
    status.Update(open_file(options.stderr_path, O_WRONLY | O_CREAT | O_APPEND, &files.err));
  if (!options.cgroup_procs.empty()) status.Update(open_file(options.cgroup_procs, O_WRONLY, &files.cgroup));
  if (!status.ok()) return status;
  return files;
}

// dup2 that leaves no O_CLOEXEC. False, with errno: it cannot.
bool Give(int from, int to) { return from == to ? fcntl(from, F_SETFD, 0) == 0 : dup2(from, to) == to; }

// All that the child does before it runs the program: system calls alone, since its memory is the parent's.
struct Birth {
  int in, out, err;
  int life;    // -1: none.
  int cgroup;  // -1: the parent's.
  bool leads_session;
  char* const* argv;
  char* const* environment;

  // Does not return. Why the program does not run, an errno, goes to the pipe `errors`.
  [[noreturn]] void Do(int errors) const {
    // Where no descriptor is given that number, until the others have theirs.
    int moved = fcntl(errors, F_DUPFD_CLOEXEC, kLifeFd + 2);
    const int error = moved < 0 ? errno : Run(&moved);
    (void)!write(moved < 0 ? errors : moved, &error, sizeof(error));
    _exit(127);
  }

 private:
  int Run(int* errors) const {
    // Who writes 0 is meant.
    if (cgroup >= 0 && write(cgroup, "0", 1) != 1) return errno;
    if (leads_session ? setsid() < 0 : setpgid(0, 0) != 0) return errno;
    if (!Give(in, STDIN_FILENO) || !Give(out, STDOUT_FILENO) || !Give(err, STDERR_FILENO)) return errno;
    if (life >= 0 && !Give(life, kLifeFd)) return errno;
    const int first_free = (life >= 0 ? kLifeFd : STDERR_FILENO) + 1;
    if (dup3(*errors, first_free, O_CLOEXEC) < 0) return errno;
    *errors = first_free;
    closefrom(first_free + 1);
    struct sigaction by_default = {};
    by_default.sa_handler = SIG_DFL;
    for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &by_default, nullptr);  // Some cannot be set.
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execve(argv[0], argv, environment);
    return errno;
  }
};

// Returns 0 or an errno. Not posix_spawn, which cannot choose a cgroup before glibc 2.39.
int Spawn(const Birth& birth, pid_t* pid) {
  Pipe errors;
  if (const int error = errors.Open(); error != 0) return error;
  // No handler of this process may run in the child.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  *pid = vfork();
  if (*pid == 0) birth.Do(errors.write_end());
  int error = *pid < 0 ? errno : 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (*pid < 0) return error;
  close(errors.ReleaseWriteEnd());
  // Its end closes as the program begins to run.
  ssize_t num_read;
  while ((num_read = read(errors.read_end(), &error, sizeof(error))) < 0 && errno == EINTR) {
  }
  if (num_read <= 0) return 0;
  while (waitpid(*pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return error;
}

}  // namespace

std::string ProcessEnd::Text() const {
  return exit_code.has_value() ? absl::StrCat("exited with ", *exit_code) : absl::StrCat("killed by signal ", signal);
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const ProcessOptions& options) {
  std::vector<std::string> argv = options.argv, environment = EnvironmentOf(options);
  if (options.lifetime == Lifetime::kWithParent)
    argv.insert(argv.end(), {"--exit-with-parent-fd", absl::StrCat(kLifeFd)});
  const std::vector<char*> argv_pointers = Pointers(&argv), environment_pointers = Pointers(&environment);
  const absl::StatusOr<Files> files = OpenFiles(options);
  if (!files.ok()) return files.status();
  Pipes pipes;
  pid_t pid = -1;
  int error = Open(options, &pipes);
  if (error == 0) {
    error = Spawn({.in = files->in.is_open() ? files->in.get() : pipes.in.read_end(),
                   .out = pipes.out.write_end(),
                   .err = files->err.is_open() ? files->err.get() : pipes.err.write_end(),
                   .life = pipes.life.read_end(),
                   .cgroup = files->cgroup.get(),
                   .leads_session = options.lifetime == Lifetime::kDetached,
                   .argv = argv_pointers.data(),
                   .environment = environment_pointers.data()},
                  &pid);
  }
  if (error != 0) return StartError(absl::StrCat(options.argv[0], ": cannot be started"), error);
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

ChildProcess::Held ChildProcess::Release() {
  is_abandoned_ = true;
  return {pid_, std::exchange(stdin_, -1), std::exchange(stdout_, -1), std::exchange(stderr_, -1),
          std::move(unwritten_)};
}

std::unique_ptr<ChildProcess> ChildProcess::TakeOver(Held held) {
  std::unique_ptr<ChildProcess> child(new ChildProcess(Lifetime::kOwned, held.pid));
  child->stdin_ = held.stdin_fd;
  child->stdout_ = held.stdout_fd;
  child->stderr_ = held.stderr_fd;
  child->unwritten_ = std::move(held.unwritten);
  return child;
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
