#include "worker/rank/device/region.h"

#include <algorithm>
#include <cstring>

namespace tacc::worker {
namespace {

template <typename Copy>
void ForEachRun(const Region& region, int64_t begin, int64_t count, const Copy& copy) {
  int64_t done = 0;
  while (done < count) {
    const int64_t run = (begin + done) / region.run_bytes;
    const int64_t within = (begin + done) % region.run_bytes;
    const int64_t n = std::min(region.run_bytes - within, count - done);
    copy(region.data + run * region.stride_bytes + within, done, n);
    done += n;
  }
}

}  // namespace

void PackRegion(const Region& region, int64_t begin, int64_t count, char* flat) {
  ForEachRun(region, begin, count, [flat](char* data, int64_t at, int64_t n) { std::memcpy(flat + at, data, n); });
}

void UnpackRegion(const char* flat, int64_t begin, int64_t count, const Region& region) {
  ForEachRun(region, begin, count, [flat](char* data, int64_t at, int64_t n) { std::memcpy(data, flat + at, n); });
}

void CopyRegion(const Region& from, const Region& to) {
  if (from.bytes() == 0 || (from.data == to.data && from.stride_bytes == to.stride_bytes)) return;
  if (from.IsContiguous()) {
    UnpackRegion(from.data, 0, from.bytes(), to);
  } else {
    ForEachRun(from, 0, from.bytes(), [&to](char* data, int64_t at, int64_t n) { UnpackRegion(data, at, n, to); });
  }
}

void ClearRegion(const Region& region) {
  for (int64_t i = 0; i < region.runs; ++i) std::memset(region.data + i * region.stride_bytes, 0, region.run_bytes);
}

}  // namespace tacc::worker
