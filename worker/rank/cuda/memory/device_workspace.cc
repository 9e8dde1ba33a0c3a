#include "worker/rank/cuda/memory/device_workspace.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace tacc::worker {

DeviceWorkspace::DeviceWorkspace(System system) : system_(std::move(system)) {}

void DeviceWorkspace::SetWorkspace(void* begin, int64_t num_bytes, std::vector<Stream> streams) {
  absl::MutexLock lock(&mutex_);
  TACC_KERNEL_CHECK(heap_ == nullptr);
  heap_ = std::make_unique<DeviceHeap>(begin, num_bytes);
  streams_ = std::move(streams);
}

absl::Status DeviceWorkspace::Refuse(int64_t num_bytes, absl::Status status) {
  ++stats_.num_refused;
  stats_.largest_refused_bytes = std::max(stats_.largest_refused_bytes, num_bytes);
  return status;
}

absl::StatusOr<void*> DeviceWorkspace::Allocate(int64_t num_bytes, Stream stream, Capture capture) {
  if (num_bytes <= 0) return nullptr;
  absl::MutexLock lock(&mutex_);
  if (heap_ != nullptr && std::find(streams_.begin(), streams_.end(), stream) != streams_.end()) {
    if (void* data = heap_->Allocate(num_bytes)) return data;
    const DeviceHeap::Stats heap = heap_->stats();
    return Refuse(
        num_bytes,
        absl::ResourceExhaustedError(absl::StrCat(
            "the planned GPU workspace of ", heap.total_bytes, " bytes is too small: ", num_bytes, " bytes wanted, ",
            heap.total_bytes - heap.used_bytes, " free, the largest gap ", heap.largest_free_bytes,
            ". The plan counts too little for an operator: please report the job; a smaller micro_batch or "
            "sequence makes room")));
  }
  if (capture == Capture::kOn) {
    return Refuse(num_bytes, absl::FailedPreconditionError(absl::StrCat(
                                 num_bytes, " bytes wanted from the GPU's system memory while a CUDA graph is captured",
                                 heap_ == nullptr ? ", before there is a workspace"
                                                  : ", on a stream that the workspace does not serve")));
  }
  absl::StatusOr<void*> data = system_.allocate(num_bytes);
  if (!data.ok()) return Refuse(num_bytes, data.status());
  system_blocks_[*data] = num_bytes;
  stats_.system_bytes += num_bytes;
  ++(heap_ == nullptr ? stats_.system_blocks_before : stats_.system_blocks_after);
  return data;
}

bool DeviceWorkspace::Free(void* data) {
  if (data == nullptr) return true;
  absl::MutexLock lock(&mutex_);
  if (heap_ != nullptr && heap_->Contains(data)) return heap_->Free(data);
  const auto block = system_blocks_.find(data);
  if (block == system_blocks_.end()) return false;
  stats_.system_bytes -= block->second;
  system_blocks_.erase(block);
  system_.free(data);
  return true;
}

void DeviceWorkspace::ResetPeak() {
  absl::MutexLock lock(&mutex_);
  if (heap_ != nullptr) heap_->ResetPeak();
}

DeviceWorkspace::Stats DeviceWorkspace::stats() const {
  absl::MutexLock lock(&mutex_);
  Stats stats = stats_;
  if (heap_ != nullptr) stats.heap = heap_->stats();
  return stats;
}

}  // namespace tacc::worker
