// The rotary embedding of kernels/cpu/rotary.h on the GPU: the same functions and contracts, on device memory. What
// kernels need of host vectors goes by value in their parameters.
#ifndef TACC_KERNELS_CUDA_ROTARY_H_
#define TACC_KERNELS_CUDA_ROTARY_H_

#include <vector>

#include "kernels/cpu/rotary.h"
#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

using cpu::RotaryDirection;
using cpu::RotaryStyle;

void Positions(const std::vector<int64_t>& given, const TensorView& document_start, const TensorView& positions);
void RopeTable(const std::vector<double>& inv_freq, double attention_scale, const std::vector<int64_t>& given,
               const TensorView& document_start, const TensorView& cos, const TensorView& sin);
void Rotary(const TensorView& x, const TensorView& cos, const TensorView& sin, RotaryStyle style,
            RotaryDirection direction, const TensorView& y, int64_t heads = -1);

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_ROTARY_H_
