// Joined: operands of attention as heads of one tensor. For tests.
#ifndef TACC_KERNELS_REFERENCE_JOINED_H_
#define TACC_KERNELS_REFERENCE_JOINED_H_

#include "kernels/reference/buffer.h"

namespace tacc::kernels::reference {

// A tensor [B,S,pitch] of B sequences of S tokens: of each token first the heads of q [B,S,H,D], then those of k
// [B,S,K,D], then those of v, and then elements of nobody.
class Joined {
 public:
  // For results: every byte is 0xAB.
  Joined(DType dtype, const Dims& q, const Dims& k, int64_t pitch, Buffer::Placement placement);
  // For operands, rounded to the dtype. What belongs to nobody is NaN.
  Joined(DType dtype, const Tensor& q, const Tensor& k, const Tensor& v, int64_t pitch, Buffer::Placement placement);

  // From their first heads on, with the dims that they have alone.
  TensorView q() const { return Part(0, q_); }
  TensorView k() const { return Part(q_[2] * q_[3], k_); }
  TensorView v() const { return Part((q_[2] + k_[2]) * q_[3], k_); }

  // One of the three by itself.
  Tensor Alone(const TensorView& part) const;
  // Of results: true while nothing was written to what belongs to nobody, nor outside the tensor.
  bool GuardsIntact() const;

 private:
  TensorView Part(int64_t first, const Dims& dims) const;

  Buffer buffer_;
  Dims q_, k_;
};

}  // namespace tacc::kernels::reference

#endif  // TACC_KERNELS_REFERENCE_JOINED_H_
