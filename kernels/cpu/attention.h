// Softmax attention without a [S,T] matrix: blocks of scores that stay in cache.
// Legend: B batch, S queries, T keys (T = S when causal), H query heads, K key/value heads (H % K == 0), D head dim.
#ifndef TACC_KERNELS_CPU_ATTENTION_H_
#define TACC_KERNELS_CPU_ATTENTION_H_

#include <vector>

#include "kernels/tensor.h"

namespace tacc::kernels::cpu {

struct AttentionParameters {
  bool causal = true;
  double scale = 1;
  // One a query head: slope * (j - i) is added to the score of query i and key j. Empty: none.
  std::vector<double> alibi_slopes;
};

// out [B,S,H,D] = softmax(scale * q k^T + alibi) v per head; lse [B,H,S] (f32, or f64 with f64 operands) = log of the
// sum of exp of the scores. q [B,S,H,D], k and v [B,T,K,D]; query head h reads key/value head h / (H/K). q, k, v and
// out have one dtype.
void Attention(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionParameters& parameters,
               const TensorView& out, const TensorView& lse);

// Gradients dq, dk, dv, with the shapes and dtype of q, k, v.
void AttentionGrad(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
                   const TensorView& out, const TensorView& lse, const AttentionParameters& parameters,
                   const TensorView& dq, const TensorView& dk, const TensorView& dv);

// Scratch of both: for each thread the keys and values of one head, and blocks.
int64_t AttentionWorkspaceBytes(int64_t t, int64_t d, DType dtype, int threads);
int64_t AttentionGradWorkspaceBytes(int64_t t, int64_t d, DType dtype, int threads);

}  // namespace tacc::kernels::cpu

#endif  // TACC_KERNELS_CPU_ATTENTION_H_
