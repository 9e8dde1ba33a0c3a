// Elementwise functions of several tensors, and of none. y may be one of the inputs in place when dtypes agree.
// f64 inputs are computed in f64, bf16 and f16 in f32; the dtype of y is what its view says.
#ifndef TACC_KERNELS_CONTRACT_POINTWISE_H_
#define TACC_KERNELS_CONTRACT_POINTWISE_H_

#include "kernels/tensor.h"

namespace tacc::kernels {

enum class BinaryOp { kAdd, kSub, kMul, kDiv, kMaximum, kMinimum };

struct PointwiseKernels {
  // y = op(a, b); b has a's dims or their trailing part (bias [N], scalar []).
  void (&Binary)(BinaryOp op, const TensorView& a, const TensorView& b, const TensorView& y);

  // y = silu(gate) * up, and its gradients.
  void (&Swiglu)(const TensorView& gate, const TensorView& up, const TensorView& y);
  void (&SwigluGrad)(const TensorView& gate, const TensorView& up, const TensorView& dy, const TensorView& dgate,
                     const TensorView& dup);

  // The same of rows of x that are a gate and its up, one behind the other: x [...,2N], y and dy [...,N], dx [...,2N]
  // with the gradients of both, which may be x.
  void (&SwigluJoined)(const TensorView& x, const TensorView& y);
  void (&SwigluJoinedGrad)(const TensorView& x, const TensorView& dy, const TensorView& dx);

  // y = a if cond[] != 0, else b; cond is a scalar, all of a, b and y have one dtype and dims.
  void (&Select)(const TensorView& cond, const TensorView& a, const TensorView& b, const TensorView& y);

  // y[] = 1 if every element of x is finite, else 0.
  void (&IsFinite)(const TensorView& x, const TensorView& y);

  // Every element of y becomes value.
  void (&Fill)(double value, const TensorView& y);

  // y = first + index along `dim`.
  void (&Iota)(int dim, int64_t first, const TensorView& y);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_POINTWISE_H_
