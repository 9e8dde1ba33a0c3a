// tacc-worker: owns one device, runs at most one rank on it, and tells the coordinator.
#ifndef TACC_WORKER_DAEMON_DAEMON_H_
#define TACC_WORKER_DAEMON_DAEMON_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "identity/credentials.h"
#include "nlohmann/json_fwd.hpp"
#include "spdlog/logger.h"
#include "tacc/v1/worker.pb.h"
#include "worker/daemon/host/rank_host.h"
#include "worker/daemon/host/run_log.h"
#include "worker/daemon/host/state_directory.h"

namespace tacc::worker {

struct DaemonOptions {
  std::string version;
  std::string coordinator;  // HOST:PORT or unix:PATH.
  identity::Tls tls;        // To it.
  std::string name;
  std::string metrics_listen;    // HOST:PORT; empty: no metrics.
  std::string upload_dir;        // Where this machine keeps what it fetches of uploads.
  int64_t max_upload_bytes = 0;  // As ContentStore::Limits.
  RankPlace place;
  v1::DeviceProfile device;  // With this daemon's name, threads and memory.
  // Looks at the device after a rank has failed on it and returns it as it is now, or why no rank can run on it. May
  // take long; called on a thread. Empty: the device (a CPU) needs no look.
  std::function<absl::StatusOr<v1::DeviceProfile>()> look;
  // Seconds from a look that found trouble to the next.
  double look_again_seconds = 30;
  // The daemon ends when one of these descriptors is readable or at its end of file.
  std::vector<int> end_descriptors;
  // Readable: another program is to take the daemon's place, as soon as nothing is under way that it could not go on
  // with. -1: none ever does.
  int replace_descriptor = -1;
  std::function<absl::Status()> check_replacement;   // Whether that program can; asked before, on the loop's thread.
  StartProcess start_process = ChildProcess::Start;  // For ranks.
  // How long a rank that has said `failed` may take to end by itself: it may be writing a checkpoint.
  double last_words_seconds = 600;
  // How long a process that was killed may take to end, before it is given up and the device with it.
  double reap_seconds = 60;
  // How long a rank may take to end by itself when the daemon ends.
  double stop_seconds = 2;
  // How long the last reports may take to reach the coordinator then.
  double flush_seconds = 1;
  RunLog::Limits run_log;
  // Called once, on the loop's thread, when the coordinator has first registered this daemon.
  std::function<void()> on_attached;
};

// Runs on this thread until an end descriptor says so and returns OK, with the rank killed and reaped. `state` and
// `logger` must outlive the call. Errors: FailedPrecondition or InvalidArgument, in the coordinator's words, when it
// refuses this daemon; FailedPrecondition when metrics_listen cannot be used.
//
// `handed` is what another daemon in this process has handed over, of which this one takes the place: null at the start
// of a first one. When the call returns OK it is what this one hands over, with the rank running on; null: it has
// ended. InvalidArgument: it cannot be read.
absl::Status RunDaemon(const DaemonOptions& options, StateDirectory* state, spdlog::logger* logger,
                       nlohmann::json* handed = nullptr);

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_DAEMON_H_
