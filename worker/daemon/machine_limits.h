// How many CPUs and how much memory this process may use.
#ifndef WORKER_DAEMON_MACHINE_LIMITS_H_
#define WORKER_DAEMON_MACHINE_LIMITS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace tacc::worker {

struct MachineLimits {
  int num_cpus = 1;
  int64_t memory_bytes = 0;
};

// Reads the limits: CPUs of the affinity mask and of the cgroup's quotas (v2 cpu.max, at every level; rounded down, at
// least 1); memory of the machine and of the cgroup's memory.max. `root` is "/" but in tests; `affinity_cpus` is the
// size of the affinity mask.
MachineLimits ReadMachineLimits(const std::string& root, int affinity_cpus);

// The size of this process's affinity mask.
int AffinityCpus();

// The CPU's model name as /proc/cpuinfo under `root` gives it; "unknown CPU" without one.
std::string CpuModel(const std::string& root);

// Parses "4GiB", "512MiB", "1.5GB", "8000000000": units KiB MiB GiB TiB, KB MB GB TB, B or none. InvalidArgument
// otherwise.
absl::StatusOr<int64_t> ParseBytes(const std::string& text);

}  // namespace tacc::worker

#endif  // WORKER_DAEMON_MACHINE_LIMITS_H_
