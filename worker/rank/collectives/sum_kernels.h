#ifndef TACC_WORKER_RANK_COLLECTIVES_SUM_KERNELS_H_
#define TACC_WORKER_RANK_COLLECTIVES_SUM_KERNELS_H_

#include <cstdint>

#include "kernels/tensor.h"

namespace tacc::worker {

// True for the dtypes that can be summed: all but bool.
bool CanSum(kernels::DType dtype);
// The type in which sums of `dtype` are kept: f32 for bf16 and f16, else the type itself.
kernels::DType SumType(kernels::DType dtype);

// sum[i] = x[i], and sum[i] += x[i], for n elements: x of `dtype`, sum of SumType(dtype).
void CopyElements(kernels::DType dtype, const void* x, void* sum, int64_t n);
void AddElements(kernels::DType dtype, const void* x, void* sum, int64_t n);

// y[i] = sum[i] rounded to `to` (nearest, ties to even), for sums of type `from`. Floating types convert into each
// other; an integer type only into itself.
bool CanRound(kernels::DType from, kernels::DType to);
void RoundElements(kernels::DType from, const void* sum, kernels::DType to, void* y, int64_t n);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_COLLECTIVES_SUM_KERNELS_H_
