#include "kernels/reference/buffer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace tacc::kernels::reference {
namespace {

constexpr int64_t kGuardBytes = 64;
constexpr char kGuard = static_cast<char>(0xAB);

// value rounded to a float format with `mantissa` stored bits and exponents from `min_exponent`, overflow past
// `largest`.
double RoundTo(double value, int mantissa, int min_exponent, double largest) {
  if (!std::isfinite(value) || value == 0) return value;
  const int exponent = std::max(std::ilogb(value), min_exponent);
  const double unit = std::ldexp(1.0, exponent - mantissa);
  const double rounded = std::nearbyint(value / unit) * unit;
  return std::fabs(rounded) > largest ? std::copysign(std::numeric_limits<double>::infinity(), value) : rounded;
}

uint16_t Half(double rounded) {
  const uint16_t sign = std::signbit(rounded) ? 0x8000 : 0;
  const double magnitude = std::fabs(rounded);
  if (std::isnan(rounded)) return sign | 0x7e00;
  if (std::isinf(rounded)) return sign | 0x7c00;
  if (magnitude < std::ldexp(1.0, -14)) return sign | static_cast<uint16_t>(std::ldexp(magnitude, 24));
  const int exponent = std::ilogb(magnitude);
  return sign | static_cast<uint16_t>(((exponent + 15) << 10) + (std::ldexp(magnitude, 10 - exponent) - 1024));
}

double FromHalf(uint16_t bits) {
  const double sign = bits & 0x8000 ? -1 : 1;
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

double RoundValue(double value, DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return RoundTo(value, 7, -126, 3.3895313892515355e38);
    case DType::kF16:
      return RoundTo(value, 10, -14, 65504);
    case DType::kF32:
      return static_cast<float>(value);
    default:
      return value;
  }
}

}  // namespace

Buffer::Buffer(DType dtype, const Dims& dims, Placement placement) {
  view_ = TensorView{nullptr, dtype, dims};
  const int64_t shift = placement == Placement::kOffByOne ? SizeOf(dtype) : 0;
  bytes_.assign(2 * kGuardBytes + shift + view_.bytes(), kGuard);
  view_.data = bytes_.data() + kGuardBytes + shift;
}

Buffer::Buffer(DType dtype, const Tensor& tensor, Placement placement) : Buffer(dtype, tensor.dims, placement) {
  Write(tensor, view_);
}

Tensor Buffer::ToTensor() const { return Read(view_); }

bool Buffer::GuardsIntact() const {
  const int64_t begin = view_.as<char>() - bytes_.data(), end = begin + view_.bytes();
  for (int64_t i = 0; i < static_cast<int64_t>(bytes_.size()); ++i) {
    if ((i < begin || i >= end) && bytes_[i] != kGuard) return false;
  }
  return true;
}

void Write(const Tensor& tensor, const TensorView& view) {
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const double value = RoundValue(tensor[i], view.dtype);
    switch (view.dtype) {
      case DType::kBool:
        view.as<uint8_t>()[i] = value != 0;
        break;
      case DType::kI32:
        view.as<int32_t>()[i] = static_cast<int32_t>(value);
        break;
      case DType::kI64:
        view.as<int64_t>()[i] = static_cast<int64_t>(value);
        break;
      case DType::kBF16: {
        const float f = static_cast<float>(value);
        uint32_t bits;
        std::memcpy(&bits, &f, 4);
        view.as<uint16_t>()[i] = static_cast<uint16_t>(bits >> 16);
        break;
      }
      case DType::kF16:
        view.as<uint16_t>()[i] = Half(value);
        break;
      case DType::kF32:
        view.as<float>()[i] = static_cast<float>(value);
        break;
      case DType::kF64:
        view.as<double>()[i] = value;
        break;
    }
  }
}

Tensor Read(const TensorView& view) {
  Tensor tensor(view.dims);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    switch (view.dtype) {
      case DType::kBool:
        tensor[i] = view.as<uint8_t>()[i];
        break;
      case DType::kI32:
        tensor[i] = view.as<int32_t>()[i];
        break;
      case DType::kI64:
        tensor[i] = static_cast<double>(view.as<int64_t>()[i]);
        break;
      case DType::kBF16: {
        const uint32_t bits = static_cast<uint32_t>(view.as<uint16_t>()[i]) << 16;
        float f;
        std::memcpy(&f, &bits, 4);
        tensor[i] = f;
        break;
      }
      case DType::kF16:
        tensor[i] = FromHalf(view.as<uint16_t>()[i]);
        break;
      case DType::kF32:
        tensor[i] = view.as<float>()[i];
        break;
      case DType::kF64:
        tensor[i] = view.as<double>()[i];
        break;
    }
  }
  return tensor;
}

Tensor Rounded(const Tensor& tensor, DType dtype) {
  Tensor result = tensor;
  for (double& value : result.values) value = RoundValue(value, dtype);
  return result;
}

Tensor Random(const Dims& dims, uint64_t seed, double scale) {
  Tensor tensor(dims);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (double& value : tensor.values) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    value = scale * (static_cast<double>(state >> 11) * 0x1p-52 - 1);
  }
  return tensor;
}

std::ostream& operator<<(std::ostream& out, const Error& error) {
  out << error.value;
  if (error.value == 0) return out;
  const auto list = [&out](const Dims& values) {
    for (int i = 0; i < values.rank(); ++i) out << (i == 0 ? "[" : ",") << values[i];
    out << (values.empty() ? "[]" : "]");
  };
  Dims place = error.dims;
  int64_t rest = error.index;
  for (int i = place.rank() - 1; i >= 0; --i) {
    place[i] = rest % error.dims[i];
    rest /= error.dims[i];
  }
  out << " at ";
  list(place);
  out << " of ";
  list(error.dims);
  return out << ": " << error.got << ", not " << error.want;
}

Error MaxError(const Tensor& got, const Tensor& want, double floor) {
  Error worst{.dims = want.dims};
  TACC_KERNEL_CHECK(got.size() == want.size());
  for (int64_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    if (got[i] == want[i]) continue;
    const double error = std::fabs(got[i] - want[i]) / (std::fabs(want[i]) + floor);
    const double size = std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
    if (size > worst.value) worst = {size, want.dims, i, got[i], want[i]};
  }
  return worst;
}

}  // namespace tacc::kernels::reference
