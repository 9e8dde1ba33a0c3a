// Einsum of two operands on LibTorch's matrix products.
#ifndef TACC_KERNELS_CPU_EINSUM_H_
#define TACC_KERNELS_CPU_EINSUM_H_

#include <string>

#include "absl/status/statusor.h"
#include "kernels/contract/einsum.h"
#include "kernels/tensor.h"

namespace tacc::kernels::cpu {

// The arithmetic: f64 if an operand is f64; bf16 products with f32 sums when both are bf16 and the processor multiplies
// bf16 (the result is rounded to bf16 once, also when y is wider); else f32, to which narrower operands are converted.
class CpuEinsum : public EinsumKernel {
 public:
  // Everything that depends on types only. `part`: where a lies in a larger tensor; it is copied out of that first.
  // Errors: InvalidArgument as PlanEinsum, or when y has other dims than the result.
  static absl::StatusOr<CpuEinsum> Prepare(const std::string& spec, const TensorView& a, const TensorView& b,
                                           const TensorView& y, const EinsumPart& part = {});

  void Run(const TensorView& a, const TensorView& b, const TensorView& y) const override;

  // y = acc + einsum(a, b), rounded once where plan() makes y as it lies; acc has y's dtype, and y's dims, when it may
  // be y, or the last of them (a bias).
  void RunAccumulate(const TensorView& acc, const TensorView& a, const TensorView& b,
                     const TensorView& y) const override;

  const EinsumPlan& plan() const override { return plan_; }
  DType compute_type() const { return compute_; }

 private:
  CpuEinsum() = default;
  void Product(const TensorView& a, const TensorView& b, void* result, double beta) const;
  // y lies as the product makes it: no permutation, no conversion.
  bool ResultIsDirect() const { return plan_.result.perm.empty() && y_type_ == compute_; }

  EinsumPlan plan_;
  EinsumPart part_;
  Dims a_dims_, b_dims_;
  DType a_type_ = DType::kF32, b_type_ = DType::kF32, y_type_ = DType::kF32, compute_ = DType::kF32;
};

// Whether this processor multiplies bf16 (AVX-512 BF16 or AMX). Without it bf16 operands are converted to f32.
bool HasBf16Multiply();

}  // namespace tacc::kernels::cpu

#endif  // TACC_KERNELS_CPU_EINSUM_H_
