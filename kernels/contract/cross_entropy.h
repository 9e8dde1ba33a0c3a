// Cross-entropy over the last dim. Legend: T tokens (all leading dims), V the local part of the vocabulary, which
// starts at `offset` of the whole one. A target < 0 does not count, nor does one
// outside `bounds`: the extents of targets that exist, from the first element of each dim (the rest is padding).
#ifndef TACC_KERNELS_CONTRACT_CROSS_ENTROPY_H_
#define TACC_KERNELS_CONTRACT_CROSS_ENTROPY_H_

#include "kernels/tensor.h"

namespace tacc::kernels {

struct CrossEntropyKernels {
  // lse [T] = log(sum(exp(logits))); loss [] = sum over the counted targets of lse - logits[target - offset] (a target
  // outside the local part contributes lse only); count [] = how many count. logits [T,V], targets i32 [T].
  void (&CrossEntropy)(const TensorView& logits, const TensorView& targets, int64_t offset, const Dims& bounds,
                       const TensorView& loss, const TensorView& count, const TensorView& lse);

  // y[..., p] = log(sum(exp(x))) over the p-th of as many pieces of x's last dim as y has entries, each of ceil(V /
  // pieces) elements; of each row of x only the first `valid` exist. An empty piece gives -infinity. x [..., V], y
  // [..., P].
  void (&LogSumExp)(const TensorView& x, int64_t valid, const TensorView& y);

  // CrossEntropy's loss and count of the targets inside the local part, of which the first `valid` elements exist, from
  // the logsumexp of the whole vocabulary. lse [T].
  void (&CrossEntropySum)(const TensorView& logits, const TensorView& targets, const TensorView& lse, int64_t offset,
                          int64_t valid, const Dims& bounds, const TensorView& loss, const TensorView& count);

  // dlogits = (exp(logits - lse) - onehot(target - offset)) * dloss[], 0 where the target does not count. May overwrite
  // logits when dtypes agree.
  void (&CrossEntropyGrad)(const TensorView& logits, const TensorView& targets, const TensorView& lse,
                           const TensorView& dloss, int64_t offset, const Dims& bounds, const TensorView& dlogits);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_CROSS_ENTROPY_H_
