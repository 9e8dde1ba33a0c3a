#include "process/run_program.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>

#include <cmath>
#include <memory>

#include "machine/clock.h"

namespace tacc {
namespace {

constexpr size_t kKeptErrorBytes = 64 << 10;
constexpr int kPollMilliseconds = 20;
// Once both streams have ended, so has the program, almost.
constexpr int kEndingMilliseconds = 1;

// Set from outside, a moment after the start.
void Limit(pid_t pid, const RunLimits& limits) {
  const auto memory_bytes = static_cast<rlim_t>(limits.memory_bytes);
  const rlimit memory{memory_bytes, memory_bytes};
  prlimit(pid, RLIMIT_AS, &memory, nullptr);
  const auto seconds = static_cast<rlim_t>(std::ceil(limits.seconds)) + 1;
  const rlimit cpu{seconds, seconds + 1};  // SIGXCPU, which tells it from a stranger's SIGKILL; then SIGKILL.
  prlimit(pid, RLIMIT_CPU, &cpu, nullptr);
  const rlimit core{0, 0};
  prlimit(pid, RLIMIT_CORE, &core, nullptr);
}

}  // namespace

absl::StatusOr<ProgramResult> RunProgram(const ProcessOptions& options, const RunLimits& limits,
                                         const std::function<bool()>& is_cancelled) {
  const double start = SteadySeconds();
  absl::StatusOr<std::unique_ptr<ChildProcess>> started = ChildProcess::Start(options);
  if (!started.ok()) return started.status();
  ChildProcess& child = **started;
  if (limits.memory_bytes > 0) Limit(child.pid(), limits);
  ProgramResult result;
  bool is_killed = false;
  absl::optional<ProcessEnd> end;
  while (!end.has_value()) {
    pollfd fds[2] = {{child.stdout_fd(), POLLIN, 0}, {child.stderr_fd(), POLLIN, 0}};
    poll(fds, 2, fds[0].fd < 0 && fds[1].fd < 0 ? kEndingMilliseconds : kPollMilliseconds);
    child.ReadStdout(&result.out);
    child.ReadStderr(&result.err);
    if (result.err.size() > 2 * kKeptErrorBytes) result.err.erase(0, result.err.size() - kKeptErrorBytes);
    end = child.TryReap();
    if (end.has_value() || is_killed) continue;
    result.timed_out = SteadySeconds() - start > limits.seconds;
    result.cancelled = is_cancelled();
    result.output_too_long = result.out.size() > limits.output_bytes;
    is_killed = result.timed_out || result.cancelled || result.output_too_long;
    if (is_killed) child.Kill();
  }
  // What it wrote before it ended. Whoever left its group may go on writing.
  for (size_t before = SIZE_MAX; result.out.size() != before && result.out.size() <= limits.output_bytes;) {
    before = result.out.size();
    child.ReadStdout(&result.out);
  }
  child.ReadStderr(&result.err);
  result.end = *end;
  // The CPU limit is the time limit, seen by the kernel.
  if (end->signal == SIGXCPU) result.timed_out = true;
  // The last words of a C++ program.
  result.out_of_memory = end->signal == SIGABRT && result.err.find("std::bad_alloc") != std::string::npos;
  result.seconds = SteadySeconds() - start;
  return result;
}

}  // namespace tacc
