#ifndef TACC_WORKER_RANK_DEVICE_WORKSPACE_HEAP_H_
#define TACC_WORKER_RANK_DEVICE_WORKSPACE_HEAP_H_

#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

namespace tacc::worker {

// A small heap inside a given region of memory: first fit in address order, neighbours joined when freed. All its
// bookkeeping lies in the region. Thread-safe.
//
// Every block is a multiple of 64 bytes and starts with a 64-byte header; the data behind it is aligned to 64.
class WorkspaceHeap {
 public:
  static constexpr size_t kHeaderBytes = 64;

  struct Stats {
    int64_t used_bytes = 0;     // Of live blocks, headers included.
    int64_t highest_bytes = 0;  // End of the highest block that was ever handed out.
  };

  // `region` must outlive the heap and every block; 64-byte aligned.
  explicit WorkspaceHeap(absl::Span<char> region);
  WorkspaceHeap(const WorkspaceHeap&) = delete;
  WorkspaceHeap& operator=(const WorkspaceHeap&) = delete;

  // Returns `num_bytes` bytes, or null when no gap is large enough.
  void* Allocate(size_t num_bytes);
  // Frees a block of this heap.
  void Free(void* data);

  Stats stats() const;

 private:
  struct Block {
    uint64_t num_bytes;       // Of the whole block.
    uint64_t previous_bytes;  // Of the block before it; 0 for the first.
    uint64_t in_use;
    char reserved[40];
  };
  static_assert(sizeof(Block) == kHeaderBytes);

  Block* Next(Block* block) const {
    char* next = reinterpret_cast<char*>(block) + block->num_bytes;
    return next < end_ ? reinterpret_cast<Block*>(next) : nullptr;
  }
  // Joins `block` with the free block behind it.
  void JoinNext(Block* block);

  char* const begin_;
  char* const end_;
  mutable absl::Mutex mutex_;
  Stats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_DEVICE_WORKSPACE_HEAP_H_
