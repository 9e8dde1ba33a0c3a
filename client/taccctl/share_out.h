// How this machine is shared out between the workers of a local job.
#pragma once

#include <cstdint>

#include "machine/machine.h"

namespace tacc::client {

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
