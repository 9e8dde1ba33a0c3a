#include "worker/rank/torch/c10_allocator.h"

#include <cstdlib>
#include <new>

namespace tacc::worker {
namespace {

// The block's owner sits in the last bytes of the 64 in front of the data: WorkspaceHeap's header leaves them free.
constexpr size_t kHeaderBytes = WorkspaceHeap::kHeaderBytes;

WorkspaceHeap** Owner(void* data) { return reinterpret_cast<WorkspaceHeap**>(data) - 1; }

}  // namespace

void WorkspaceAllocator::SetWorkspace(absl::Span<char> region) { heap_ = std::make_unique<WorkspaceHeap>(region); }

HostWorkspace::Stats WorkspaceAllocator::stats() const {
  Stats stats;
  stats.num_fallbacks = num_fallbacks_.load();
  stats.fallback_bytes = fallback_bytes_.load();
  stats.largest_fallback_bytes = largest_fallback_bytes_.load();
  if (heap_ != nullptr) stats.heap = heap_->stats();
  return stats;
}

c10::DataPtr WorkspaceAllocator::allocate(size_t num_bytes) {
  const c10::Device device(c10::DeviceType::CPU);
  if (num_bytes == 0) return {nullptr, nullptr, &Delete, device};
  void* data = nullptr;
  WorkspaceHeap* owner = nullptr;
  if (heap_ != nullptr && num_bytes >= kSmallBytes) {
    data = heap_->Allocate(num_bytes);
    if (data != nullptr) {
      owner = heap_.get();
    } else {
      num_fallbacks_.fetch_add(1);
      const int64_t bytes = static_cast<int64_t>(num_bytes);
      fallback_bytes_.fetch_add(bytes);
      int64_t largest = largest_fallback_bytes_.load();
      while (largest < bytes && !largest_fallback_bytes_.compare_exchange_weak(largest, bytes)) {
      }
    }
  }
  if (data == nullptr) {
    void* block = nullptr;
    if (posix_memalign(&block, kHeaderBytes, num_bytes + kHeaderBytes) != 0) throw std::bad_alloc();
    data = static_cast<char*>(block) + kHeaderBytes;
  }
  *Owner(data) = owner;
  return {data, data, &Delete, device};
}

void WorkspaceAllocator::Delete(void* data) {
  if (data == nullptr) return;
  if (WorkspaceHeap* owner = *Owner(data); owner != nullptr) {
    owner->Free(data);
  } else {
    std::free(static_cast<char*>(data) - kHeaderBytes);
  }
}

void WorkspaceAllocator::copy_data(void* dest, const void* src, std::size_t count) const {
  default_copy_data(dest, src, count);
}

}  // namespace tacc::worker
