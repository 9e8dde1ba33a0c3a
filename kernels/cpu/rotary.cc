#include "kernels/contract/rotary.h"

#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

// The position at row b, index s.
class PositionsOf {
 public:
  PositionsOf(const std::vector<int64_t>& given, const TensorView& document_start, int64_t length)
      : given_(given), start_(document_start.as<int32_t>()), length_(length) {
    TACC_KERNEL_CHECK(static_cast<int64_t>(given.size()) <= length);
    TACC_KERNEL_CHECK(start_ == nullptr || document_start.dtype == DType::kI32);
  }
  int64_t at(int64_t b, int64_t s) const {
    const int64_t position = s < static_cast<int64_t>(given_.size()) ? given_[s] : 0;
    return start_ == nullptr ? position : position - start_[b * length_ + s];
  }

 private:
  const std::vector<int64_t>& given_;
  const int32_t* start_;
  int64_t length_;
};

void Positions(const std::vector<int64_t>& given, const TensorView& document_start, const TensorView& positions) {
  const int64_t length = positions.row_length();
  const PositionsOf of(given, document_start, length);
  for (int64_t i = 0; i < positions.size(); ++i) {
    positions.as<int32_t>()[i] = static_cast<int32_t>(of.at(i / length, i % length));
  }
}

void RopeTable(const std::vector<double>& inv_freq, double attention_scale, const std::vector<int64_t>& given,
               const TensorView& document_start, const TensorView& cos, const TensorView& sin) {
  const int64_t half = static_cast<int64_t>(inv_freq.size()), rank = cos.dims.rank();
  TACC_KERNEL_CHECK((rank == 2 || rank == 3) && cos.dims == sin.dims && cos.dims.back() == half);
  TACC_KERNEL_CHECK(cos.dtype == sin.dtype && (cos.dtype == DType::kF32 || cos.dtype == DType::kF64));
  const int64_t length = cos.dims[static_cast<int>(rank) - 2];
  const PositionsOf of(given, document_start, length);
  ParallelFor(cos.num_rows(), 1 + 256 / (half + 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t position = of.at(row / length, row % length);
      for (int64_t i = 0; i < half; ++i) {
        const int64_t index = row * half + i;
        if (cos.dtype == DType::kF64) {
          const double angle = static_cast<double>(position) * inv_freq[i];
          cos.as<double>()[index] = std::cos(angle) * attention_scale;
          sin.as<double>()[index] = std::sin(angle) * attention_scale;
        } else {
          const float angle = static_cast<float>(position) * static_cast<float>(inv_freq[i]);
          cos.as<float>()[index] = static_cast<float>(std::cos(static_cast<double>(angle)) * attention_scale);
          sin.as<float>()[index] = static_cast<float>(std::sin(static_cast<double>(angle)) * attention_scale);
        }
      }
    }
  });
}

void Rotary(const TensorView& x, const TensorView& cos, const TensorView& sin, RotaryStyle style,
            RotaryDirection direction, const TensorView& y, int64_t heads) {
  TACC_KERNEL_CHECK(x.dims.rank() == 4 && x.dims == y.dims && cos.dims == sin.dims && 2 * cos.dims.back() <= x.dims[3]);
  TACC_KERNEL_CHECK(heads >= -1 && heads <= x.dims[2]);
  const bool each_row = cos.dims.rank() == 3;
  TACC_KERNEL_CHECK(cos.num_rows() == (each_row ? x.dims[0] : 1) * x.dims[1]);
  const simd::RotaryRows rows{.num_heads = x.dims[2],
                              .head_dim = x.dims[3],
                              .sequence = cos.num_rows(),
                              .num_turned = heads < 0 ? x.dims[2] : heads,
                              .half = cos.dims.back(),
                              .interleaved = style == RotaryStyle::kInterleaved,
                              .sign = direction == RotaryDirection::kInverse ? -1.0 : 1.0,
                              .x = In(x),
                              .cos = In(cos),
                              .sin = In(sin),
                              .y = Out(y)};
  ParallelFor(x.dims[0] * x.dims[1], 1 + 16384 / (x.dims[2] * x.dims[3] + 1),
              [&](int64_t begin, int64_t end) { simd::BestLoops().rotary(rows, begin, end); });
}

}  // namespace

const RotaryKernels kRotary = {
    .Positions = Positions,
    .RopeTable = RopeTable,
    .Rotary = Rotary,
};

}  // namespace tacc::kernels::cpu
