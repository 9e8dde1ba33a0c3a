// Kernels that move elements: any dtype, never converted (except reductions, whose result may have another dtype).
#ifndef TACC_KERNELS_CPU_SHAPE_H_
#define TACC_KERNELS_CPU_SHAPE_H_

#include <vector>

#include "kernels/tensor.h"

namespace tacc::kernels::cpu {

// Distances in elements between neighbours in each dim; 0 repeats.
using Strides = Dims;

// to[i0, i1, ...] = from[i0, i1, ...] over `dims`, each side with its own strides; element_bytes is 1, 2, 4 or 8. The
// two must not overlap.
void StridedCopy(const Dims& dims, int64_t element_bytes, const void* from, const Strides& from_strides, void* to,
                 const Strides& to_strides);

// Row-major strides of a dense tensor.
Strides DenseStrides(const Dims& dims);

// y's dim i is x's dim perm[i].
void Transpose(const TensorView& x, const Dims& perm, const TensorView& y);
// y = x[..., start : start + y.dims[dim], ...] along dim.
void Slice(const TensorView& x, int dim, int64_t start, const TensorView& y);
// y = xs side by side along dim.
void Concat(const std::vector<TensorView>& xs, int dim, const TensorView& y);
// y = x with `low` zeros before and as many behind as y's extent leaves, along dim.
void Pad(const TensorView& x, int dim, int64_t low, const TensorView& y);
// x's dim i is y's dim dims[i]; other dims of y repeat x.
void Broadcast(const TensorView& x, const Dims& dims, const TensorView& y);
// Zeroes in place the elements of x outside bounds (extents from the first element of each dim).
void MaskPadding(const TensorView& x, const Dims& bounds);

// Sums or maxima over the dims named (in increasing order), which y lacks. Sums have f64 accumulators and an order
// fixed by the dims alone; over nothing a sum is 0 and a maximum -inf; NaN gives NaN.
void ReduceSum(const TensorView& x, const Dims& dims, const TensorView& y);
void ReduceMax(const TensorView& x, const Dims& dims, const TensorView& y);

}  // namespace tacc::kernels::cpu

#endif  // TACC_KERNELS_CPU_SHAPE_H_
