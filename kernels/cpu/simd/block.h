// Blocks: how the loops read and write arrays of any dtype. A range is worked on in blocks of kBlock elements of the
// compute type C; arrays of type C are used in place, others are converted through a buffer that stays in L1.
// Included only by the files compiled once per instruction set (TACC_ISA names it); everything is in that namespace, so
// that the linker can never pick a copy compiled for a processor we are not on. For the same reason no standard library
// template is used here.
#ifndef TACC_KERNELS_CPU_SIMD_BLOCK_H_
#define TACC_KERNELS_CPU_SIMD_BLOCK_H_

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/simd/loops.h"

#define TACC_NOINLINE __attribute__((noinline))
#define TACC_INLINE inline __attribute__((always_inline))

namespace tacc::kernels::simd::TACC_ISA {

constexpr int64_t kBlock = 512;

TACC_INLINE int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

TACC_INLINE float BitsToFloat(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
TACC_INLINE uint32_t FloatToBits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

TACC_INLINE float Bf16ToFloat(uint16_t bits) { return BitsToFloat(static_cast<uint32_t>(bits) << 16); }
// Round to nearest even; NaN stays NaN (made quiet).
TACC_INLINE uint16_t FloatToBf16(float value) {
  const uint32_t bits = FloatToBits(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

TACC_INLINE float F16ToFloat(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t body = static_cast<uint32_t>(h & 0x7fffu) << 13;
  const uint32_t normal = body + 0x38000000u;  // the exponent's bias is 112 more
  // 2^-14 and the mantissa, less 2^-14: no operand is a subnormal float, which a rank takes for zero.
  const uint32_t subnormal = FloatToBits(BitsToFloat(body + 0x38800000u) - 0x1p-14f);
  const uint32_t finite = body < 0x00800000u ? subnormal : normal;
  const uint32_t special = body | 0x7f800000u;
  return BitsToFloat(sign | (body >= 0x0f800000u ? special : finite));
}
// Round to nearest even; overflow gives infinity.
TACC_INLINE uint16_t FloatToF16(float value) {
  const uint32_t bits = FloatToBits(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  // Below 2^-14: adding 0.5 leaves the subnormal's bits, correctly rounded, at the end of the mantissa.
  const uint32_t subnormal = FloatToBits(BitsToFloat(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const uint32_t overflow = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return static_cast<uint16_t>(sign | (magnitude >= 0x477ff000u ? overflow : finite));
}

template <typename C>
TACC_NOINLINE void ConvertIn(const void* data, DType dtype, int64_t offset, int64_t n, C* out) {
  switch (dtype) {
    case DType::kBool: {
      const uint8_t* x = static_cast<const uint8_t*>(data) + offset;
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<C>(x[i] != 0);
      return;
    }
    case DType::kI32: {
      const int32_t* x = static_cast<const int32_t*>(data) + offset;
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<C>(x[i]);
      return;
    }
    case DType::kI64: {
      const int64_t* x = static_cast<const int64_t*>(data) + offset;
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<C>(x[i]);
      return;
    }
    case DType::kBF16: {
      const uint16_t* x = static_cast<const uint16_t*>(data) + offset;
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<C>(Bf16ToFloat(x[i]));
      return;
    }
    case DType::kF16: {
      const uint16_t* x = static_cast<const uint16_t*>(data) + offset;
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<C>(F16ToFloat(x[i]));
      return;
    }
    case DType::kF32: {
      const float* x = static_cast<const float*>(data) + offset;
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<C>(x[i]);
      return;
    }
    case DType::kF64: {
      const double* x = static_cast<const double*>(data) + offset;
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<C>(x[i]);
      return;
    }
  }
}

template <typename C>
TACC_NOINLINE void ConvertOut(const C* values, void* data, DType dtype, int64_t offset, int64_t n) {
  switch (dtype) {
    case DType::kBool: {
      uint8_t* y = static_cast<uint8_t*>(data) + offset;
      for (int64_t i = 0; i < n; ++i) y[i] = values[i] != 0;
      return;
    }
    case DType::kI32: {
      int32_t* y = static_cast<int32_t*>(data) + offset;
      for (int64_t i = 0; i < n; ++i) y[i] = static_cast<int32_t>(values[i]);
      return;
    }
    case DType::kI64: {
      int64_t* y = static_cast<int64_t*>(data) + offset;
      for (int64_t i = 0; i < n; ++i) y[i] = static_cast<int64_t>(values[i]);
      return;
    }
    case DType::kBF16: {
      uint16_t* y = static_cast<uint16_t*>(data) + offset;
      for (int64_t i = 0; i < n; ++i) y[i] = FloatToBf16(static_cast<float>(values[i]));
      return;
    }
    case DType::kF16: {
      uint16_t* y = static_cast<uint16_t*>(data) + offset;
      for (int64_t i = 0; i < n; ++i) y[i] = FloatToF16(static_cast<float>(values[i]));
      return;
    }
    case DType::kF32: {
      float* y = static_cast<float*>(data) + offset;
      for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(values[i]);
      return;
    }
    case DType::kF64: {
      double* y = static_cast<double*>(data) + offset;
      for (int64_t i = 0; i < n; ++i) y[i] = static_cast<double>(values[i]);
      return;
    }
  }
}

template <typename C>
struct Native;
template <>
struct Native<float> {
  static constexpr DType kDType = DType::kF32;
};
template <>
struct Native<double> {
  static constexpr DType kDType = DType::kF64;
};
template <>
struct Native<int64_t> {
  static constexpr DType kDType = DType::kI64;
};

template <typename C>
struct alignas(64) Buffer {
  C values[kBlock];
};

// n <= kBlock elements of x from offset, as C: in place or converted into the buffer.
template <typename C>
TACC_INLINE const C* Load(const In& x, int64_t offset, int64_t n, Buffer<C>& buffer) {
  if (x.dtype == Native<C>::kDType) return static_cast<const C*>(x.data) + offset;
  ConvertIn<C>(x.data, x.dtype, offset, n, buffer.values);
  return buffer.values;
}

// Where to put elements from offset of y, before Store.
template <typename C>
TACC_INLINE C* Target(const Out& y, int64_t offset, Buffer<C>& buffer) {
  return y.dtype == Native<C>::kDType ? static_cast<C*>(y.data) + offset : buffer.values;
}

template <typename C>
TACC_INLINE void Store(const Out& y, int64_t offset, int64_t n, const C* values) {
  if (y.dtype != Native<C>::kDType) ConvertOut<C>(values, y.data, y.dtype, offset, n);
}

// One element (slow: for the scalars of a row).
template <typename C>
TACC_INLINE C LoadOne(const In& x, int64_t i) {
  if (x.dtype == Native<C>::kDType) return static_cast<const C*>(x.data)[i];
  C value;
  ConvertIn<C>(x.data, x.dtype, i, 1, &value);
  return value;
}
template <typename C>
TACC_INLINE void StoreOne(const Out& y, int64_t i, C value) {
  if (y.data == nullptr) return;
  ConvertOut<C>(&value, y.data, y.dtype, i, 1);
}

TACC_INLINE bool IsF64(const In& x) { return x.data != nullptr && x.dtype == DType::kF64; }
TACC_INLINE bool IsInteger(DType dtype) { return dtype < DType::kBF16; }

}  // namespace tacc::kernels::simd::TACC_ISA

#endif  // TACC_KERNELS_CPU_SIMD_BLOCK_H_
