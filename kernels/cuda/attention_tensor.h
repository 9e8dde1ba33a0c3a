// Our own attention on tensor cores, for bf16 and f16: any mask, head dims that are multiples of 8 up to 128.
// Probabilities and their gradients are rounded to the operands' dtype before they are multiplied; all sums are in f32.
// Deterministic.
#ifndef TACC_KERNELS_CUDA_ATTENTION_TENSOR_H_
#define TACC_KERNELS_CUDA_ATTENTION_TENSOR_H_

#include <string>

#include "kernels/cuda/attention.h"

namespace tacc::kernels::cuda {

// Empty if TensorAttention may be asked; else why not.
std::string WhyNotTensorAttention(const TensorView& q);

// Scratch: as Attention and AttentionGrad. Operands that do not start at multiples of 16 bytes, those with a pitch that
// is not a multiple of 8, and dropout go to these.
class TensorAttention : public FastAttention {
 public:
  void Run(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionExtras& extras,
           const AttentionParameters& parameters, const TensorView& out, const TensorView& lse) const override;
  void RunGrad(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
               const TensorView& out, const TensorView& lse, const TensorView& first_keys,
               const AttentionParameters& parameters, const TensorView& dq, const TensorView& dk,
               const TensorView& dv) const override;
};

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_ATTENTION_TENSOR_H_
