// Kernels that move elements: any dtype, never converted.
#ifndef TACC_KERNELS_CONTRACT_SHAPE_H_
#define TACC_KERNELS_CONTRACT_SHAPE_H_

#include <cstdint>
#include <vector>

#include "kernels/tensor.h"

namespace tacc::kernels {

struct ShapeKernels {
  // Copies bytes; nothing if from == to.
  void (&CopyBytes)(const void* from, void* to, int64_t bytes);

  // y's dim i is x's dim perm[i].
  void (&Transpose)(const TensorView& x, const Dims& perm, const TensorView& y);

  // y = x[..., start : start + y.dims[dim], ...] along dim.
  void (&Slice)(const TensorView& x, int dim, int64_t start, const TensorView& y);

  // y = xs side by side along dim.
  void (&Concat)(const std::vector<TensorView>& xs, int dim, const TensorView& y);

  // y = x with `low` zeros before and as many behind as y's extent leaves, along dim.
  void (&Pad)(const TensorView& x, int dim, int64_t low, const TensorView& y);

  // x's dim i is y's dim dims[i]; other dims of y repeat x.
  void (&Broadcast)(const TensorView& x, const Dims& dims, const TensorView& y);

  // Zeroes in place the elements of x outside bounds (extents from the first element of each dim).
  void (&MaskPadding)(const TensorView& x, const Dims& bounds);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_SHAPE_H_
