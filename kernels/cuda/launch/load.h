// Elements of any dtype as numbers, on the GPU and on the host: bits are converted here, so that both round alike.
#ifndef TACC_KERNELS_CUDA_LAUNCH_LOAD_H_
#define TACC_KERNELS_CUDA_LAUNCH_LOAD_H_

#include <cstdint>
#include <initializer_list>

#include "kernels/cuda/launch/launch.h"
#include "kernels/tensor.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include <bit>
#endif

namespace tacc::kernels::cuda {

// 16-bit floating-point numbers as they lie in memory.
struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

#ifdef __CUDACC__

__device__ inline float ToFloat(BFloat16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
__device__ inline float ToFloat(Half x) { return __half2float(__ushort_as_half(x.bits)); }
__device__ inline BFloat16 ToBFloat16(float x) { return {__bfloat16_as_ushort(__float2bfloat16_rn(x))}; }
__device__ inline Half ToHalf(float x) { return {__half_as_ushort(__float2half_rn(x))}; }

#else

inline float ToFloat(BFloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
inline float ToFloat(Half x) { return static_cast<float>(std::bit_cast<_Float16>(x.bits)); }
inline BFloat16 ToBFloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (x != x) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
inline Half ToHalf(float x) { return {std::bit_cast<uint16_t>(static_cast<_Float16>(x))}; }

#endif

// An element of any type as a number; T is float, double or int64_t.
template <typename T>
TACC_DEVICE inline T Convert(float x) {
  return static_cast<T>(x);
}
template <typename T>
TACC_DEVICE inline T Convert(double x) {
  return static_cast<T>(x);
}
template <typename T>
TACC_DEVICE inline T Convert(int32_t x) {
  return static_cast<T>(x);
}
template <typename T>
TACC_DEVICE inline T Convert(int64_t x) {
  return static_cast<T>(x);
}
template <typename T>
TACC_DEVICE inline T Convert(uint8_t x) {
  return static_cast<T>(x);
}
template <typename T>
TACC_DEVICE inline T Convert(BFloat16 x) {
  return static_cast<T>(ToFloat(x));
}
template <typename T>
TACC_DEVICE inline T Convert(Half x) {
  return static_cast<T>(ToFloat(x));
}

template <typename T>
TACC_DEVICE inline void Assign(T x, float* y) {
  *y = static_cast<float>(x);
}
template <typename T>
TACC_DEVICE inline void Assign(T x, double* y) {
  *y = static_cast<double>(x);
}
template <typename T>
TACC_DEVICE inline void Assign(T x, int32_t* y) {
  *y = static_cast<int32_t>(x);
}
template <typename T>
TACC_DEVICE inline void Assign(T x, int64_t* y) {
  *y = static_cast<int64_t>(x);
}
// As a bool lies in memory.
template <typename T>
TACC_DEVICE inline void Assign(T x, uint8_t* y) {
  *y = x != T();
}
// An f64 is rounded to f32 first, as everywhere in this project.
template <typename T>
TACC_DEVICE inline void Assign(T x, BFloat16* y) {
  *y = ToBFloat16(static_cast<float>(x));
}
template <typename T>
TACC_DEVICE inline void Assign(T x, Half* y) {
  *y = ToHalf(static_cast<float>(x));
}

// x as a narrow floating dtype has it.
template <typename T>
TACC_DEVICE inline T RoundedTo(DType dtype, T x) {
  if (dtype == DType::kBF16) return static_cast<T>(ToFloat(ToBFloat16(static_cast<float>(x))));
  if (dtype == DType::kF16) return static_cast<T>(ToFloat(ToHalf(static_cast<float>(x))));
  return x;
}

// Arrays whose dtype is known at run time only: a branch an element, the same for all threads. Kernels that carry a
// step's time have instances for fixed types beside.
struct AnyIn {
  const void* data = nullptr;
  DType dtype = DType::kF32;

  TACC_DEVICE explicit operator bool() const { return data != nullptr; }
  // T: float, double or int64_t.
  template <typename T>
  TACC_DEVICE T Load(int64_t i) const {
    switch (dtype) {
      case DType::kF32:
        return static_cast<T>(static_cast<const float*>(data)[i]);
      case DType::kBF16:
        return Convert<T>(static_cast<const BFloat16*>(data)[i]);
      case DType::kF16:
        return Convert<T>(static_cast<const Half*>(data)[i]);
      case DType::kF64:
        return static_cast<T>(static_cast<const double*>(data)[i]);
      case DType::kI32:
        return static_cast<T>(static_cast<const int32_t*>(data)[i]);
      case DType::kI64:
        return static_cast<T>(static_cast<const int64_t*>(data)[i]);
      case DType::kBool:
        return static_cast<T>(static_cast<const uint8_t*>(data)[i]);
    }
    return T();
  }
};

struct AnyOut {
  void* data = nullptr;
  DType dtype = DType::kF32;

  TACC_DEVICE explicit operator bool() const { return data != nullptr; }
  template <typename T>
  TACC_DEVICE void Store(int64_t i, T x) const {
    switch (dtype) {
      case DType::kF32:
        static_cast<float*>(data)[i] = static_cast<float>(x);
        break;
      case DType::kBF16:
        static_cast<BFloat16*>(data)[i] = ToBFloat16(static_cast<float>(x));
        break;
      case DType::kF16:
        static_cast<Half*>(data)[i] = ToHalf(static_cast<float>(x));
        break;
      case DType::kF64:
        static_cast<double*>(data)[i] = static_cast<double>(x);
        break;
      case DType::kI32:
        static_cast<int32_t*>(data)[i] = static_cast<int32_t>(x);
        break;
      case DType::kI64:
        static_cast<int64_t*>(data)[i] = static_cast<int64_t>(x);
        break;
      case DType::kBool:
        static_cast<uint8_t*>(data)[i] = x != T();
        break;
    }
  }
};

inline AnyIn In(const TensorView& x) { return {x.data, x.dtype}; }
inline AnyOut Out(const TensorView& y) { return {y.data, y.dtype}; }

// Calls f(T()) with T = double if any view is f64, else float: the type that kernels compute in.
template <typename F>
void WithComputeType(std::initializer_list<TensorView> views, F f) {
  for (const TensorView& view : views) {
    if (view.data != nullptr && view.dtype == DType::kF64) return f(double());
  }
  f(float());
}

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_LAUNCH_LOAD_H_
