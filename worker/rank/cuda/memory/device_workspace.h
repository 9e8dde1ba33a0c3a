#ifndef TACC_WORKER_RANK_CUDA_MEMORY_DEVICE_WORKSPACE_H_
#define TACC_WORKER_RANK_CUDA_MEMORY_DEVICE_WORKSPACE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/rank/cuda/memory/device_heap.h"

namespace tacc::worker {

// Where device memory that LibTorch asks for comes from (CudaAllocator asks here; no CUDA in this class).
//
// Before a workspace is set: from the system. Then: on the workspace's streams from the workspace, and what does not
// fit is an error, so that a plan that is too small is seen at once. A freed block goes to whoever asks next, who is
// queued behind its last user: that is why only streams that the caller orders among themselves may be the workspace's.
// On any other stream from the system, which waits for the device before it takes memory back; never while that stream
// is captured, when the system may not be asked. Thread-safe.
class DeviceWorkspace {
 public:
  // A CUDA stream.
  using Stream = const void*;

  // Allocates and frees without a workspace: cudaMalloc, cudaFree.
  struct System {
    std::function<absl::StatusOr<void*>(int64_t num_bytes)> allocate;
    std::function<void(void* data)> free;
  };

  enum class Capture { kOff, kOn };

  struct Stats {
    int64_t system_blocks_before = 0;  // Blocks of the system before there was a workspace,
    int64_t system_blocks_after = 0;   // and since,
    int64_t system_bytes = 0;          // and the bytes of all that live.
    int64_t num_refused = 0;           // Requests that failed.
    int64_t largest_refused_bytes = 0;
    DeviceHeap::Stats heap;
  };

  explicit DeviceWorkspace(System system);

  // From now on serves from `num_bytes` at `begin`, which must outlive every block. Once at most.
  void SetWorkspace(void* begin, int64_t num_bytes, std::vector<Stream> streams);

  // Errors: ResourceExhausted, which says how many bytes were wanted and free; FailedPrecondition for a system's block
  // under capture; what the system says.
  absl::StatusOr<void*> Allocate(int64_t num_bytes, Stream stream, Capture capture);

  // Frees what Allocate returned; false where `data` is no such block.
  bool Free(void* data);

  Stats stats() const;
  // The workspace's peak begins again from what is used now.
  void ResetPeak();

 private:
  absl::Status Refuse(int64_t num_bytes, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const System system_;
  mutable absl::Mutex mutex_;
  std::unique_ptr<DeviceHeap> heap_ ABSL_GUARDED_BY(mutex_);
  std::vector<Stream> streams_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<void*, int64_t> system_blocks_ ABSL_GUARDED_BY(mutex_);  // their bytes
  Stats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_MEMORY_DEVICE_WORKSPACE_H_
