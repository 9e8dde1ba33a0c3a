// The daemon's /metrics, /healthz and /readyz.
#ifndef TACC_WORKER_DAEMON_METRICS_SERVER_H_
#define TACC_WORKER_DAEMON_METRICS_SERVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tacc::worker {

// The state of the loop, which it publishes a few times a second.
struct DaemonSnapshot {
  std::string version;
  std::string worker;  // The daemon's name.
  bool is_attached = false;
  double loop_time = 0;  // Steady seconds of the loop's last turn.
  int num_threads = 0;
  int64_t memory_bytes = 0;
  bool is_device_usable = true;
  uint64_t held_report_bytes = 0;
  uint64_t dropped_reports = 0;
  uint64_t ranks_started = 0;
  // The running rank; an empty `job` says that none runs.
  std::string job;
  int rank = 0;
  int64_t steps_done = 0;
  double still_seconds = 0;
  int64_t peak_memory_bytes = 0;
  std::map<std::string, double> rank_metrics;  // Supervisor::metrics
};

// Thread-safe.
class MetricsServer {
 public:
  // Listens on HOST:PORT (port 0: a free one) and answers until it is destroyed. /healthz answers 200 while loop_time
  // is at most `max_silence_seconds` old. Errors: FailedPrecondition when the address cannot be used.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& address, double max_silence_seconds);
  ~MetricsServer();

  // HOST:PORT with the actual port.
  const std::string& address() const;
  void Publish(DaemonSnapshot snapshot);

 private:
  struct Impl;
  explicit MetricsServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_METRICS_SERVER_H_
