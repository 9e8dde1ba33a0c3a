#include "worker/rank/cuda/memory/device_heap.h"

#include <algorithm>
#include <iterator>

namespace tacc::worker {

DeviceHeap::DeviceHeap(void* begin, int64_t num_bytes)
    : begin_(static_cast<char*>(begin)), total_bytes_(num_bytes / kGrainBytes * kGrainBytes) {
  stats_.total_bytes = total_bytes_;
  if (total_bytes_ == 0) return;
  gaps_.emplace(0, total_bytes_);
  gaps_by_size_.emplace(total_bytes_, 0);
}

void* DeviceHeap::Allocate(int64_t num_bytes) {
  if (num_bytes <= 0 || num_bytes > total_bytes_) return nullptr;
  const int64_t needed = (num_bytes + kGrainBytes - 1) / kGrainBytes * kGrainBytes;
  absl::MutexLock lock(&mutex_);
  const auto best = gaps_by_size_.lower_bound({needed, 0});
  if (best == gaps_by_size_.end()) return nullptr;
  const auto [gap_bytes, offset] = *best;
  gaps_by_size_.erase(best);
  gaps_.erase(offset);
  if (gap_bytes > needed) {
    gaps_.emplace(offset + needed, gap_bytes - needed);
    gaps_by_size_.emplace(gap_bytes - needed, offset + needed);
  }
  used_.emplace(offset, needed);
  stats_.used_bytes += needed;
  stats_.peak_used_bytes = std::max(stats_.peak_used_bytes, stats_.used_bytes);
  stats_.highest_bytes = std::max(stats_.highest_bytes, offset + needed);
  return begin_ + offset;
}

bool DeviceHeap::Free(void* data) {
  if (!Contains(data)) return false;
  absl::MutexLock lock(&mutex_);
  const auto block = used_.find(static_cast<char*>(data) - begin_);
  if (block == used_.end()) return false;
  Offset offset = block->first;
  int64_t num_bytes = block->second;
  used_.erase(block);
  stats_.used_bytes -= num_bytes;
  auto after = gaps_.lower_bound(offset);
  if (after != gaps_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      num_bytes += before->second;
      gaps_by_size_.erase({before->second, before->first});
      gaps_.erase(before);
    }
  }
  if (after != gaps_.end() && after->first == offset + num_bytes) {
    num_bytes += after->second;
    gaps_by_size_.erase({after->second, after->first});
    gaps_.erase(after);
  }
  gaps_.emplace(offset, num_bytes);
  gaps_by_size_.emplace(num_bytes, offset);
  return true;
}

bool DeviceHeap::Contains(const void* data) const {
  const uintptr_t address = reinterpret_cast<uintptr_t>(data), begin = reinterpret_cast<uintptr_t>(begin_);
  return address >= begin && address < begin + static_cast<uintptr_t>(total_bytes_);
}

void DeviceHeap::ResetPeak() {
  absl::MutexLock lock(&mutex_);
  stats_.peak_used_bytes = stats_.used_bytes;
}

DeviceHeap::Stats DeviceHeap::stats() const {
  absl::MutexLock lock(&mutex_);
  Stats stats = stats_;
  stats.num_blocks = static_cast<int64_t>(used_.size());
  stats.largest_free_bytes = gaps_by_size_.empty() ? 0 : gaps_by_size_.rbegin()->first;
  return stats;
}

}  // namespace tacc::worker
