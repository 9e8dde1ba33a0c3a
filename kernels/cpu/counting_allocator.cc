#include "kernels/cpu/counting_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace tacc::kernels::cpu {
namespace {

struct Counts {
  std::mutex mutex;
  int64_t live = 0, start = 0, peak = 0;
};

Counts& TheCounts() {
  static Counts counts;
  return counts;
}

constexpr size_t kHeader = 64;  // holds the block's counted size

int64_t Counted(size_t bytes) { return static_cast<int64_t>((bytes + 63) / 64 * 64 + kHeader); }

void Free(void* data) {
  if (data == nullptr) return;
  void* block = static_cast<char*>(data) - kHeader;
  Counts& counts = TheCounts();
  {
    const std::lock_guard<std::mutex> lock(counts.mutex);
    counts.live -= *static_cast<int64_t*>(block);
  }
  std::free(block);
}

class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int64_t counted = Counted(bytes);
    void* block = std::aligned_alloc(64, static_cast<size_t>(counted));
    *static_cast<int64_t*>(block) = counted;
    Counts& counts = TheCounts();
    {
      const std::lock_guard<std::mutex> lock(counts.mutex);
      counts.live += counted;
      counts.peak = std::max(counts.peak, counts.live);
    }
    void* data = static_cast<char*>(block) + kHeader;
    return {data, data, &Free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

}  // namespace

void InstallCountingAllocator() {
  static CountingAllocator allocator;
  c10::SetAllocator(c10::DeviceType::CPU, &allocator, 1);
}

void ResetPeak() {
  Counts& counts = TheCounts();
  const std::lock_guard<std::mutex> lock(counts.mutex);
  counts.start = counts.peak = counts.live;
}

int64_t PeakBytes() {
  Counts& counts = TheCounts();
  const std::lock_guard<std::mutex> lock(counts.mutex);
  return counts.peak - counts.start;
}

}  // namespace tacc::kernels::cpu
