// Packs: neighbouring elements that a thread reads or writes 16 bytes at a time. Their dtype is looked at once a pack,
// so one instance of a kernel serves every mix of dtypes.
#ifndef TACC_KERNELS_CUDA_PACK_H_
#define TACC_KERNELS_CUDA_PACK_H_

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/cuda/load.h"

// Before a loop over an array that is to lie in registers.
#ifdef __CUDACC__
#define TACC_UNROLL _Pragma("unroll")
#else
#define TACC_UNROLL
#endif

namespace tacc::kernels::cuda {

// Elements of a pack: 16 bytes of 16-bit numbers, 32 of f32.
inline constexpr int kPack = 8;
inline constexpr int64_t kPackAlignment = 16;

// N elements in memory, moved by as few instructions as their alignment allows.
template <typename E, int N>
struct alignas(N * sizeof(E) < kPackAlignment ? N * sizeof(E) : kPackAlignment) Packed {
  E at[N];
};

// Element i of an array, which begins a pack. What is not aligned is an error: a GPU stops at it.
template <typename E, int N>
TACC_DEVICE inline const Packed<E, N>* PackAt(const void* data, int64_t i) {
  const E* at = static_cast<const E*>(data) + i;
#ifndef __CUDACC__
  TACC_KERNEL_CHECK(reinterpret_cast<uintptr_t>(at) % alignof(Packed<E, N>) == 0);
#endif
  return reinterpret_cast<const Packed<E, N>*>(at);
}

template <int N, typename E, typename T>
TACC_DEVICE inline void LoadPacked(const void* data, int64_t i, T* values) {
  const Packed<E, N> pack = *PackAt<E, N>(data, i);
  TACC_UNROLL
  for (int j = 0; j < N; ++j) values[j] = Convert<T>(pack.at[j]);
}

template <int N, typename E, typename T>
TACC_DEVICE inline void StorePacked(void* data, int64_t i, const T* values) {
  Packed<E, N> pack;
  TACC_UNROLL
  for (int j = 0; j < N; ++j) Assign(values[j], &pack.at[j]);
  *const_cast<Packed<E, N>*>(PackAt<E, N>(data, i)) = pack;
}

// values[j] = x[i + j] for j in [0, N), N a power of 2 up to kPack. With N > 1 x is aligned to kPackAlignment and i a
// multiple of N. T: float or double.
template <int N, typename T>
TACC_DEVICE inline void Load(const AnyIn& x, int64_t i, T* values) {
  switch (x.dtype) {
    case DType::kF32:
      return LoadPacked<N, float>(x.data, i, values);
    case DType::kBF16:
      return LoadPacked<N, BFloat16>(x.data, i, values);
    case DType::kF16:
      return LoadPacked<N, Half>(x.data, i, values);
    case DType::kF64:
      return LoadPacked<N, double>(x.data, i, values);
    case DType::kI32:
      return LoadPacked<N, int32_t>(x.data, i, values);
    case DType::kI64:
      return LoadPacked<N, int64_t>(x.data, i, values);
    case DType::kBool:
      break;
  }
  LoadPacked<N, uint8_t>(x.data, i, values);
}

// y[i + j] = values[j].
template <int N, typename T>
TACC_DEVICE inline void Store(const AnyOut& y, int64_t i, const T* values) {
  switch (y.dtype) {
    case DType::kF32:
      return StorePacked<N, float>(y.data, i, values);
    case DType::kBF16:
      return StorePacked<N, BFloat16>(y.data, i, values);
    case DType::kF16:
      return StorePacked<N, Half>(y.data, i, values);
    case DType::kF64:
      return StorePacked<N, double>(y.data, i, values);
    case DType::kI32:
      return StorePacked<N, int32_t>(y.data, i, values);
    case DType::kI64:
      return StorePacked<N, int64_t>(y.data, i, values);
    case DType::kBool:
      break;
  }
  StorePacked<N, uint8_t>(y.data, i, values);
}

// Whether packs of `views` may be loaded and stored: all are aligned, or absent, and computing is in f32.
inline bool ArePackable(std::initializer_list<TensorView> views) {
  for (const TensorView& view : views) {
    if (view.data == nullptr) continue;
    if (reinterpret_cast<uintptr_t>(view.data) % kPackAlignment != 0 || view.dtype == DType::kF64) return false;
  }
  return true;
}

// Calls f(T(), N) with T the compute type of `views` and N, an std::integral_constant, the elements of a pack: kWidth
// where the views are packable and `pack_wanted` holds (as a rule, that rows are a multiple of it long), else 1.
template <int kWidth = kPack, typename F>
void WithPacks(bool pack_wanted, std::initializer_list<TensorView> views, F f) {
  if (pack_wanted && ArePackable(views)) return f(float(), std::integral_constant<int, kWidth>());
  WithComputeType(views, [&](auto zero) { f(zero, std::integral_constant<int, 1>()); });
}

// f(i, M) for the elements of a row of n from element `first` of an array on, spread over the team: M is
// std::integral_constant<int, N> for the packs [i, i + N) of which first + i is a multiple of N, and of 1 for what is
// left over at both ends.
template <int N, typename F>
TACC_DEVICE inline void ForPacks(const Team& team, int64_t first, int64_t n, F f) {
  int64_t begin = 0, end = 0;
  if constexpr (N > 1) {
    begin = (N - first % N) % N;
    if (begin > n) begin = n;
    end = begin + (n - begin) / N * N;
    for (int64_t i = team.rank(); i < begin; i += team.size()) f(i, std::integral_constant<int, 1>());
    for (int64_t i = begin + team.rank() * N; i < end; i += static_cast<int64_t>(team.size()) * N)
      f(i, std::integral_constant<int, N>());
  }
  for (int64_t i = end + team.rank(); i < n; i += team.size()) f(i, std::integral_constant<int, 1>());
}

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_PACK_H_
