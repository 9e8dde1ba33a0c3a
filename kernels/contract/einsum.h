// Einsum of two operands as one matrix product.
#ifndef TACC_KERNELS_CONTRACT_EINSUM_H_
#define TACC_KERNELS_CONTRACT_EINSUM_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/einsum_plan.h"
#include "kernels/tensor.h"

namespace tacc::kernels {

// An einsum of operands of known dims and dtypes. The arithmetic: f64 if an operand is f64; products of 16 bits with
// f32 sums where both operands are of one such dtype and the device multiplies it; else f32, to which narrower operands
// are converted. Each result is rounded to its dtype once, unless a device says otherwise.
class EinsumKernel {
 public:
  virtual ~EinsumKernel() = default;

  // y = einsum(a, b). Views have the dims and dtypes given when it was prepared. y overlaps no operand.
  virtual void Run(const TensorView& a, const TensorView& b, const TensorView& y) const = 0;

  // y = acc + einsum(a, b), rounded once where plan() makes y as it lies; acc has y's dtype, and y's dims, when it may
  // be y, or the last of them (a bias).
  virtual void RunAccumulate(const TensorView& acc, const TensorView& a, const TensorView& b,
                             const TensorView& y) const = 0;

  virtual const EinsumPlan& plan() const = 0;
};

struct EinsumKernels {
  // Does everything that depends on types only: data of the views is not looked at. `part`: where a lies in a larger
  // tensor. Errors: InvalidArgument as PlanEinsum, for an operand that is no float, or when y has other dims than the
  // result.
  absl::StatusOr<std::unique_ptr<EinsumKernel>> (&PrepareEinsum)(const std::string& spec, const TensorView& a,
                                                                 const TensorView& b, const TensorView& y,
                                                                 const EinsumPart& part);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_EINSUM_H_
