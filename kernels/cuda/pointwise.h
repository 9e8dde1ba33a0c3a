// The kernels of kernels/cpu/pointwise.h on the GPU: the same functions and contracts, on device memory.
#ifndef TACC_KERNELS_CUDA_POINTWISE_H_
#define TACC_KERNELS_CUDA_POINTWISE_H_

#include <vector>

#include "kernels/cpu/pointwise.h"
#include "kernels/cuda/launch/tensor_table.h"
#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

using cpu::BoundedTensor;
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
void SwigluJoined(const TensorView& x, const TensorView& y);
void SwigluJoinedGrad(const TensorView& x, const TensorView& dy, const TensorView& dx);
void Select(const TensorView& cond, const TensorView& a, const TensorView& b, const TensorView& y);
void IsFinite(const TensorView& x, const TensorView& y);
// The order of the sum depends on the dims of all x, the dtypes and whether they start at multiples of 16 bytes. Two
// launches with a table, one more for each further x without. Takes scratch of 8 bytes for each of at most 16,384
// chunks and, beyond those, for each x.
void SumSquares(const std::vector<BoundedTensor>& xs, const TensorView& y);
void Fill(double value, const TensorView& y);
void Iota(int dim, int64_t first, const TensorView& y);

// Many tensors in one launch, to the bit what one at a time makes of each.
TensorTable SumSquaresTable(const std::vector<BoundedTensor>& xs);
void SumSquaresMany(const TensorTable& table, const TensorView& y);
struct CastPair {
  TensorView x, y;
};
TensorTable CastTable(const std::vector<CastPair>& casts);
void CastMany(const TensorTable& table);
struct FillOf {
  double value;
  TensorView y;
};
TensorTable FillTable(const std::vector<FillOf>& fills);
void FillMany(const TensorTable& table);

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_POINTWISE_H_
