// The products of kernels/contract/expert.h on tensor cores: for bf16 and f16 operands whose rows can be moved in
// packs.
#ifndef TACC_KERNELS_CUDA_EXPERT_TENSOR_H_
#define TACC_KERNELS_CUDA_EXPERT_TENSOR_H_

#include <cstdint>
#include <initializer_list>

#include "kernels/contract/expert.h"
#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

// Slots in the order of their experts (IdOrder): those of expert e at places starts[e] to starts[e + 1]; those of none
// are number num_experts. Device memory.
struct SortedSlots {
  const int32_t *slots, *starts;
  int64_t num_slots, num_experts;
};

// Whether the functions below take these operands (of one dtype) with rows of n and m elements, and this result.
bool TensorCoresTake(std::initializer_list<TensorView> operands, const TensorView& result, int64_t n, int64_t m,
                     int64_t num_experts);

// y [slots, columns] = the columns from first_column on of each slot's product: row slot / slots_a_row of x times its
// expert's matrix of w. Slots of no expert give zeros.
void ExpertMatmulOnTensorCores(const SortedSlots& sorted, const TensorView& x, int64_t slots_a_row, const TensorView& w,
                               ExpertWeights kind, int64_t first_column, const TensorView& y);

// As ExpertKernels::ExpertMatmulGrad; slots_a_row: of a and of b.
void ExpertMatmulGradOnTensorCores(const SortedSlots& sorted, const TensorView& a, int64_t slots_a_row_a,
                                   const TensorView& b, int64_t slots_a_row_b, const TensorView& dw);

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_EXPERT_TENSOR_H_
