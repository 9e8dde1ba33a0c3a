// What optimizers do to a weight element by element: the same arithmetic as torch.optim, and one pass over the memory.
#ifndef TACC_KERNELS_CONTRACT_OPTIMIZER_H_
#define TACC_KERNELS_CONTRACT_OPTIMIZER_H_

#include "kernels/tensor.h"

namespace tacc::kernels {

// With g the gradient times grad_scale, and lr the learning rate:
enum class UpdateKind {
  // Adam with decoupled weight decay, as torch.optim.AdamW. m, v: the means of g and of its square. Source: Loshchilov
  // and Hutter, "Decoupled Weight Decay Regularization", algorithm 2.
  kAdamW,
  // Weight decay is part of the gradient, g + weight_decay w, as in torch.optim.Adam.
  kAdam,
  // As torch.optim.SGD. m: the momentum buffer; there is none without momentum. Weight decay is part of the gradient.
  kSgd,
  // w moves by lr along the sign of a mean of g; weight decay is decoupled. m: another mean of g. Source: Chen et al.,
  // "Symbolic Discovery of Optimization Algorithms", algorithm 2.
  kLion,
  // No optimizer but a piece of some: w + (g - w)(1 - lr), a moving average of g.
  kMovingAverage,
};

struct UpdateParameters {
  UpdateKind kind = UpdateKind::kAdamW;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
};

// The scalars that change from step to step, each rank 0.
struct UpdateScalars {
  TensorView learning_rate;
  TensorView grad_scale;     // the gradient is multiplied by it (clipping)
  TensorView apply;          // 0: weights and states stay as they are, to the bit
  TensorView count;          // 1-based number of this update
  TensorView momentum = {};  // in place of the parameters' beta1 (Adam, Lion) or momentum (SGD); or without data
};

// The update of one weight. All tensors have as many elements. new_w, new_m, new_v may be the same memory as w, m, v.
// m, v, new_m, new_v: without data where the kind has no such state. copy: new_w converted to its dtype, or without
// data.
struct WeightUpdate {
  TensorView w, m, v, g;
  UpdateScalars scalars;
  UpdateParameters parameters;
  TensorView new_w, new_m, new_v, copy;
};

struct OptimizerKernels {
  void (&Update)(const WeightUpdate& update);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_OPTIMIZER_H_
