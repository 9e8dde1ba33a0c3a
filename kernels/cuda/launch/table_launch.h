// Launches over many tensors: each is cut into chunks, and a team that has a chunk looks up in a table whose it is.
#ifndef TACC_KERNELS_CUDA_LAUNCH_TABLE_LAUNCH_H_
#define TACC_KERNELS_CUDA_LAUNCH_TABLE_LAUNCH_H_

#include <cstdint>
#include <type_traits>

#include "kernels/check.h"
#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/launch/tensor_table.h"

namespace tacc::kernels::cuda {

// Elements of a chunk, where order does not matter; a multiple of any pack.
inline constexpr int64_t kChunk = 16384;

// The elements [begin, end) of a tensor.
struct ChunkRange {
  int64_t begin, end;
};
TACC_DEVICE inline ChunkRange RangeOfChunk(int64_t chunk, int64_t n, int64_t elements = kChunk) {
  const int64_t begin = chunk * elements;
  return {begin, begin + elements < n ? begin + elements : n};
}
inline int64_t NumChunks(int64_t n, int64_t elements = kChunk) { return (n + elements - 1) / elements; }

// Entry: one tensor as the GPU sees it, with no pointer to the host; its member `int64_t first_chunk` is set here.
// Tensors without chunks are left out.
template <typename Entry>
void AddTensor(Entry entry, int64_t num_chunks, TensorTable& table) {
  static_assert(std::is_trivially_copyable_v<Entry> && alignof(Entry) <= 16);
  if (num_chunks == 0) return;
  entry.first_chunk = table.num_chunks;
  const char* bytes = reinterpret_cast<const char*>(&entry);
  table.image.insert(table.image.end(), bytes, bytes + sizeof(Entry));
  table.num_chunks += num_chunks;
  ++table.num_tensors;
}

template <typename Entry, typename F>
struct WorkOnChunk {
  const Entry* entries;  // null: only `one`
  int64_t num_entries;
  Entry one;
  F f;

  TACC_DEVICE void operator()(Team& team, int64_t chunk) const {
    int64_t low = 0, high = num_entries;  // the last one whose first chunk is not behind
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (entries[middle].first_chunk <= chunk) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const Entry entry = entries == nullptr ? one : entries[low];  // A copy: what is stored cannot change it.
    f(team, entry, chunk - entry.first_chunk);
  }
};

// f(team, entry, chunk) for each chunk of each tensor of the table, counted from the tensor's first, in any order; by
// teams of kTeam threads that share `shared_bytes`.
template <int kTeam, typename Entry, typename F>
void ForEachChunk(const TensorTable& table, int64_t shared_bytes, F f) {
  TACC_KERNEL_CHECK(table.num_tensors == 0 || table.device != nullptr);
  TACC_KERNEL_CHECK(reinterpret_cast<uintptr_t>(table.device) % alignof(Entry) == 0);
  ForEachTeam<kTeam>(table.num_chunks, kTeam, shared_bytes,
                     WorkOnChunk<Entry, F>{static_cast<const Entry*>(table.device), table.num_tensors, {}, f});
}

// The same of one tensor, which needs no table.
template <int kTeam, typename Entry, typename F>
void ForEachChunkOf(const Entry& entry, int64_t num_chunks, int64_t shared_bytes, F f) {
  ForEachTeam<kTeam>(num_chunks, kTeam, shared_bytes, WorkOnChunk<Entry, F>{nullptr, 1, entry, f});
}

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_LAUNCH_TABLE_LAUNCH_H_
