#include "client/taccctl/share_out.h"

#include <algorithm>

namespace tacc::client {

WorkerShare ShareOut(const Machine& machine, int num_workers) {
  WorkerShare share;
  share.threads = std::max(1, machine.num_cpus / num_workers);
  share.memory_bytes = machine.available_memory_bytes / 10 * 9 / num_workers;
  share.oversubscribed = num_workers > machine.num_cpus;
  return share;
}

}  // namespace tacc::client
