// Packs: neighbouring elements that a thread reads or writes 16 bytes at a time. Their dtype is looked at once a pack,
// so one instance of a kernel serves every mix of dtypes.
#ifndef TACC_KERNELS_CUDA_LAUNCH_PACK_H_
#define TACC_KERNELS_CUDA_LAUNCH_PACK_H_

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/cuda/launch/load.h"

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

// A pack as words of 4 bytes, moved 16 bytes (or what there is) by one instruction: said with CUDA's vector types,
// because nvcc makes several instructions of some stores of small structs.
template <int kBytes>
TACC_DEVICE inline void LoadWords(const void* from, uint32_t* words) {
#ifdef __CUDACC__
  if constexpr (kBytes % 16 == 0) {
    TACC_UNROLL
    for (int i = 0; i < kBytes / 16; ++i) {
      const uint4 v = static_cast<const uint4*>(from)[i];
      words[4 * i] = v.x;
      words[4 * i + 1] = v.y;
      words[4 * i + 2] = v.z;
      words[4 * i + 3] = v.w;
    }
  } else if constexpr (kBytes == 8) {
    const uint2 v = *static_cast<const uint2*>(from);
    words[0] = v.x;
    words[1] = v.y;
  } else {
    static_assert(kBytes == 4);
    words[0] = *static_cast<const uint32_t*>(from);
  }
#else
  __builtin_memcpy(words, from, kBytes);
#endif
}

template <int kBytes>
TACC_DEVICE inline void StoreWords(void* to, const uint32_t* words) {
#ifdef __CUDACC__
  if constexpr (kBytes % 16 == 0) {
    TACC_UNROLL
    for (int i = 0; i < kBytes / 16; ++i)
      static_cast<uint4*>(to)[i] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
  } else if constexpr (kBytes == 8) {
    *static_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  } else {
    static_assert(kBytes == 4);
    *static_cast<uint32_t*>(to) = words[0];
  }
#else
  __builtin_memcpy(to, words, kBytes);
#endif
}

// Element j of a pack in words.
template <typename E>
TACC_DEVICE inline E ElementOf(const uint32_t* words, int j) {
  E element;
  if constexpr (sizeof(E) == 8) {
    const uint64_t bits = words[2 * j] | static_cast<uint64_t>(words[2 * j + 1]) << 32;
    __builtin_memcpy(&element, &bits, 8);
  } else if constexpr (sizeof(E) == 4) {
    __builtin_memcpy(&element, &words[j], 4);
  } else if constexpr (sizeof(E) == 2) {
    const uint16_t bits = static_cast<uint16_t>(words[j / 2] >> (j % 2 * 16));
    __builtin_memcpy(&element, &bits, 2);
  } else {
    element = static_cast<E>(words[j / 4] >> (j % 4 * 8));
  }
  return element;
}

// The inverse, on words that are zero there.
template <typename E>
TACC_DEVICE inline void AddElement(E element, int j, uint32_t* words) {
  if constexpr (sizeof(E) == 8) {
    uint64_t bits;
    __builtin_memcpy(&bits, &element, 8);
    words[2 * j] = static_cast<uint32_t>(bits);
    words[2 * j + 1] = static_cast<uint32_t>(bits >> 32);
  } else if constexpr (sizeof(E) == 4) {
    __builtin_memcpy(&words[j], &element, 4);
  } else if constexpr (sizeof(E) == 2) {
    uint16_t bits;
    __builtin_memcpy(&bits, &element, 2);
    words[j / 2] |= static_cast<uint32_t>(bits) << (j % 2 * 16);
  } else {
    words[j / 4] |= static_cast<uint32_t>(element) << (j % 4 * 8);
  }
}

template <int N, typename E, typename T>
TACC_DEVICE inline void LoadPacked(const void* data, int64_t i, T* values) {
  constexpr int kBytes = N * static_cast<int>(sizeof(E));
  const Packed<E, N>* at = PackAt<E, N>(data, i);
  if constexpr (N == 1 || kBytes < 4) {
    TACC_UNROLL
    for (int j = 0; j < N; ++j) values[j] = Convert<T>(at->at[j]);
  } else {
    uint32_t words[kBytes / 4];
    LoadWords<kBytes>(at, words);
    TACC_UNROLL
    for (int j = 0; j < N; ++j) values[j] = Convert<T>(ElementOf<E>(words, j));
  }
}

template <int N, typename E, typename T>
TACC_DEVICE inline void StorePacked(void* data, int64_t i, const T* values) {
  constexpr int kBytes = N * static_cast<int>(sizeof(E));
  Packed<E, N>* at = const_cast<Packed<E, N>*>(PackAt<E, N>(data, i));
  if constexpr (N == 1 || kBytes < 4) {
    TACC_UNROLL
    for (int j = 0; j < N; ++j) Assign(values[j], &at->at[j]);
  } else {
    uint32_t words[kBytes / 4] = {};
    TACC_UNROLL
    for (int j = 0; j < N; ++j) {
      E element;
      Assign(values[j], &element);
      AddElement(element, j, words);
    }
    StoreWords<kBytes>(at, words);
  }
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

// A pack of floats of at most 32 bits as it lies in memory; 16-bit numbers fill the first half.
template <int N>
TACC_DEVICE inline void LoadRaw(const AnyIn& x, int64_t i, uint32_t (&words)[N]) {
  static_assert(N > 1);
#ifndef __CUDACC__
  TACC_KERNEL_CHECK(IsFloat(x.dtype) && x.dtype != DType::kF64);
#endif
  if (x.dtype == DType::kF32) return LoadWords<4 * N>(PackAt<float, N>(x.data, i), words);
  LoadWords<2 * N>(PackAt<BFloat16, N>(x.data, i), words);
}

template <int N>
TACC_DEVICE inline void ConvertRaw(DType dtype, const uint32_t (&words)[N], float (&values)[N]) {
  if (dtype == DType::kF32) {
    TACC_UNROLL
    for (int j = 0; j < N; ++j) values[j] = ElementOf<float>(words, j);
  } else if (dtype == DType::kBF16) {
    TACC_UNROLL
    for (int j = 0; j < N; ++j) values[j] = ToFloat(ElementOf<BFloat16>(words, j));
  } else {
    TACC_UNROLL
    for (int j = 0; j < N; ++j) values[j] = ToFloat(ElementOf<Half>(words, j));
  }
}

// values[a][j] = x[a][at[a] + j], as Load does it, but of floats only and of all arrays at once: their words are on the
// way before the first of them is converted, so a thread waits for memory once. The values of absent arrays stay.
template <int N, int K, typename T>
TACC_DEVICE inline void LoadAll(const AnyIn (&x)[K], const int64_t (&at)[K], T (&values)[K][N]) {
  if constexpr (N > 1) {
    uint32_t words[K][N];
    TACC_UNROLL
    for (int a = 0; a < K; ++a) {
      if (x[a]) LoadRaw<N>(x[a], at[a], words[a]);
    }
    TACC_UNROLL
    for (int a = 0; a < K; ++a) {
      if (x[a]) ConvertRaw<N>(x[a].dtype, words[a], values[a]);
    }
  } else {
    TACC_UNROLL
    for (int a = 0; a < K; ++a) {
      if (x[a]) Load<N>(x[a], at[a], values[a]);
    }
  }
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

#endif  // TACC_KERNELS_CUDA_LAUNCH_PACK_H_
