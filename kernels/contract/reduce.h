// Reductions over dims, and sums by index. The result may have another dtype than the operand.
#ifndef TACC_KERNELS_CONTRACT_REDUCE_H_
#define TACC_KERNELS_CONTRACT_REDUCE_H_

#include "kernels/tensor.h"

namespace tacc::kernels {

struct ReduceKernels {
  // Sums or maxima over the dims named (in increasing order), which y lacks. Sums have f64 accumulators and an order
  // fixed by the dims alone; over nothing a sum is 0 and a maximum -inf; NaN gives NaN.
  void (&ReduceSum)(const TensorView& x, const Dims& dims, const TensorView& y);
  void (&ReduceMax)(const TensorView& x, const Dims& dims, const TensorView& y);

  // y[.., j, ..] = the sum of x[.., i, ..], in order, of those i along `dim` whose ids[.., i, ..] is j, and 0 of none.
  // ids i64 with x's dims; one that is no index of y's dim is left out. Other dims of y are x's. x and y f32 or f64, of
  // one dtype.
  void (&ScatterAdd)(const TensorView& x, const TensorView& ids, int dim, const TensorView& y);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_REDUCE_H_
