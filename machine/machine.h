// What this machine is and lets this process use, cgroup limits respected.
#ifndef TACC_MACHINE_MACHINE_H_
#define TACC_MACHINE_MACHINE_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace tacc {

struct LocalMachine {
  std::string cpu_model = "unknown CPU";
  // CPUs: the least of the affinity mask and the cgroups' quotas (rounded down), at least 1.
  int num_cpus = 1;
  // The least of the machine's memory and the cgroups' limits.
  int64_t memory_bytes = 0;
  // What of it can still be taken: the least of MemAvailable and what the cgroups leave.
  int64_t available_memory_bytes = 0;
};

// Looks under `root` ("/" but in tests) for proc and sys/fs/cgroup, version 1 and 2, limits of every level;
// `affinity_cpus` is the size of the process's affinity mask.
LocalMachine LookAtMachine(const std::string& root, int affinity_cpus);

// This machine.
LocalMachine ThisMachine();

// Memory that this process holds now, shared libraries included; 0 when the system does not say.
int64_t ResidentBytes();

// The seconds in which each thread of this process, by its id, had work and did not run, since it began: other threads
// did, or a cgroup's quota was used up. Empty where the kernel does not say. `root` as for LookAtMachine.
std::map<int, double> ThreadWaitSeconds(const std::string& root);

// Opens /dev/null where standard input, output or error is closed, so that no file or pipe gets its number: what is
// printed would go there.
void KeepStandardStreams();

// Lets this process open as many files at once as it may (the hard limit of `ulimit -n`), and returns how many that
// are. Its children inherit it: a rank has a connection to each other rank.
int RaiseOpenFilesLimit();

// Of a GPU's free memory, what a rank leaves for what no plan counts: kernels and handles of CUDA and its libraries,
// NCCL's buffers. Where nothing else is said (tacc-worker --memory-reserve).
inline constexpr int64_t kGpuReserveBytes = int64_t{1} << 30;

// A size in bytes: "4GiB", "1.5GB", "4096" (KiB, MiB, GiB, TiB; kB, MB, GB, TB; B), at least 1. InvalidArgument
// otherwise.
absl::StatusOr<int64_t> ParseBytes(const std::string& text);

// For people: "173.3 MiB", "12 B".
std::string SizeText(int64_t bytes);

}  // namespace tacc

#endif  // TACC_MACHINE_MACHINE_H_
