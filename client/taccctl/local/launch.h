// Starting a coordinator and workers on this machine (docs/contracts.md, "Processes").
#ifndef TACC_CLIENT_TACCCTL_LOCAL_LAUNCH_H_
#define TACC_CLIENT_TACCCTL_LOCAL_LAUNCH_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/taccctl/local/process.h"
#include "client/taccctl/local/share_out.h"
#include "client/taccctl/session/interrupt.h"

namespace tacc::client {

struct LaunchOptions {
  // Folder of the binaries.
  std::string binary_dir;
  // Must exist; states go into folders in it, logs into files.
  std::string directory;
  // Asked before a message names a log: sees to it that logs can be read after a failure, and returns the folder where.
  // Unset: `directory`.
  std::function<std::string()> keep_logs;
  // Ends waiting for a process that starts (Cancelled) when it is raised; null: nothing does.
  const Interrupt* interrupt = nullptr;
  ProcessOptions::Lifetime lifetime = ProcessOptions::Lifetime::kWithParent;
  // Of each worker. Of a worker on a GPU memory_bytes may be 0: what is free there.
  WorkerShare share;
  // Of each worker, one after the other: "cpu", "cuda:0".
  std::vector<std::string> devices;
  // Of each worker, HOST:PORT of its /metrics, port 0 for a free one; empty: none have it.
  std::vector<std::string> worker_metrics;
  // Of each worker: --op-library.
  std::vector<std::string> op_libraries;
  // Where the coordinator keeps the largest number of a job's id; empty: in its own folder.
  std::string job_number_file;
  // Names of workers are PREFIX-0, PREFIX-1, ...
  std::string worker_prefix = "local";
};

struct LaunchedCoordinator {
  std::unique_ptr<ChildProcess> process;
  // HOST:PORT or unix:PATH at which it serves.
  std::string address;
};

// Starts tacc-coordinator and waits until it serves. `listen` may have port 0; `metrics_listen` as well, or be
// empty: no metrics. A port is open to all who reach it (--insecure): the caller has asked whether it may be. Errors:
// InvalidArgument with what the coordinator said (a port in use), Internal when it ended otherwise, Cancelled.
absl::StatusOr<LaunchedCoordinator> LaunchCoordinator(const LaunchOptions& options, const std::string& listen,
                                                      const std::string& metrics_listen);

// Starts tacc-worker number `index` on its device; does not wait until it is attached.
absl::StatusOr<std::unique_ptr<ChildProcess>> LaunchWorker(const LaunchOptions& options, const std::string& coordinator,
                                                           int index);

// Waits until the worker is attached. Errors as LaunchCoordinator.
absl::Status WaitUntilAttached(const LaunchOptions& options, int index, ChildProcess* worker);

// HOST:PORT at which an attached worker serves /metrics, as its log says; empty when it does not.
std::string WorkerMetricsAddress(const LaunchOptions& options, int index);

std::string CoordinatorLog(const LaunchOptions& options);
std::string WorkerLog(const LaunchOptions& options, int index);

// Why `name` ended, from its log, which is one of the above: its `error:` lines, else its last lines. InvalidArgument
// when it exited with 2.
absl::Status WhyEnded(const LaunchOptions& options, const std::string& name, const ProcessEnd& end,
                      const std::string& log_path);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_LOCAL_LAUNCH_H_
