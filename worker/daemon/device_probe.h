// What this daemon's device can do, measured once by `tacc-rank --probe` and remembered.
#ifndef WORKER_DAEMON_DEVICE_PROBE_H_
#define WORKER_DAEMON_DEVICE_PROBE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tacc/v1/worker.pb.h"

namespace tacc::worker {

struct ProbeRequest {
  std::string rank_path;  // tacc-rank.
  std::string version;    // Of this build.
  std::string device;     // "cpu".
  int num_threads = 1;
  std::string cpu_model;
  std::string cache_path;  // File that remembers the last probe.
  double timeout_seconds = 120;
  std::vector<int> end_descriptors;  // The probe is given up when one of these is readable or at its end of file.
};

// Returns the profile, from the file when it was measured by the same tacc-rank with the same CPU model and threads,
// else by running the probe. Its memory_bytes is what the probe saw; the caller sets its own. DeadlineExceeded,
// FailedPrecondition carry what the probe said; Cancelled: given up.
absl::StatusOr<v1::DeviceProfile> ProbeDevice(const ProbeRequest& request);

// Returns the file for ProbeRequest::cache_path: one for each device and number of threads, in the user's cache
// directory, so that daemons with fresh state directories need not measure again; in `state_dir` when the environment
// names no such directory.
std::string ProbeCachePath(const std::string& state_dir, const std::string& device, int num_threads);

// Parses the probe's JSON (docs/contracts.md). InvalidArgument names the field.
absl::StatusOr<v1::DeviceProfile> ParseDeviceProfile(const std::string& text);

}  // namespace tacc::worker

#endif  // WORKER_DAEMON_DEVICE_PROBE_H_
