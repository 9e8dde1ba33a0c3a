#include "worker/checkpoint/tensors/element.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tacc::worker {
namespace {

// std::bit_cast would do; memcpy also reads unaligned bytes.
template <typename To, typename From>
To Bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

float Bfloat16ToFloat(uint16_t value) { return Bits<float>(static_cast<uint32_t>(value) << 16); }

uint16_t FloatToBfloat16(float value) {
  const uint32_t bits = Bits<uint32_t>(value);
  if (std::isnan(value)) {
    // Keep what fits of the payload, and stay a NaN when nothing of it fits.
    const uint16_t high = bits >> 16;
    return (high & 0x7f) != 0 ? high : high | 0x40;
  }
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

float HalfToFloat(uint16_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000) << 16;
  const uint32_t exponent = (value >> 10) & 0x1f;
  const uint32_t mantissa = value & 0x3ff;
  if (exponent == 0x1f) return Bits<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return Bits<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  return sign != 0 ? -magnitude : magnitude;
}

uint16_t FloatToHalf(float value) {
  const uint32_t bits = Bits<uint32_t>(value);
  const uint16_t sign = (bits >> 16) & 0x8000;
  if (std::isnan(value)) {
    const uint16_t payload = (bits >> 13) & 0x3ff;
    return sign | 0x7c00 | (payload != 0 ? payload : 0x200);
  }
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) return sign | 0x7c00;  // Rounds to 2^16, which fp16 does not have.
  if (magnitude < 0x1p-14f) {
    // Subnormal: a multiple of 2^-24; 1024 of them is the smallest normal number, whose bits follow on.
    return sign | static_cast<uint16_t>(std::nearbyint(std::ldexp(magnitude, 24)));
  }
  const uint32_t rounded = Bits<uint32_t>(magnitude) + 0xfff + ((bits >> 13) & 1);
  return sign | static_cast<uint16_t>((rounded >> 13) - (112 << 10));
}

template <typename Element, typename Convert>
void Widen(const char* source, int64_t count, float* target, Convert convert) {
  for (int64_t i = 0; i < count; ++i) {
    Element element;
    std::memcpy(&element, source + i * sizeof(Element), sizeof(Element));
    target[i] = convert(element);
  }
}

template <typename Element, typename Convert>
void Narrow(const float* source, int64_t count, char* target, Convert convert) {
  for (int64_t i = 0; i < count; ++i) {
    const Element element = convert(source[i]);
    std::memcpy(target + i * sizeof(Element), &element, sizeof(Element));
  }
}

absl::Status Unsupported(const std::string& dtype) {
  return absl::InvalidArgumentError(
      absl::StrCat("dtype ", dtype, " is not a floating-point type that weights can have"));
}

}  // namespace

absl::Status ConvertToFloat(const std::string& dtype, const char* source, int64_t count, float* target) {
  if (dtype == "F32") {
    if (count > 0) std::memcpy(target, source, count * sizeof(float));
  } else if (dtype == "BF16") {
    Widen<uint16_t>(source, count, target, Bfloat16ToFloat);
  } else if (dtype == "F16") {
    Widen<uint16_t>(source, count, target, HalfToFloat);
  } else if (dtype == "F64") {
    Widen<double>(source, count, target, [](double value) { return static_cast<float>(value); });
  } else {
    return Unsupported(dtype);
  }
  return absl::OkStatus();
}

absl::Status ConvertFromFloat(const std::string& dtype, const float* source, int64_t count, char* target) {
  if (dtype == "F32") {
    if (count > 0) std::memcpy(target, source, count * sizeof(float));
  } else if (dtype == "BF16") {
    Narrow<uint16_t>(source, count, target, FloatToBfloat16);
  } else if (dtype == "F16") {
    Narrow<uint16_t>(source, count, target, FloatToHalf);
  } else {
    return Unsupported(dtype);
  }
  return absl::OkStatus();
}

}  // namespace tacc::worker
