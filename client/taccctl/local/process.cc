#include "client/taccctl/local/process.h"

#include <poll.h>

#include <algorithm>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "machine/clock.h"

namespace tacc::client {
namespace {

constexpr size_t kMaxLineBytes = 4096;
// How often who waits for a line looks for an interrupt.
constexpr double kLookSeconds = 0.1;

// As taccctl says it.
absl::Status StartError(const std::string& binary, const absl::Status& error) {
  if (absl::IsNotFound(error)) {
    return absl::InternalError(
        absl::StrCat(binary, " is missing; it belongs beside taccctl (build it, or install all of tacc)"));
  }
  return absl::InternalError(error.message());
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> StartDaemon(const ProcessOptions& options) {
  absl::StatusOr<std::unique_ptr<ChildProcess>> child = ChildProcess::Start(options);
  return child.ok() ? std::move(child) : StartError(options.argv[0], child.status());
}

absl::StatusOr<std::string> ReadLine(ChildProcess* child, double seconds, const Interrupt* interrupt) {
  const int interrupts_seen = interrupt == nullptr ? 0 : interrupt->count();
  const double deadline = SteadySeconds() + seconds;
  std::string text;
  while (true) {
    const bool is_open = child->ReadStdout(&text);
    const size_t newline = text.find('\n');
    if (newline != std::string::npos) return text.substr(0, newline);
    if (text.size() > kMaxLineBytes) return absl::InternalError("a line that is too long");
    if (!is_open) return absl::UnavailableError("ended before it was ready");
    const double left = deadline - SteadySeconds();
    if (left <= 0) return absl::DeadlineExceededError("no line in time");
    if (interrupt != nullptr && interrupt->count() > interrupts_seen) return absl::CancelledError("interrupted");
    pollfd waiting = {child->stdout_fd(), POLLIN, 0};
    poll(&waiting, 1, static_cast<int>(std::min(left, kLookSeconds) * 1000) + 1);
  }
}

absl::StatusOr<ProgramResult> RunProgram(const std::string& binary, const std::vector<std::string>& arguments,
                                         double seconds, size_t max_bytes, Interrupt* interrupt) {
  const int interrupts_seen = interrupt->count();
  std::vector<std::string> argv = {binary};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  absl::StatusOr<ProgramResult> result = tacc::RunProgram(
      {.argv = argv, .input = ProcessOptions::Input::kEmpty}, {.seconds = seconds, .output_bytes = max_bytes},
      [&] { return interrupt->count() > interrupts_seen || !interrupt->aborted().ok(); });
  if (!result.ok()) return StartError(binary, result.status());
  if (result->timed_out) return absl::DeadlineExceededError(absl::StrCat(binary, " was stopped after ", seconds, " s"));
  if (result->output_too_long)
    return absl::InternalError(absl::StrCat(binary, " was stopped: it printed more than ", max_bytes, " bytes"));
  if (result->cancelled) return absl::CancelledError(absl::StrCat(binary, " was stopped: interrupted"));
  return result;
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
