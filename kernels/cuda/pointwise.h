// The kernels of kernels/cpu/pointwise.h on the GPU: the same functions and contracts, on device memory.
#ifndef TACC_KERNELS_CUDA_POINTWISE_H_
#define TACC_KERNELS_CUDA_POINTWISE_H_

#include "kernels/cpu/pointwise.h"
#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

using cpu::UnaryParameters;
using simd::BinaryOp;
using simd::UnaryGradOp;
using simd::UnaryOp;

void Unary(UnaryOp op, const TensorView& x, const TensorView& y, UnaryParameters parameters = {});
void UnaryGrad(UnaryGradOp op, const TensorView& x, const TensorView& dy, const TensorView& dx,
               UnaryParameters parameters = {});
void Binary(BinaryOp op, const TensorView& a, const TensorView& b, const TensorView& y);
void Swiglu(const TensorView& gate, const TensorView& up, const TensorView& y);
void SwigluGrad(const TensorView& gate, const TensorView& up, const TensorView& dy, const TensorView& dgate,
                const TensorView& dup);
void Select(const TensorView& cond, const TensorView& a, const TensorView& b, const TensorView& y);
void IsFinite(const TensorView& x, const TensorView& y);
// The order of the sum depends on the dims, the dtype and whether x starts at a multiple of 16 bytes.
void SumSquares(const TensorView& x, const Dims& bounds, const TensorView& y);
// At most 8 KiB.
int64_t SumSquaresWorkspaceBytes(const Dims& bounds);
void Fill(double value, const TensorView& y);
void Iota(int dim, int64_t first, const TensorView& y);

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_POINTWISE_H_
