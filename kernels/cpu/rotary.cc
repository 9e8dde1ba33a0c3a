#include "kernels/cpu/rotary.h"

#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {

void RopeTable(const std::vector<double>& inv_freq, double attention_scale, int64_t first, const TensorView& cos,
               const TensorView& sin) {
  const int64_t half = static_cast<int64_t>(inv_freq.size());
  TACC_KERNEL_CHECK(cos.dims.rank() == 2 && cos.dims == sin.dims && cos.dims[1] == half && cos.dtype == sin.dtype);
  TACC_KERNEL_CHECK(cos.dtype == DType::kF32 || cos.dtype == DType::kF64);
  for (int64_t position = 0; position < cos.dims[0]; ++position) {
    for (int64_t i = 0; i < half; ++i) {
      const int64_t index = position * half + i;
      if (cos.dtype == DType::kF64) {
        const double angle = static_cast<double>(first + position) * inv_freq[i];
        cos.as<double>()[index] = std::cos(angle) * attention_scale;
        sin.as<double>()[index] = std::sin(angle) * attention_scale;
      } else {
        const float angle = static_cast<float>(first + position) * static_cast<float>(inv_freq[i]);
        cos.as<float>()[index] = static_cast<float>(std::cos(static_cast<double>(angle)) * attention_scale);
        sin.as<float>()[index] = static_cast<float>(std::sin(static_cast<double>(angle)) * attention_scale);
      }
    }
  }
}

void Rotary(const TensorView& x, const TensorView& cos, const TensorView& sin, RotaryStyle style,
            RotaryDirection direction, const TensorView& y) {
  TACC_KERNEL_CHECK(x.dims.rank() == 4 && x.dims == y.dims && cos.dims.rank() == 2 && cos.dims == sin.dims);
  TACC_KERNEL_CHECK(cos.dims[0] == x.dims[1] && 2 * cos.dims[1] <= x.dims[3]);
  const simd::RotaryRows rows{.num_heads = x.dims[2],
                              .head_dim = x.dims[3],
                              .sequence = x.dims[1],
                              .half = cos.dims[1],
                              .interleaved = style == RotaryStyle::kInterleaved,
                              .sign = direction == RotaryDirection::kInverse ? -1.0 : 1.0,
                              .x = In(x),
                              .cos = In(cos),
                              .sin = In(sin),
                              .y = Out(y)};
  ParallelFor(x.dims[0] * x.dims[1], 1 + 16384 / (x.dims[2] * x.dims[3] + 1),
              [&](int64_t begin, int64_t end) { simd::BestLoops().rotary(rows, begin, end); });
}

}  // namespace tacc::kernels::cpu
