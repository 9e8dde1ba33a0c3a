#include "kernels/cpu/dropout.h"

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {

void Dropout(const TensorView& x, const TensorView& step, const TensorView& sample, const DropoutParameters& parameters,
             const TensorView& y) {
  TACC_KERNEL_CHECK(parameters.rate >= 0 && parameters.rate < 1 && x.size() == y.size());
  TACC_KERNEL_CHECK(x.dims.rank() >= 1 && sample.size() == x.dims[0] && sample.dtype == DType::kI64);
  TACC_KERNEL_CHECK(step.size() == 1 && step.dtype == DType::kI64);
  const uint64_t seed = static_cast<uint64_t>(parameters.seed);
  const simd::DropoutRows rows{.n = x.dims.Product(1, x.dims.rank()),
                               .threshold = static_cast<uint32_t>(parameters.rate * 4294967296.0),
                               .scale = 1 / (1 - parameters.rate),
                               .key0 = static_cast<uint32_t>(seed) ^ static_cast<uint32_t>(seed >> 32) * 0x9E3779B9u,
                               .key1 = static_cast<uint32_t>(parameters.key),
                               .step = *step.as<int64_t>(),
                               .samples = sample.as<int64_t>(),
                               .x = In(x),
                               .y = Out(y)};
  ParallelFor(x.dims[0], 1, [&](int64_t begin, int64_t end) { simd::BestLoops().dropout(rows, begin, end); });
}

}  // namespace tacc::kernels::cpu
