// Small helpers between TensorView and the loops: scalars, and plain copies.
#ifndef TACC_KERNELS_CPU_VIEWS_H_
#define TACC_KERNELS_CPU_VIEWS_H_

#include "kernels/cpu/simd/loops.h"
#include "kernels/tensor.h"

namespace tacc::kernels::cpu {

inline simd::In In(const TensorView& x) { return {x.data, x.dtype}; }
inline simd::Out Out(const TensorView& y) { return {y.data, y.dtype}; }

// The only element of a tensor, and its inverse.
double ReadScalar(const TensorView& x);
void WriteScalar(double value, const TensorView& y);

// Copies bytes on all threads; nothing if from == to.
void CopyBytes(const void* from, void* to, int64_t bytes);

}  // namespace tacc::kernels::cpu

#endif  // TACC_KERNELS_CPU_VIEWS_H_
