// Scratch: device memory that a kernel needs while it runs, from LibTorch's CUDA allocator, so in a rank from the
// planned workspace. It may be given back as soon as the kernels that use it are queued: whoever gets it next is queued
// behind. How much each kernel takes is said in kernels/cuda/workspace.h.
#ifndef TACC_KERNELS_CUDA_SCRATCH_H_
#define TACC_KERNELS_CUDA_SCRATCH_H_

#include <cstddef>
#include <cstdint>

namespace tacc::kernels::cuda {

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

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_SCRATCH_H_
