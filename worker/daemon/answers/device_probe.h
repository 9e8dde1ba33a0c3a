// What this daemon's device can do, measured once by `tacc-rank --probe` and remembered.
#ifndef TACC_WORKER_DAEMON_ANSWERS_DEVICE_PROBE_H_
#define TACC_WORKER_DAEMON_ANSWERS_DEVICE_PROBE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tacc/v1/worker.pb.h"

namespace tacc::worker {

struct ProbeRequest {
  std::string rank_path;  // tacc-rank.
  std::string version;    // This build's.
  std::string device;     // "cpu", "cuda:0".
  int num_threads = 1;
  std::string cpu_model;
  std::string cache_path;  // File that remembers the last probe.
  double timeout_seconds = 120;
  std::vector<int> end_descriptors;  // The probe is given up when one of these is readable or at its end of file.
};

// Returns the profile: from the file when the same tacc-rank measured it with the same CPU model and threads (and, for
// a GPU, the same CUDA module, model and driver), else by running the probe. A GPU's profile then holds what LookAtGpu
// has just found. Its memory_bytes is what the probe saw; the caller sets its own. A probe that was cut short is not
// remembered. Blocks while the probe runs. Errors: InvalidArgument when there is no such device (tacc-rank's exit code
// 2), DeadlineExceeded and FailedPrecondition with what the probe said; Cancelled when it was given up.
absl::StatusOr<v1::DeviceProfile> ProbeDevice(const ProbeRequest& request);

// Returns what a GPU is and has free now, by `tacc-rank --look`: the fields of the profile that need no measurement.
// Errors: as ProbeDevice, when it cannot be used.
absl::StatusOr<v1::DeviceProfile> LookAtGpu(const ProbeRequest& request);

// Sets the memory of a GPU that a rank may use: `wanted` bytes, or, when that is 0, all that is free less `reserve`.
// Errors: FailedPrecondition, with what to do, when so much is not free.
absl::Status ShareGpuMemory(int64_t wanted, int64_t reserve, v1::DeviceProfile* device);

// The user's cache directory for tacc, or `state_dir` when the environment names none.
std::string CacheDirectory(const std::string& state_dir);

// Returns the file for ProbeRequest::cache_path: one for each device and number of threads, in CacheDirectory, so that
// daemons with fresh state directories need not measure again.
std::string ProbeCachePath(const std::string& state_dir, const std::string& device, int num_threads);

// Parses the probe's JSON (docs/contracts.md). Errors: InvalidArgument, with the field.
absl::StatusOr<v1::DeviceProfile> ParseDeviceProfile(const std::string& text);

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_ANSWERS_DEVICE_PROBE_H_
