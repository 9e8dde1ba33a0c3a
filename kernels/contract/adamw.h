// AdamW with decoupled weight decay. Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", algorithm
// 2; the same arithmetic as torch.optim.AdamW.
#ifndef TACC_KERNELS_CONTRACT_ADAMW_H_
#define TACC_KERNELS_CONTRACT_ADAMW_H_

#include "kernels/tensor.h"

namespace tacc::kernels {

struct AdamWParameters {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
};

// The scalars that change from step to step, each rank 0.
struct AdamWScalars {
  TensorView learning_rate;
  TensorView grad_scale;  // the gradient is multiplied by it (clipping)
  TensorView apply;       // 0: weights and moments stay as they are, to the bit
  TensorView count;       // 1-based number of this update
};

struct AdamWKernels {
  // One pass over w, m, v, g (same number of elements); new_w, new_m, new_v may be the same memory as w, m, v. copy:
  // new_w converted to its dtype, or a view with null data.
  void (&AdamW)(const TensorView& w, const TensorView& m, const TensorView& v, const TensorView& g,
                const AdamWScalars& scalars, const AdamWParameters& parameters, const TensorView& new_w,
                const TensorView& new_m, const TensorView& new_v, const TensorView& copy);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_ADAMW_H_
