#include "worker/rank/sum_kernels.h"

#include <cstring>

#include "kernels/check.h"

namespace tacc::worker {
namespace {

using kernels::DType;

float FromBf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

uint16_t ToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);  // NaN stays one
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <typename T>
void Add(const T* __restrict x, T* __restrict sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

}  // namespace

bool CanSum(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF64 || dtype == DType::kI32 ||
         dtype == DType::kI64;
}

DType SumType(DType dtype) { return dtype == DType::kBF16 ? DType::kF32 : dtype; }

void CopyElements(DType dtype, const void* x, void* sum, int64_t n) {
  if (dtype != DType::kBF16) {
    std::memcpy(sum, x, n * kernels::SizeOf(dtype));
    return;
  }
  const uint16_t* __restrict from = static_cast<const uint16_t*>(x);
  float* __restrict to = static_cast<float*>(sum);
  for (int64_t i = 0; i < n; ++i) to[i] = FromBf16(from[i]);
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
    case DType::kBF16: {
      const uint16_t* __restrict from = static_cast<const uint16_t*>(x);
      float* __restrict to = static_cast<float*>(sum);
      for (int64_t i = 0; i < n; ++i) to[i] += FromBf16(from[i]);
      return;
    }
    default:
      TACC_KERNEL_CHECK(CanSum(dtype));
  }
}

bool CanRound(DType from, DType to) {
  if (from == to) return true;
  return (from == DType::kF32 || from == DType::kF64) && (to == DType::kF32 || to == DType::kF64 || to == DType::kBF16);
}

void RoundElements(DType from, const void* sum, DType to, void* y, int64_t n) {
  TACC_KERNEL_CHECK(CanRound(from, to));
  if (from == to) {
    std::memcpy(y, sum, n * kernels::SizeOf(to));
    return;
  }
  const auto value = [&](int64_t i) {
    return from == DType::kF32 ? static_cast<double>(static_cast<const float*>(sum)[i])
                               : static_cast<const double*>(sum)[i];
  };
  if (from == DType::kF32 && to == DType::kBF16) {
    const float* __restrict x = static_cast<const float*>(sum);
    uint16_t* __restrict out = static_cast<uint16_t*>(y);
    for (int64_t i = 0; i < n; ++i) out[i] = ToBf16(x[i]);
  } else if (to == DType::kBF16) {
    for (int64_t i = 0; i < n; ++i) static_cast<uint16_t*>(y)[i] = ToBf16(static_cast<float>(value(i)));
  } else if (to == DType::kF32) {
    for (int64_t i = 0; i < n; ++i) static_cast<float*>(y)[i] = static_cast<float>(value(i));
  } else {
    for (int64_t i = 0; i < n; ++i) static_cast<double*>(y)[i] = value(i);
  }
}

}  // namespace tacc::worker
