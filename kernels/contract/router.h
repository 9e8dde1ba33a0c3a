// The router of a mixture of experts. Shapes: T tokens (any leading dims), K slots of a token, E experts, N features.
#ifndef TACC_KERNELS_CONTRACT_ROUTER_H_
#define TACC_KERNELS_CONTRACT_ROUTER_H_

#include "kernels/tensor.h"

namespace tacc::kernels {

enum class TopKWeights { kPlain, kNormalized };  // kNormalized: divided by their sum

// The experts are so many groups of neighbours; a row's are taken of the `kept` groups whose `summed` largest numbers
// have the largest sums, of equal ones the lower.
struct TopKGroups {
  int64_t groups = 1, kept = 1, summed = 1;
};
inline constexpr int64_t kMaxTopKGroups = 32, kMaxTopKSummed = 4;

struct RouterKernels {
  // y = exp(x) / sum of exp(x) of each row; y f32 or f64, may be x.
  void (&Softmax)(const TensorView& x, const TensorView& y);

  // dx = y (dy - sum of dy y); all of one type, f32 or f64. dx may be dy.
  void (&SoftmaxGrad)(const TensorView& dy, const TensorView& y, const TensorView& dx);

  // Where choice [T,E] (p itself, or another of its type) is largest in each row, largest first, of equal ones the
  // lower index: ids i32[T,K], and p's numbers there as weights [T,K]; p f32 or f64.
  void (&TopK)(const TensorView& p, const TensorView& choice, const TopKGroups& groups, TopKWeights kind,
               const TensorView& weights, const TensorView& ids);

  // dp [T,E] from dw [T,K]: zero where nothing was chosen.
  void (&TopKGrad)(const TensorView& dw, const TensorView& p, const TensorView& ids, TopKWeights kind,
                   const TensorView& dp);

  // counts [E]: how many slots have id e; or [T0,E]: of each entry of the first dim of ids. f32 or f64.
  void (&ExpertCounts)(const TensorView& ids, const TensorView& counts);

  // y[t,:] = x[t,:] w[t]; y may be x.
  void (&MulRows)(const TensorView& x, const TensorView& w, const TensorView& y);

  // y[t] = sum of a[t,:] b[t,:].
  void (&DotRows)(const TensorView& a, const TensorView& b, const TensorView& y);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_ROUTER_H_
