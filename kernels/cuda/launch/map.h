// Map: kernels that compute element i of their outputs from element i of their inputs, in packs where they can.
#ifndef TACC_KERNELS_CUDA_LAUNCH_MAP_H_
#define TACC_KERNELS_CUDA_LAUNCH_MAP_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/launch/pack.h"

namespace tacc::kernels::cuda {

// The width of packs for elementwise work on all of these: 16 bytes of the widest, so that a warp writes whole lines; 1
// if one of them cannot be packed, or holds integers (which floats would round).
inline int PackWidth(const TensorView* begin, const TensorView* end) {
  int width = kPack;
  for (const TensorView* view = begin; view != end; ++view) {
    if (!IsFloat(view->dtype) || !ArePackable({*view})) return 1;
    if (view->dtype == DType::kF32) width = 4;
  }
  return width;
}

// n elements as items of work: packs of W, then what is left over one by one.
template <int W>
struct Packs {
  int64_t n, num_items;

  explicit Packs(int64_t num_elements) : n(num_elements), num_items(num_elements / W + num_elements % W) {}

  // f(first, std::integral_constant<int, V>()) for the elements [first, first + V) of an item; V is W or 1.
  template <typename F>
  TACC_DEVICE void At(int64_t item, const F& f) const {
    const int64_t num_packs = n / W;
    if (W == 1 || item < num_packs) return f(item * W, std::integral_constant<int, W>());
    if constexpr (W > 1) f(num_packs * W + item - num_packs, std::integral_constant<int, 1>());
  }
};

template <typename T, int W, int kIn, int kOut, typename F>
struct MapItem {
  AnyIn in[kIn];
  AnyOut out[kOut];
  Packs<W> packs;
  F f;

  TACC_DEVICE void operator()(int64_t item) const {
    packs.At(item, [this](int64_t first, auto width) {
      constexpr int V = decltype(width)::value;
      T x[kIn][V], y[kOut][V] = {};
      int64_t at[kIn];
      TACC_UNROLL
      for (int a = 0; a < kIn; ++a) at[a] = first;
      LoadAll(in, at, x);
      f(first, x, y);
#pragma unroll
      for (int a = 0; a < kOut; ++a) Store<V>(out[a], first, y[a]);
    });
  }
};

// Queues f over all elements, in packs of W; each array has as many, and an output may be exactly one of the inputs. f
// computes packs:
//   template <typename T, int V> void operator()(int64_t first, const T (&x)[kIn][V], T (&y)[kOut][V]) const
// where x and y are the elements [first, first + V); T is float, double or int64_t, and V is 1, or W if T is float.
template <typename T, int W, int kIn, int kOut, typename F>
void MapPacks(const TensorView (&in)[kIn], const TensorView (&out)[kOut], F f) {
  MapItem<T, W, kIn, kOut, F> kernel{.packs = Packs<W>(out[0].size()), .f = f};
  for (int a = 0; a < kIn; ++a) kernel.in[a] = In(in[a]);
  for (int a = 0; a < kOut; ++a) kernel.out[a] = Out(out[a]);
  ForEach(kernel.packs.num_items, kernel);
}

// MapPacks with the width that suits the arrays: 1, 4 or kPack.
template <typename T, int kIn, int kOut, typename F>
void Map(const TensorView (&in)[kIn], const TensorView (&out)[kOut], F f) {
  if constexpr (std::is_same_v<T, float>) {
    const int width = std::min(PackWidth(in, in + kIn), PackWidth(out, out + kOut));
    if (width == kPack) return MapPacks<T, kPack>(in, out, f);
    if (width == 4) return MapPacks<T, 4>(in, out, f);
  }
  MapPacks<T, 1>(in, out, f);
}

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_LAUNCH_MAP_H_
