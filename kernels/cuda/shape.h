// The kernels of kernels/cpu/shape.h on the GPU: the same functions and contracts, on device memory.
#ifndef TACC_KERNELS_CUDA_SHAPE_H_
#define TACC_KERNELS_CUDA_SHAPE_H_

#include <vector>

#include "kernels/cpu/shape.h"
#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

using cpu::DenseStrides;
using cpu::Strides;

void StridedCopy(const Dims& dims, int64_t element_bytes, const void* from, const Strides& from_strides, void* to,
                 const Strides& to_strides);
void Transpose(const TensorView& x, const Dims& perm, const TensorView& y);
void Slice(const TensorView& x, int dim, int64_t start, const TensorView& y);
void Concat(const std::vector<TensorView>& xs, int dim, const TensorView& y);
void Pad(const TensorView& x, int dim, int64_t low, const TensorView& y);
void Broadcast(const TensorView& x, const Dims& dims, const TensorView& y);
void MaskPadding(const TensorView& x, const Dims& bounds);
void ReduceSum(const TensorView& x, const Dims& dims, const TensorView& y);
void ReduceMax(const TensorView& x, const Dims& dims, const TensorView& y);
// Of ReduceSum and ReduceMax of an x of these dims: at most 512 KiB.
int64_t ReduceWorkspaceBytes(const Dims& x, const Dims& dims);

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_SHAPE_H_
