#include "kernels/contract/optimizer.h"

#include <cmath>

#include "kernels/contract/unary.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

// Nothing for a state that the optimizer does not have.
void KeepState(const TensorView& from, const TensorView& to) {
  if (from.data != nullptr) CopyBytes(from.data, to.data, from.bytes());
}

simd::WeightUpdate StepOf(const WeightUpdate& u) {
  UpdateParameters p = u.parameters;
  if (u.scalars.momentum.data != nullptr) p.beta1 = p.momentum = ReadScalar(u.scalars.momentum);
  const double learning_rate = ReadScalar(u.scalars.learning_rate), count = ReadScalar(u.scalars.count);
  simd::WeightUpdate step{.kind = p.kind,
                          .w = In(u.w),
                          .m = In(u.m),
                          .v = In(u.v),
                          .g = In(u.g),
                          .w_out = Out(u.new_w),
                          .m_out = Out(u.new_m),
                          .v_out = Out(u.new_v),
                          .copy = Out(u.copy),
                          .beta1 = p.beta1,
                          .beta2 = p.beta2,
                          .epsilon = p.epsilon,
                          .step_size = learning_rate,
                          .nesterov = p.nesterov,
                          .grad_scale = ReadScalar(u.scalars.grad_scale)};
  if (p.kind == UpdateKind::kAdamW || p.kind == UpdateKind::kLion) {
    step.decay = 1 - learning_rate * p.weight_decay;
  } else {
    step.coupled_decay = p.weight_decay;
  }
  if (p.kind == UpdateKind::kAdamW || p.kind == UpdateKind::kAdam) {
    step.step_size = learning_rate / (1 - std::pow(p.beta1, count));
    step.inv_sqrt_bias2 = 1 / std::sqrt(1 - std::pow(p.beta2, count));
  }
  if (p.kind == UpdateKind::kMovingAverage) step.step_size = 1 - learning_rate;
  if (p.kind == UpdateKind::kSgd) {
    step.momentum = p.momentum;
    step.undamped = count == 1 ? 1 : 1 - p.dampening;  // the buffer begins as the first gradient
  }
  return step;
}

void Update(const WeightUpdate& u) {
  const int64_t n = u.w.size();
  TACC_KERNEL_CHECK(u.g.size() == n && u.new_w.size() == n && u.w.dtype == u.new_w.dtype);
  for (const auto& [from, to] : {std::pair(u.m, u.new_m), {u.v, u.new_v}}) {
    TACC_KERNEL_CHECK((from.data == nullptr) == (to.data == nullptr));
    TACC_KERNEL_CHECK(from.data == nullptr || (from.size() == n && to.size() == n && from.dtype == to.dtype));
  }
  TACC_KERNEL_CHECK(u.copy.data == nullptr || u.copy.size() == n);
  if (ReadScalar(u.scalars.apply) == 0) {
    KeepState(u.w, u.new_w);
    KeepState(u.m, u.new_m);
    KeepState(u.v, u.new_v);
    if (u.copy.data != nullptr) kUnary.Unary(UnaryOp::kCast, u.w, u.copy, {});
    return;
  }
  const simd::WeightUpdate step = StepOf(u);
  ParallelFor(n, 8192, [&](int64_t begin, int64_t end) { simd::BestLoops().update(step, begin, end); });
}

}  // namespace

const OptimizerKernels kOptimizer = {
    .Update = Update,
};

}  // namespace tacc::kernels::cpu
