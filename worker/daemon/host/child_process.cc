#include "worker/daemon/host/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

extern char** environ;

namespace tacc::worker {
namespace {

// A rank that never reads its stdin must not fill this process's memory.
constexpr size_t kMaxUnwrittenBytes = 1 << 20;

struct Pipe {
  int read = -1;
  int write = -1;
  void Close() {
    if (read >= 0) close(read);
    if (write >= 0) close(write);
    read = write = -1;
  }
};

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
  const std::string message = absl::StrCat(program, ": cannot be started: ", std::strerror(error));
  if (error == ENOENT) return absl::NotFoundError(message);
  if (error == EACCES) return absl::PermissionDeniedError(message);
  return absl::InternalError(message);
}

// Returns 0 or an errno.
int Spawn(std::vector<std::string> argv, std::vector<std::string> environment, const Pipe pipes[3], pid_t* pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, pipes[0].read, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pipes[1].write, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pipes[2].write, STDERR_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  const int error =
      posix_spawn(pid, argv[0].c_str(), &actions, &attributes, Pointers(&argv).data(), Pointers(&environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::vector<std::string>& argv, const std::map<std::string, std::string>& environment) {
  Pipe pipes[3];
  int error = 0;
  for (Pipe& one : pipes) {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) {
      error = errno;
      break;
    }
    one = {fds[0], fds[1]};
  }
  pid_t pid = 0;
  if (error == 0) error = Spawn(argv, EnvironmentWith(environment), pipes, &pid);
  if (error != 0) {
    for (Pipe& one : pipes) one.Close();
    return StartError(argv[0], error);
  }
  close(pipes[0].read);
  close(pipes[1].write);
  close(pipes[2].write);
  for (int fd : {pipes[0].write, pipes[1].read, pipes[2].read}) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, pipes[0].write, pipes[1].read, pipes[2].read));
}

ChildProcess::~ChildProcess() {
  if (!end_.has_value() && !is_abandoned_) {
    Kill();
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  for (int fd : {stdin_, stdout_, stderr_}) {
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
    // SIGPIPE is ignored by the daemon's main; a child that has closed its stdin gives EPIPE.
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

void ChildProcess::Kill() {
  if (end_.has_value()) return;
  kill(-pid_, SIGKILL);
  kill(pid_, SIGKILL);
}

absl::optional<ProcessEnd> ChildProcess::TryReap() {
  if (end_.has_value()) return end_;
  siginfo_t info = {};
  if (waitid(P_PID, pid_, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return absl::nullopt;
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

}  // namespace tacc::worker
