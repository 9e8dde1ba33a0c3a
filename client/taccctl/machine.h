// What this machine lets taccctl use, cgroup limits respected.
#pragma once

#include <cstdint>
#include <string>

namespace tacc::client {

struct Machine {
  // CPUs: the least of the affinity mask and the cgroups' quotas (rounded down), at least 1.
  int num_cpus = 1;
  // Memory that can still be taken: the least of MemAvailable and what the cgroups leave.
  int64_t available_memory_bytes = 0;
};

// Looks under `root` ("/" but in tests) for proc and sys/fs/cgroup; `affinity_cpus` is the size of the process's
// affinity mask.
Machine LookAtMachine(const std::string& root, int affinity_cpus);

// This machine.
Machine ThisMachine();

// How CPUs and memory are shared out between workers.
struct WorkerShare {
  int threads = 1;
  int64_t memory_bytes = 0;
  // There are more workers than CPUs: they take turns.
  bool oversubscribed = false;
};

// The share of each of `num_workers`: all CPUs, and nine tenths of the memory (the rest is the coordinator's and the
// system's).
WorkerShare ShareOut(const Machine& machine, int num_workers);

}  // namespace tacc::client
