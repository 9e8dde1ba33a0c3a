// Kernels over many tensors in one launch, to the bit what one call a tensor makes of each. A table is made once and
// used any number of times.
#ifndef TACC_KERNELS_CUDA_MANY_TENSORS_H_
#define TACC_KERNELS_CUDA_MANY_TENSORS_H_

#include <vector>

#include "kernels/contract/optimizer.h"
#include "kernels/contract/sum_squares.h"
#include "kernels/cuda/launch/tensor_table.h"
#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

// OptimizerKernels::Update of each, by whichever optimizers.
TensorTable UpdateTable(const std::vector<WeightUpdate>& updates);
void UpdateMany(const TensorTable& table);

// UnaryOp::kCast of each pair.
struct CastPair {
  TensorView x, y;
};
TensorTable CastTable(const std::vector<CastPair>& casts);
void CastMany(const TensorTable& table);

// PointwiseKernels::Fill of each.
struct FillOf {
  double value;
  TensorView y;
};
TensorTable FillTable(const std::vector<FillOf>& fills);
void FillMany(const TensorTable& table);

// SumSquaresKernels::SumSquares. The order of the sum depends on the dims of all x, the dtypes and whether they start
// at multiples of 16 bytes. Two launches; without a table one more for each further x. Takes scratch of 8 bytes for
// each of at most 16,384 chunks and, beyond those, for each x.
TensorTable SumSquaresTable(const std::vector<BoundedTensor>& xs);
void SumSquaresMany(const TensorTable& table, const TensorView& y);

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_MANY_TENSORS_H_
