// Scratch: memory that a kernel needs while it runs. It comes from LibTorch's CPU allocator, so in a rank it is served
// from the planned workspace, as are the blocks that LibTorch's own operators take.
#ifndef TACC_KERNELS_CPU_SCRATCH_H_
#define TACC_KERNELS_CPU_SCRATCH_H_

#include <cstddef>
#include <cstdint>

namespace tacc::kernels::cpu {

class Scratch {
 public:
  explicit Scratch(int64_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // 64-byte aligned, not zeroed; null if bytes was 0.
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

}  // namespace tacc::kernels::cpu

#endif  // TACC_KERNELS_CPU_SCRATCH_H_
