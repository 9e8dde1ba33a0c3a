#include "worker/rank/collectives/sum_kernels.h"

#include <cstring>

#include "kernels/check.h"

namespace tacc::worker {
namespace {

using kernels::DType;

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// The types of 16 bits. `To` rounds to nearest, ties to even; NaN stays one.
struct Bf16 {
  static float From(uint16_t bits) { return FromBits(static_cast<uint32_t>(bits) << 16); }
  static uint16_t To(float value) {
    const uint32_t bits = BitsOf(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
};

struct F16 {
  static float From(uint16_t half) {
    const uint32_t sign = (half & 0x8000u) << 16, body = (half & 0x7fffu) << 13;
    // 2^112 moves the exponent's bias, of subnormals too; infinity and NaN have their own exponent.
    const uint32_t magnitude = body >= 0x0f800000u ? body | 0x7f800000u : BitsOf(FromBits(body) * 0x1p112f);
    return FromBits(sign | magnitude);
  }
  static uint16_t To(float value) {
    const uint32_t bits = BitsOf(value), magnitude = bits & 0x7fffffff, sign = (bits >> 16) & 0x8000;
    if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // from 65520 on
    // Below 2^-14: adding 0.5 rounds to the subnormal's bits.
    if (magnitude < 0x38800000) return static_cast<uint16_t>(sign | (BitsOf(FromBits(magnitude) + 0.5f) - 0x3f000000));
    return static_cast<uint16_t>(sign | ((magnitude + 0xfff + ((magnitude >> 13) & 1) - 0x38000000) >> 13));
  }
};

template <typename T>
void Add(const T* __restrict x, T* __restrict sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

template <typename Half>
void Widen(const void* x, void* sum, int64_t n) {
  const uint16_t* __restrict from = static_cast<const uint16_t*>(x);
  float* __restrict to = static_cast<float*>(sum);
  for (int64_t i = 0; i < n; ++i) to[i] = Half::From(from[i]);
}

template <typename Half>
void AddWidened(const void* x, void* sum, int64_t n) {
  const uint16_t* __restrict from = static_cast<const uint16_t*>(x);
  float* __restrict to = static_cast<float*>(sum);
  for (int64_t i = 0; i < n; ++i) to[i] += Half::From(from[i]);
}

template <typename Half, typename T>
void Narrow(const T* __restrict sum, void* y, int64_t n) {
  uint16_t* __restrict out = static_cast<uint16_t*>(y);
  for (int64_t i = 0; i < n; ++i) out[i] = Half::To(static_cast<float>(sum[i]));
}

template <typename T>
void Round(const T* sum, DType to, void* y, int64_t n) {
  if (to == DType::kBF16) return Narrow<Bf16>(sum, y, n);
  if (to == DType::kF16) return Narrow<F16>(sum, y, n);
  for (int64_t i = 0; i < n; ++i) {
    if (to == DType::kF32) static_cast<float*>(y)[i] = static_cast<float>(sum[i]);
    if (to == DType::kF64) static_cast<double*>(y)[i] = static_cast<double>(sum[i]);
  }
}

}  // namespace

bool CanSum(DType dtype) { return dtype != DType::kBool; }

DType SumType(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16 ? DType::kF32 : dtype; }

void CopyElements(DType dtype, const void* x, void* sum, int64_t n) {
  if (dtype == DType::kBF16) return Widen<Bf16>(x, sum, n);
  if (dtype == DType::kF16) return Widen<F16>(x, sum, n);
  std::memcpy(sum, x, n * kernels::SizeOf(dtype));
}

void AddElements(DType dtype, const void* x, void* sum, int64_t n) {
  switch (dtype) {
    case DType::kF32:
      return Add(static_cast<const float*>(x), static_cast<float*>(sum), n);
    case DType::kF64:
      return Add(static_cast<const double*>(x), static_cast<double*>(sum), n);
    case DType::kI32:
      return Add(static_cast<const int32_t*>(x), static_cast<int32_t*>(sum), n);
    case DType::kI64:
      return Add(static_cast<const int64_t*>(x), static_cast<int64_t*>(sum), n);
    case DType::kBF16:
      return AddWidened<Bf16>(x, sum, n);
    case DType::kF16:
      return AddWidened<F16>(x, sum, n);
    case DType::kBool:
      TACC_KERNEL_CHECK(CanSum(dtype));
  }
}

bool CanRound(DType from, DType to) {
  if (from == to) return true;
  const bool floating = to == DType::kF32 || to == DType::kF64 || to == DType::kBF16 || to == DType::kF16;
  return (from == DType::kF32 || from == DType::kF64) && floating;
}

void RoundElements(DType from, const void* sum, DType to, void* y, int64_t n) {
  TACC_KERNEL_CHECK(CanRound(from, to));
  if (from == to) {
    std::memcpy(y, sum, n * kernels::SizeOf(to));
  } else if (from == DType::kF32) {
    Round(static_cast<const float*>(sum), to, y, n);
  } else {
    Round(static_cast<const double*>(sum), to, y, n);
  }
}

}  // namespace tacc::worker
