// Mixtures of experts. Shapes: T tokens (any leading dims), K slots of a token, E experts, N and M features. Sums do
// not depend on the number of threads.
#ifndef TACC_KERNELS_CPU_EXPERT_H_
#define TACC_KERNELS_CPU_EXPERT_H_

#include "kernels/tensor.h"

namespace tacc::kernels::cpu {

// y = exp(x) / sum of exp(x) of each row; y f32 or f64, may be x.
void Softmax(const TensorView& x, const TensorView& y);
// dx = y (dy - sum of dy y); all of one type, f32 or f64. dx may be dy.
void SoftmaxGrad(const TensorView& dy, const TensorView& y, const TensorView& dx);

enum class TopKWeights { kPlain, kNormalized };  // kNormalized: divided by their sum

// The K largest of each row of p [T,E], f32 or f64, largest first, of equal ones the lower index: weights [T,K] of p's
// type, ids i32[T,K].
void TopK(const TensorView& p, TopKWeights kind, const TensorView& weights, const TensorView& ids);
// dp [T,E] from dw [T,K]: zero where nothing was chosen.
void TopKGrad(const TensorView& dw, const TensorView& p, const TensorView& ids, TopKWeights kind, const TensorView& dp);

// counts [E]: how many slots have id e; or [T0,E]: of each entry of the first dim of ids. f32 or f64.
void ExpertCounts(const TensorView& ids, const TensorView& counts);

// Rows of one expert that are gathered and multiplied at a time.
inline constexpr int64_t kExpertRows = 1024;
// Rows of 16 bits are multiplied in multiples of this, the last ones with rows of zeros: of each number of rows that it
// has seen LibTorch's library keeps code, half a megabyte, and experts see another number in each step.
inline constexpr int64_t kExpertRowStep = 32;

// Of each slot its expert's matrix, w[id - offset], times its row. x [T,N] (a row for all slots of a token) or [T,K,N],
// ids i32[T,K], w [E,M,N] or, with kTransposed, [E,N,M]; y [T,K,M] of x's type, or [T,M] in f32 (f64): the sum over the
// token's slots. Slots with an id outside [offset, offset + E) give zero.
enum class ExpertWeights { kPlain, kTransposed };
void ExpertMatmul(const TensorView& x, const TensorView& ids, const TensorView& w, ExpertWeights kind, int64_t offset,
                  const TensorView& y);
// dw[e] = sum over the slots with id offset + e of a's row times b's. a [T,M] or [T,K,M], b [T,N] or [T,K,N],
// dw [E,M,N] in f32 (f64).
void ExpertMatmulGrad(const TensorView& a, const TensorView& b, const TensorView& ids, int64_t offset,
                      const TensorView& dw);

// y[t,:] = x[t,:] w[t]; y may be x.
void MulRows(const TensorView& x, const TensorView& w, const TensorView& y);
// y[t] = sum of a[t,:] b[t,:].
void DotRows(const TensorView& a, const TensorView& b, const TensorView& y);

}  // namespace tacc::kernels::cpu

#endif  // TACC_KERNELS_CPU_EXPERT_H_
