#include "client/taccctl/local/launch.h"

#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "machine/unix_socket.h"

namespace tacc::client {
namespace {

constexpr double kStartSeconds = 30;
// A worker measures its device first.
constexpr double kAttachSeconds = 90;

// Where a log will be found.
std::string Kept(const LaunchOptions& options, const std::string& log_path) {
  return options.keep_logs ? absl::StrCat(options.keep_logs(), log_path.substr(options.directory.size())) : log_path;
}

// The first line of stdout without `prefix`.
absl::StatusOr<std::string> ReadyLine(const LaunchOptions& options, const std::string& name, const std::string& prefix,
                                      const std::string& log_path, double seconds, ChildProcess* child) {
  absl::StatusOr<std::string> line = ReadLine(child, seconds, options.interrupt);
  if (absl::IsUnavailable(line.status())) {
    if (const auto end = child->WaitForEnd(5); end.has_value()) return WhyEnded(options, name, *end, log_path);
  }
  if (absl::IsCancelled(line.status())) return line.status();
  if (!line.ok())
    return absl::InternalError(absl::StrCat(name, " is not ready after ", seconds, " s (", line.status().message(),
                                            "); its log is ", Kept(options, log_path)));
  if (!absl::StartsWith(*line, prefix))
    return absl::InternalError(absl::StrCat(name, " printed \"", *line, "\", wanted \"", prefix, "...\""));
  return line->substr(prefix.size());
}

}  // namespace

std::string CoordinatorLog(const LaunchOptions& options) { return options.directory + "/coordinator.log"; }

std::string WorkerLog(const LaunchOptions& options, int index) {
  return absl::StrCat(options.directory, "/worker-", index, ".log");
}

absl::Status WhyEnded(const LaunchOptions& options, const std::string& name, const ProcessEnd& end,
                      const std::string& log_path) {
  const std::vector<std::string> lines = LastLines(log_path, 20);
  std::vector<std::string> errors;
  for (const std::string& line : lines) {
    absl::string_view message = line;
    if (absl::ConsumePrefix(&message, "error: ")) errors.push_back(std::string(message));
  }
  if (end.exit_code == 2 && !errors.empty())
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", absl::StrJoin(errors, "\n")));
  const std::string text =
      absl::StrCat(name, " ", end.Text(), "; its log is ", Kept(options, log_path),
                   lines.empty() ? " (empty)" : " and ends with:\n  | ", absl::StrJoin(lines, "\n  | "));
  return end.exit_code == 2 ? absl::InvalidArgumentError(text) : absl::InternalError(text);
}

absl::StatusOr<LaunchedCoordinator> LaunchCoordinator(const LaunchOptions& options, const std::string& listen,
                                                      const std::string& metrics_listen) {
  ProcessOptions process;
  process.input = ProcessOptions::Input::kEmpty;
  process.argv = {options.binary_dir + "/tacc-coordinator", "--listen",         listen,        "--state-dir",
                  options.directory + "/coordinator",       "--metrics-listen", metrics_listen};
  if (!options.job_number_file.empty())
    process.argv.insert(process.argv.end(), {"--job-number-file", options.job_number_file});
  if (!IsUnixAddress(listen)) process.argv.push_back("--insecure");
  process.lifetime = options.lifetime;
  process.stderr_path = CoordinatorLog(options);
  absl::StatusOr<std::unique_ptr<ChildProcess>> child = StartDaemon(process);
  if (!child.ok()) return child.status();
  absl::StatusOr<std::string> address =
      ReadyLine(options, "tacc-coordinator", "listening ", process.stderr_path, kStartSeconds, child->get());
  if (!address.ok()) return address.status();
  return LaunchedCoordinator{*std::move(child), *std::move(address)};
}

absl::StatusOr<std::unique_ptr<ChildProcess>> LaunchWorker(const LaunchOptions& options, const std::string& coordinator,
                                                           int index) {
  ProcessOptions process;
  process.input = ProcessOptions::Input::kEmpty;
  process.argv = {options.binary_dir + "/tacc-worker",
                  "--coordinator",
                  coordinator,
                  "--name",
                  absl::StrCat(options.worker_prefix, "-", index),
                  "--device",
                  options.devices.at(index),
                  "--threads",
                  absl::StrCat(options.share.threads),
                  "--advertise",
                  "127.0.0.1",
                  "--state-dir",
                  absl::StrCat(options.directory, "/worker-", index)};
  if (options.share.memory_bytes > 0) {
    process.argv.insert(process.argv.end(), {"--memory", absl::StrCat(options.share.memory_bytes)});
  }
  if (!options.worker_metrics.empty()) {
    process.argv.insert(process.argv.end(), {"--metrics-listen", options.worker_metrics.at(index)});
  }
  for (const std::string& library : options.op_libraries)
    process.argv.insert(process.argv.end(), {"--op-library", library});
  if (!IsUnixAddress(coordinator)) process.argv.push_back("--insecure");
  process.lifetime = options.lifetime;
  process.stderr_path = WorkerLog(options, index);
  return StartDaemon(process);
}

std::string WorkerMetricsAddress(const LaunchOptions& options, int index) {
  const std::string before = "metrics at http://", after = "/metrics";
  std::string address;
  std::ifstream log(WorkerLog(options, index));
  // The last one is of the process that runs: they share the log.
  for (std::string line; std::getline(log, line);) {
    const size_t begin = line.find(before), end = line.rfind(after);
    if (begin == std::string::npos || end < begin + before.size()) continue;
    address = line.substr(begin + before.size(), end - begin - before.size());
  }
  return address;
}

absl::Status WaitUntilAttached(const LaunchOptions& options, int index, ChildProcess* worker) {
  return ReadyLine(options, absl::StrCat("tacc-worker ", options.worker_prefix, "-", index), "attached ",
                   WorkerLog(options, index), kAttachSeconds, worker)
      .status();
}

}  // namespace tacc::client
