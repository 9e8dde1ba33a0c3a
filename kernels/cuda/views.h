// Plain copies between places of device memory: CopyBytes of kernels/cpu/views.h on the GPU.
#ifndef TACC_KERNELS_CUDA_VIEWS_H_
#define TACC_KERNELS_CUDA_VIEWS_H_

#include <cstdint>

namespace tacc::kernels::cuda {

// Nothing if from == to.
void CopyBytes(const void* from, void* to, int64_t bytes);

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_VIEWS_H_
