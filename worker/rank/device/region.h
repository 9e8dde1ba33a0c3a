#ifndef TACC_WORKER_RANK_DEVICE_REGION_H_
#define TACC_WORKER_RANK_DEVICE_REGION_H_

#include <cstdint>

namespace tacc::worker {

// Part of a tensor in memory: `runs` pieces of `run_bytes`, their starts `stride_bytes` apart. A slice of a dense
// tensor along one dim is one; a slice of its first dim has one run.
struct Region {
  char* data = nullptr;
  int64_t runs = 0;
  int64_t run_bytes = 0;
  int64_t stride_bytes = 0;

  int64_t bytes() const { return runs * run_bytes; }
  bool IsContiguous() const { return runs <= 1 || stride_bytes == run_bytes; }
};

// `bytes` in a row; none: a region without runs.
inline Region Flat(void* data, int64_t bytes) { return {static_cast<char*>(data), bytes > 0 ? 1 : 0, bytes, bytes}; }

// The functions below are for regions in host memory.

// Copies the bytes [begin, begin + count) of the region to or from `flat`.
void PackRegion(const Region& region, int64_t begin, int64_t count, char* flat);
void UnpackRegion(const char* flat, int64_t begin, int64_t count, const Region& region);
// Copies between regions of equal size that do not overlap (or are the same memory, cut alike: then nothing moves).
void CopyRegion(const Region& from, const Region& to);
// Fills a region with zeros.
void ClearRegion(const Region& region);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_DEVICE_REGION_H_
