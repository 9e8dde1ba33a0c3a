#ifndef TACC_WORKER_RANK_CUDA_MEMORY_DEVICE_HEAP_H_
#define TACC_WORKER_RANK_CUDA_MEMORY_DEVICE_HEAP_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tacc::worker {

// A heap over a region of memory that the host cannot read, so all its bookkeeping lies outside. Best fit, the lowest
// address among equals; neighbours are joined when freed. The same calls in the same order give the same addresses.
// Thread-safe.
class DeviceHeap {
 public:
  // Blocks are multiples of this, from the region's begin.
  static constexpr int64_t kGrainBytes = 512;

  struct Stats {
    int64_t total_bytes = 0;         // Of the region, in whole grains.
    int64_t used_bytes = 0;          // Of live blocks,
    int64_t num_blocks = 0;          // their number,
    int64_t peak_used_bytes = 0;     // and the most at any time.
    int64_t highest_bytes = 0;       // End of the highest block that was ever handed out: what the region needed.
    int64_t largest_free_bytes = 0;  // The largest block that would be served now.
  };

  // A region of `num_bytes` at `begin`, an address that is never dereferenced; aligned to kGrainBytes.
  DeviceHeap(void* begin, int64_t num_bytes);
  DeviceHeap(const DeviceHeap&) = delete;
  DeviceHeap& operator=(const DeviceHeap&) = delete;

  // Returns a block of at least `num_bytes` (> 0), or null when no gap is large enough.
  void* Allocate(int64_t num_bytes);

  // Frees the live block that begins at `data`. False, and nothing done, where none does.
  bool Free(void* data);

  // Whether `data` lies in the region.
  bool Contains(const void* data) const;

  Stats stats() const;
  // The peak begins again from what is used now.
  void ResetPeak();

 private:
  using Offset = int64_t;

  char* const begin_;
  const int64_t total_bytes_;
  mutable absl::Mutex mutex_;
  std::map<Offset, int64_t> used_ ABSL_GUARDED_BY(mutex_);                     // bytes of each block
  std::map<Offset, int64_t> gaps_ ABSL_GUARDED_BY(mutex_);                     // none beside another
  std::set<std::pair<int64_t, Offset>> gaps_by_size_ ABSL_GUARDED_BY(mutex_);  // the same gaps
  Stats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_MEMORY_DEVICE_HEAP_H_
