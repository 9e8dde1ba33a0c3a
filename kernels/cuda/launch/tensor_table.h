#ifndef TACC_KERNELS_CUDA_LAUNCH_TENSOR_TABLE_H_
#define TACC_KERNELS_CUDA_LAUNCH_TENSOR_TABLE_H_

#include <cstdint>
#include <vector>

namespace tacc::kernels::cuda {

// What the GPU must know of many tensors to work on them in one launch: made once and used any number of times, without
// a word from the host. Before the first launch, `image` is copied to device memory (its address a multiple of 16,
// image.size() bytes) and `device` set to it; both must live as long as launches may be queued. Each operation makes
// its own (kernels/cuda/launch/table_launch.h), of tensors that may be worked on in any order: none is written that
// another one reads or writes.
struct TensorTable {
  std::vector<char> image;  // empty if there are no tensors
  int64_t num_tensors = 0;  // without the empty ones
  int64_t num_chunks = 0;   // parts of tensors, each of which is a team's work
  const void* device = nullptr;
};

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_LAUNCH_TENSOR_TABLE_H_
