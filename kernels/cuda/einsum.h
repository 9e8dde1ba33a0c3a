// Einsum of two operands on LibTorch's matrix products.
#ifndef TACC_KERNELS_CUDA_EINSUM_H_
#define TACC_KERNELS_CUDA_EINSUM_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/contract/einsum.h"
#include "kernels/cuda/product.h"
#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

// The arithmetic: f64 if an operand is f64; bf16 (f16) products with f32 sums when both are bf16 (f16); else f32, to
// which narrower operands are converted. The result is rounded to y's dtype once (f64 to f32 first where y is
// narrower).
class CudaEinsum : public EinsumKernel {
 public:
  // Everything that depends on types only. `part`: where a lies in a larger tensor; it is multiplied as it lies.
  // Errors: InvalidArgument as PlanEinsum, or when y has other dims than the result.
  static absl::StatusOr<CudaEinsum> Prepare(const std::string& spec, const TensorView& a, const TensorView& b,
                                            const TensorView& y, const EinsumPart& part = {});

  void Run(const TensorView& a, const TensorView& b, const TensorView& y) const override;

  // y = acc + einsum(a, b), rounded once where plan() makes y as it lies; acc has y's dtype, and y's dims, when it may
  // be y, or the last of them (a bias).
  //
  // A bias costs no pass over y where the product is one GEMM of the operands' own dtype into dense rows of as many
  // elements as the bias has: LibTorch then adds it in the epilogue of cuBLASLt. It does so for addmm with beta 1, a
  // dense result of two dims, a dense bias of one, and no extent of 1; elsewhere y begins as the bias and the product
  // is added to it, which costs what a pass of addition does. Source: isInputCompliesAddmmCudaLt in
  // aten/src/ATen/native/cuda/Blas.cpp of PyTorch 2.11. For wider results than operands it has no epilogue: PyTorch
  // turned that off later, as results were wrong.
  void RunAccumulate(const TensorView& acc, const TensorView& a, const TensorView& b,
                     const TensorView& y) const override;

  // The product that Run makes, or RunAccumulate of an `acc` that is not null; and who is to compute it from now on
  // where it does (FastProduct::Run), instead of LibTorch. Null: LibTorch.
  MatrixProduct product(const TensorView* acc) const;
  void ComputeBy(std::shared_ptr<const FastProduct> fast) { fast_ = std::move(fast); }

  const EinsumPlan& plan() const override { return plan_; }
  DType compute_type() const { return compute_; }

  // Scratch of Run and RunAccumulate: operands that must be permuted or converted, and so the result. cuBLAS's own
  // workspace comes on top, once a stream.
  int64_t WorkspaceBytes() const;

 private:
  CudaEinsum() = default;
  // result (of product_) = the product + what `summand` points to: nothing when null, `result` itself, or a bias that
  // FitsEpilogue.
  void Product(const TensorView& a, const TensorView& b, void* summand, void* result) const;
  bool FitsEpilogue(const TensorView& acc) const;
  // y lies as the product makes it: no permutation, no conversion.
  bool ResultIsDirect() const { return plan_.result.perm.empty() && y_type_ == product_; }

  EinsumPlan plan_;
  Dims a_dims_, b_dims_, a_strides_;
  DType a_type_ = DType::kF32, b_type_ = DType::kF32, y_type_ = DType::kF32;
  DType compute_ = DType::kF32;  // of the operands as they are multiplied,
  DType product_ = DType::kF32;  // and of what comes out.
  std::shared_ptr<const FastProduct> fast_;
};

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_EINSUM_H_
