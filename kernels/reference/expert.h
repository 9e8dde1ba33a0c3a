// References of kernels/contract/expert.h, router.h and dispatch.h, in their shapes.
#ifndef TACC_KERNELS_REFERENCE_EXPERT_H_
#define TACC_KERNELS_REFERENCE_EXPERT_H_

#include <vector>

#include "kernels/reference/tensor.h"

namespace tacc::kernels::reference {

Tensor Softmax(const Tensor& x);
Tensor SoftmaxGrad(const Tensor& dy, const Tensor& x);

// Of each slot its expert's matrix times its token's row. x [T,N], ids [T,K], w [E,M,N] -> [T,K,M].
Tensor ExpertProducts(const Tensor& x, const std::vector<int32_t>& ids, const Tensor& w);

// [T,K,M] -> [T,M].
Tensor SumSlots(const Tensor& y);

// a [T,K,M], b [T,N] -> [E,M,N].
Tensor ExpertOuterProducts(const Tensor& a, const Tensor& b, const std::vector<int32_t>& ids, int64_t num_experts);

}  // namespace tacc::kernels::reference

#endif  // TACC_KERNELS_REFERENCE_EXPERT_H_
