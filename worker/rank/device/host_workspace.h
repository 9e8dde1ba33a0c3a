#ifndef TACC_WORKER_RANK_DEVICE_HOST_WORKSPACE_H_
#define TACC_WORKER_RANK_DEVICE_HOST_WORKSPACE_H_

#include <cstdint>

#include "worker/rank/device/workspace_heap.h"

namespace tacc::worker {

// How the planned workspace serves what LibTorch's operators allocate inside; said without a header of LibTorch's.
class HostWorkspace {
 public:
  struct Stats {
    int64_t num_fallbacks = 0;           // Blocks that malloc served while there was a workspace,
    int64_t fallback_bytes = 0;          // their sum
    int64_t largest_fallback_bytes = 0;  // and the largest.
    WorkspaceHeap::Stats heap;
  };

  virtual ~HostWorkspace() = default;
  // Any thread, at any time.
  virtual Stats stats() const = 0;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_DEVICE_HOST_WORKSPACE_H_
