// Elementwise functions of one tensor, and casts. y may be x in place when dtypes agree.
// f64 inputs are computed in f64, bf16 and f16 in f32; the dtype of y is what its view says.
#ifndef TACC_KERNELS_CONTRACT_UNARY_H_
#define TACC_KERNELS_CONTRACT_UNARY_H_

#include "kernels/tensor.h"

namespace tacc::kernels {

enum class UnaryOp {
  kCast,
  kNeg,
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kSin,
  kCos,
  kTanh,
  kSigmoid,
  kRelu,
  kSilu,
  kSquare,
  kGelu,
  kGeluTanh,
  kScale,
  kAddScalar,
  kClamp
};
enum class UnaryGradOp { kTanh, kRelu, kSilu, kSigmoid, kGelu, kGeluTanh, kClamp };

// Of kScale (factor), kAddScalar (value) and kClamp (min, max).
struct UnaryParameters {
  double p0 = 0;
  double p1 = 0;
};

struct UnaryKernels {
  // y[i] = op(x[i]); as many elements in y as in x. kCast converts any dtype to any other.
  void (&Unary)(UnaryOp op, const TensorView& x, const TensorView& y, UnaryParameters parameters);

  // dx[i] = dy[i] * op'(x[i]).
  void (&UnaryGrad)(UnaryGradOp op, const TensorView& x, const TensorView& dy, const TensorView& dx,
                    UnaryParameters parameters);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_UNARY_H_
