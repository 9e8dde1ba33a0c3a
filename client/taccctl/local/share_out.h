// How this machine is shared out between the workers of a local job.
#ifndef TACC_CLIENT_TACCCTL_LOCAL_SHARE_OUT_H_
#define TACC_CLIENT_TACCCTL_LOCAL_SHARE_OUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "machine/machine.h"

namespace tacc::client {

struct WorkerShare {
  int threads = 1;
  int64_t memory_bytes = 0;
};

// The share of each of `num_workers` on CPUs: all CPUs, and nine tenths of the memory (the rest is the coordinator's
// and the system's).
WorkerShare ShareOut(const LocalMachine& machine, int num_workers);

// What `taccctl submit --local` and `up` give each worker of these devices: its share; of GPUs that of the CPUs, and
// whatever memory is free there. `threads` (0: not) and `memory` (empty: not) say otherwise. InvalidArgument when the
// latter is no size.
absl::StatusOr<WorkerShare> ShareFor(const LocalMachine& machine, const std::vector<std::string>& devices, int threads,
                                     const std::string& memory);

// "" when there is a CPU for each thread of the workers; else a line that says so. `lower`: the options that would
// help.
std::string TurnsWarning(const LocalMachine& machine, int num_workers, int threads, const std::string& lower);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_LOCAL_SHARE_OUT_H_
