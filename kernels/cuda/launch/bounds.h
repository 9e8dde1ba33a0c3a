// Which elements of a tensor exist where the rest is padding.
#ifndef TACC_KERNELS_CUDA_LAUNCH_BOUNDS_H_
#define TACC_KERNELS_CUDA_LAUNCH_BOUNDS_H_

#include <cstdint>

#include "kernels/cuda/launch/launch.h"
#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

// Those whose index lies inside `bounds` in every dim. `rank` is 0 where nothing is padding.
struct Bounds {
  int rank = 0;
  int64_t dims[Dims::kMaxRank] = {}, bounds[Dims::kMaxRank] = {};

  Bounds(const Dims& tensor_dims, const Dims& tensor_bounds) {
    TACC_KERNEL_CHECK(tensor_dims.rank() == tensor_bounds.rank());
    bool pads = false;
    for (int d = 0; d < tensor_dims.rank(); ++d) {
      dims[d] = tensor_dims[d];
      bounds[d] = tensor_bounds[d];
      pads = pads || bounds[d] < dims[d];
    }
    if (pads) rank = tensor_dims.rank();
  }

  // Of the i-th element in row-major order.
  TACC_DEVICE bool Contains(int64_t i) const {
    for (int d = rank - 1; d >= 0; --d) {
      if (i % dims[d] >= bounds[d]) return false;
      i /= dims[d];
    }
    return true;
  }
};

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_LAUNCH_BOUNDS_H_
