#include "kernels/contract/adamw.h"

#include <cmath>

#include "kernels/contract/unary.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

void AdamW(const TensorView& w, const TensorView& m, const TensorView& v, const TensorView& g,
           const AdamWScalars& scalars, const AdamWParameters& parameters, const TensorView& new_w,
           const TensorView& new_m, const TensorView& new_v, const TensorView& copy) {
  const int64_t n = w.size();
  TACC_KERNEL_CHECK(m.size() == n && v.size() == n && g.size() == n);
  TACC_KERNEL_CHECK(new_w.size() == n && new_m.size() == n && new_v.size() == n);
  TACC_KERNEL_CHECK(w.dtype == new_w.dtype && m.dtype == new_m.dtype && v.dtype == new_v.dtype);
  TACC_KERNEL_CHECK(copy.data == nullptr || copy.size() == n);
  if (ReadScalar(scalars.apply) == 0) {
    CopyBytes(w.data, new_w.data, w.bytes());
    CopyBytes(m.data, new_m.data, m.bytes());
    CopyBytes(v.data, new_v.data, v.bytes());
    if (copy.data != nullptr) kUnary.Unary(UnaryOp::kCast, w, copy, {});
    return;
  }
  const double learning_rate = ReadScalar(scalars.learning_rate), count = ReadScalar(scalars.count);
  const simd::AdamW update{.w = In(w),
                           .m = In(m),
                           .v = In(v),
                           .g = In(g),
                           .w_out = Out(new_w),
                           .m_out = Out(new_m),
                           .v_out = Out(new_v),
                           .copy = Out(copy),
                           .beta1 = parameters.beta1,
                           .beta2 = parameters.beta2,
                           .epsilon = parameters.epsilon,
                           .decay = 1 - learning_rate * parameters.weight_decay,
                           .step_size = learning_rate / (1 - std::pow(parameters.beta1, count)),
                           .inv_sqrt_bias2 = 1 / std::sqrt(1 - std::pow(parameters.beta2, count)),
                           .grad_scale = ReadScalar(scalars.grad_scale)};
  ParallelFor(n, 8192, [&](int64_t begin, int64_t end) { simd::BestLoops().adamw(update, begin, end); });
}

}  // namespace

const AdamWKernels kAdamW = {
    .AdamW = AdamW,
};

}  // namespace tacc::kernels::cpu
