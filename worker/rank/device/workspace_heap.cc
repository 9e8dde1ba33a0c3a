#include "worker/rank/device/workspace_heap.h"

#include <algorithm>

namespace tacc::worker {
namespace {

constexpr size_t kGrain = WorkspaceHeap::kHeaderBytes;

size_t BlockBytes(size_t num_bytes) { return (num_bytes + kGrain - 1) / kGrain * kGrain + WorkspaceHeap::kHeaderBytes; }

}  // namespace

WorkspaceHeap::WorkspaceHeap(absl::Span<char> region)
    : begin_(region.data()), end_(region.data() + region.size() / kGrain * kGrain) {
  if (end_ - begin_ < static_cast<ptrdiff_t>(2 * kGrain)) return;
  *reinterpret_cast<Block*>(begin_) = {static_cast<uint64_t>(end_ - begin_), 0, 0, {}};
}

void* WorkspaceHeap::Allocate(size_t num_bytes) {
  if (end_ - begin_ < static_cast<ptrdiff_t>(2 * kGrain) || num_bytes > static_cast<size_t>(end_ - begin_))
    return nullptr;
  const size_t needed = BlockBytes(num_bytes);
  absl::MutexLock lock(&mutex_);
  for (Block* block = reinterpret_cast<Block*>(begin_); block != nullptr; block = Next(block)) {
    if (block->in_use != 0 || block->num_bytes < needed) continue;
    if (block->num_bytes - needed >= 2 * kGrain) {
      Block* following = Next(block);
      Block* rest = reinterpret_cast<Block*>(reinterpret_cast<char*>(block) + needed);
      *rest = {block->num_bytes - needed, needed, 0, {}};
      if (following != nullptr) following->previous_bytes = rest->num_bytes;
      block->num_bytes = needed;
    }
    block->in_use = 1;
    stats_.used_bytes += static_cast<int64_t>(block->num_bytes);
    stats_.highest_bytes =
        std::max<int64_t>(stats_.highest_bytes, reinterpret_cast<char*>(block) + block->num_bytes - begin_);
    return reinterpret_cast<char*>(block) + kHeaderBytes;
  }
  return nullptr;
}

void WorkspaceHeap::JoinNext(Block* block) {
  Block* next = Next(block);
  if (next == nullptr || next->in_use != 0) return;
  block->num_bytes += next->num_bytes;
  if (Block* after = Next(block); after != nullptr) after->previous_bytes = block->num_bytes;
}

void WorkspaceHeap::Free(void* data) {
  absl::MutexLock lock(&mutex_);
  Block* block = reinterpret_cast<Block*>(static_cast<char*>(data) - kHeaderBytes);
  stats_.used_bytes -= static_cast<int64_t>(block->num_bytes);
  block->in_use = 0;
  JoinNext(block);
  if (block->previous_bytes == 0) return;
  Block* previous = reinterpret_cast<Block*>(reinterpret_cast<char*>(block) - block->previous_bytes);
  if (previous->in_use == 0) JoinNext(previous);
}

WorkspaceHeap::Stats WorkspaceHeap::stats() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

}  // namespace tacc::worker
