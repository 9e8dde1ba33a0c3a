// Dropout of kernels/cpu/dropout.h on the GPU: the same function and contract, on device memory, and the same elements
// dropped.
#ifndef TACC_KERNELS_CUDA_DROPOUT_H_
#define TACC_KERNELS_CUDA_DROPOUT_H_

#include "kernels/cpu/dropout.h"
#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

using cpu::DropoutParameters;
using cpu::SamplePart;

// part.positions are at most 128 runs of neighbours: a kernel takes them by value.
void Dropout(const TensorView& x, const TensorView& step, const TensorView& sample, const SamplePart& part,
             const DropoutParameters& parameters, const TensorView& y);

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_DROPOUT_H_
