#ifndef TACC_WORKER_RANK_TORCH_C10_ALLOCATOR_H_
#define TACC_WORKER_RANK_TORCH_C10_ALLOCATOR_H_

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "worker/rank/device/host_workspace.h"
#include "worker/rank/device/workspace_heap.h"

namespace tacc::worker {

// LibTorch's CPU allocator in a rank: what its operators allocate inside is served from the planned workspace, so that
// a step takes no memory from the system. What does not fit there, and everything while there is no workspace, comes
// from malloc; both are counted. Installed process-wide, first in main, by c10::SetAllocator(c10::kCPU, &allocator, 1);
// must outlive LibTorch's last tensor.
//
// Contract of c10: the DataPtr's data is its context and raw_deleter is not null; here a 64-byte header in front of the
// data names the heap that it belongs to. Thread-safe.
class WorkspaceAllocator : public c10::Allocator, public HostWorkspace {
 public:
  // Smaller blocks are left to malloc, which keeps them, and are not counted.
  static constexpr size_t kSmallBytes = 4096;

  WorkspaceAllocator() = default;

  // From now on allocates in `region` (64-byte aligned), which must outlive every block. Called once at most, when no
  // other thread allocates.
  void SetWorkspace(absl::Span<char> region);

  Stats stats() const override;

  c10::DataPtr allocate(size_t num_bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return &Delete; }
  void copy_data(void* dest, const void* src, std::size_t count) const override;

 private:
  static void Delete(void* data);

  std::unique_ptr<WorkspaceHeap> heap_;
  std::atomic<int64_t> num_fallbacks_{0};
  std::atomic<int64_t> fallback_bytes_{0};
  std::atomic<int64_t> largest_fallback_bytes_{0};
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_TORCH_C10_ALLOCATOR_H_
