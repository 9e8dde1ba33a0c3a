// The mixtures of experts of kernels/cpu/expert.h on the GPU: the same functions and contracts, on device memory. How
// many slots an expert has is never read on the host.
#ifndef TACC_KERNELS_CUDA_EXPERT_H_
#define TACC_KERNELS_CUDA_EXPERT_H_

#include "kernels/cpu/expert.h"
#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

using cpu::ExpertWeights;
using cpu::kExpertRows;
using cpu::TopKWeights;

void Softmax(const TensorView& x, const TensorView& y);
void SoftmaxGrad(const TensorView& dy, const TensorView& y, const TensorView& dx);
void TopK(const TensorView& p, TopKWeights kind, const TensorView& weights, const TensorView& ids);
void TopKGrad(const TensorView& dw, const TensorView& p, const TensorView& ids, TopKWeights kind, const TensorView& dp);
void ExpertCounts(const TensorView& ids, const TensorView& counts);

void ExpertMatmul(const TensorView& x, const TensorView& ids, const TensorView& w, ExpertWeights kind, int64_t offset,
                  const TensorView& y);
void ExpertMatmulGrad(const TensorView& a, const TensorView& b, const TensorView& ids, int64_t offset,
                      const TensorView& dw);

// Scratch of both products: of the gradient with `features` 0. slots: the elements of ids; features: those of y.
int64_t ExpertMatmulWorkspaceBytes(int64_t slots, int64_t num_experts, int64_t features, DType dtype);

void MulRows(const TensorView& x, const TensorView& w, const TensorView& y);
void DotRows(const TensorView& a, const TensorView& b, const TensorView& y);

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_EXPERT_H_
