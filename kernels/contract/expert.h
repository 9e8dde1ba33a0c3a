// Products of tokens by their experts. Shapes: T tokens (any leading dims), K slots of a token, E experts, N and M
// features. Sums do not depend on the number of threads.
#ifndef TACC_KERNELS_CONTRACT_EXPERT_H_
#define TACC_KERNELS_CONTRACT_EXPERT_H_

#include "kernels/tensor.h"

namespace tacc::kernels {

// How each expert's matrix lies: [M,N], or transposed.
enum class ExpertWeights { kPlain, kTransposed };

struct ExpertKernels {
  // Of each slot its expert's matrix, w[id - offset], times its row. x [T,N] (a row for all slots of a token) or
  // [T,K,N], ids i32[T,K], w [E,M,N] or, with kTransposed, [E,N,M]; y [T,K,M] of x's type, or [T,M] in f32 (f64): the
  // sum over the token's slots. Slots with an id outside [offset, offset + E) give zero.
  void (&ExpertMatmul)(const TensorView& x, const TensorView& ids, const TensorView& w, ExpertWeights kind,
                       int64_t offset, const TensorView& y);

  // dw[e] = sum over the slots with id offset + e of a's row times b's. a [T,M] or [T,K,M], b [T,N] or [T,K,N],
  // dw [E,M,N] in f32 (f64).
  void (&ExpertMatmulGrad)(const TensorView& a, const TensorView& b, const TensorView& ids, int64_t offset,
                           const TensorView& dw);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_EXPERT_H_
