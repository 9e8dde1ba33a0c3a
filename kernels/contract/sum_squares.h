// The squared norm of many tensors together: what clipping by the global norm needs.
#ifndef TACC_KERNELS_CONTRACT_SUM_SQUARES_H_
#define TACC_KERNELS_CONTRACT_SUM_SQUARES_H_

#include <vector>

#include "kernels/tensor.h"

namespace tacc::kernels {

// `bounds`: extents from the first element of each dim, at most those of x; what lies outside is padding.
struct BoundedTensor {
  TensorView x;
  Dims bounds;
};

struct SumSquaresKernels {
  // y[] = sum of the squares of the elements of all x inside their bounds. Sums have f64 accumulators and an order
  // fixed by the dims alone.
  void (&SumSquares)(const std::vector<BoundedTensor>& xs, const TensorView& y);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_SUM_SQUARES_H_
