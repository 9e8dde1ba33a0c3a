// Embedding look-up. Legend: V the local rows of the table, which start at `offset` of the whole vocabulary, T tokens
// (all dims of ids), N features. An id outside the local rows gives zeros and no gradient.
#ifndef TACC_KERNELS_CONTRACT_EMBEDDING_H_
#define TACC_KERNELS_CONTRACT_EMBEDDING_H_

#include "kernels/tensor.h"

namespace tacc::kernels {

struct EmbeddingKernels {
  // y [T,N] = table [V,N] at row ids[t] - offset, converted to y's dtype. ids i32.
  void (&Embedding)(const TensorView& table, const TensorView& ids, int64_t offset, const TensorView& y);

  // dtable [V,N] (f32 or f64) = sum over the tokens with that id of dy [T,N], in the order of the tokens.
  void (&EmbeddingGrad)(const TensorView& dy, const TensorView& ids, int64_t offset, const TensorView& dtable);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_EMBEDDING_H_
