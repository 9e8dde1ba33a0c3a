// The cross-entropy of kernels/cpu/cross_entropy.h on the GPU: the same functions and contracts, on device memory. Rows
// of any length; loss and count are sums in an order that only the number of tokens decides.
#ifndef TACC_KERNELS_CUDA_CROSS_ENTROPY_H_
#define TACC_KERNELS_CUDA_CROSS_ENTROPY_H_

#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

void CrossEntropy(const TensorView& logits, const TensorView& targets, int64_t offset, const Dims& bounds,
                  const TensorView& loss, const TensorView& count, const TensorView& lse);
void LogSumExp(const TensorView& x, int64_t valid, const TensorView& y);
void CrossEntropySum(const TensorView& logits, const TensorView& targets, const TensorView& lse, int64_t offset,
                     int64_t valid, const Dims& bounds, const TensorView& loss, const TensorView& count);
void CrossEntropyGrad(const TensorView& logits, const TensorView& targets, const TensorView& lse,
                      const TensorView& dloss, int64_t offset, const Dims& bounds, const TensorView& dlogits);

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_CROSS_ENTROPY_H_
