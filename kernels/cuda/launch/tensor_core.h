// Products of 16 x 16 tiles of 16-bit floating-point numbers, summed in f32 by a GPU's tensor cores, by the kWarp
// threads of a warp together. On the host the warp's threads compute the same sums one by one.
//
// Every thread of the warp must make each call, with the same arguments. Tiles lie in shared memory, at multiples of 32
// bytes, with a pitch that is a multiple of 16 bytes; what they are loaded from may change when they have been
// multiplied, not before.
#ifndef TACC_KERNELS_CUDA_LAUNCH_TENSOR_CORE_H_
#define TACC_KERNELS_CUDA_LAUNCH_TENSOR_CORE_H_

#include <cstdint>

#include "kernels/cuda/launch/pack.h"

#ifdef __CUDACC__
#include <mma.h>

#include <type_traits>
#endif

namespace tacc::kernels::cuda {

inline constexpr int kMma = 16;  // rows, columns and terms of a product

// kPack numbers of 16 bits as they lie in memory, on their way from element i of one array to another.
struct Pack16 {
  uint32_t words[kPack / 2] = {};
};
template <typename E>
TACC_DEVICE inline Pack16 LoadPack16(const void* from, int64_t i) {
  static_assert(sizeof(E) == 2);
  Pack16 pack;
  LoadWords<sizeof(Pack16)>(PackAt<E, kPack>(from, i), pack.words);
  return pack;
}
template <typename E>
TACC_DEVICE inline void StorePack16(const Pack16& pack, void* to, int64_t i) {
  StoreWords<sizeof(Pack16)>(const_cast<Packed<E, kPack>*>(PackAt<E, kPack>(to, i)), pack.words);
}

// Where element (i, j) of a tile lies: at i * pitch + j, or at j * pitch + i.
enum class Major { kRow, kColumn };

#ifdef __CUDACC__

template <typename Use, typename E, Major kMajor>
class OperandTile {
 public:
  __device__ void Load(const E* data, int pitch) {
    nvcuda::wmma::load_matrix_sync(fragment_, reinterpret_cast<const Native*>(data), static_cast<unsigned>(pitch));
  }

 private:
  friend class SumTile;
  using Native = std::conditional_t<std::is_same_v<E, BFloat16>, __nv_bfloat16, __half>;
  using Layout = std::conditional_t<kMajor == Major::kRow, nvcuda::wmma::row_major, nvcuda::wmma::col_major>;
  nvcuda::wmma::fragment<Use, kMma, kMma, kMma, Native, Layout> fragment_;
};

// E: BFloat16 or Half.
template <typename E, Major kMajor>
using LeftTile = OperandTile<nvcuda::wmma::matrix_a, E, kMajor>;
template <typename E, Major kMajor>
using RightTile = OperandTile<nvcuda::wmma::matrix_b, E, kMajor>;

class SumTile {
 public:
  __device__ void Clear() { nvcuda::wmma::fill_fragment(fragment_, 0.0f); }
  // += left times right.
  template <typename Left, typename Right>
  __device__ void Add(const Team&, const Left& left, const Right& right) {
    nvcuda::wmma::mma_sync(fragment_, left.fragment_, right.fragment_, fragment_);
  }
  // Row-major.
  __device__ void Load(const Team&, const float* data, int pitch) {
    nvcuda::wmma::load_matrix_sync(fragment_, data, static_cast<unsigned>(pitch), nvcuda::wmma::mem_row_major);
  }
  __device__ void Store(const Team&, float* data, int pitch) const {
    nvcuda::wmma::store_matrix_sync(data, fragment_, static_cast<unsigned>(pitch), nvcuda::wmma::mem_row_major);
  }

 private:
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, kMma, kMma, kMma, float> fragment_;
};

#else

inline void CheckTile(const void* data, int64_t pitch_bytes) {
  TACC_KERNEL_CHECK(reinterpret_cast<uintptr_t>(data) % 32 == 0 && pitch_bytes % 16 == 0);
}

template <typename E, Major kMajor>
class OperandTile {
 public:
  void Load(const E* data, int pitch) {
    CheckTile(data, pitch * static_cast<int64_t>(sizeof(E)));
    data_ = data;
    pitch_ = pitch;
  }
  float At(int i, int j) const { return ToFloat(data_[kMajor == Major::kRow ? i * pitch_ + j : j * pitch_ + i]); }

 private:
  const E* data_ = nullptr;
  int pitch_ = 0;
};

template <typename E, Major kMajor>
using LeftTile = OperandTile<E, kMajor>;
template <typename E, Major kMajor>
using RightTile = OperandTile<E, kMajor>;

// A thread has half a row.
class SumTile {
 public:
  void Clear() {
    for (float& sum : sums_) sum = 0;
  }
  template <typename Left, typename Right>
  void Add(const Team& team, const Left& left, const Right& right) {
    for (int k = 0; k < kMma; ++k) {
      const float factor = left.At(Row(team), k);
      for (int j = 0; j < kOwn; ++j) sums_[j] += factor * right.At(k, Column(team) + j);
    }
  }
  void Load(const Team& team, const float* data, int pitch) {
    CheckTile(data, pitch * static_cast<int64_t>(sizeof(float)));
    for (int j = 0; j < kOwn; ++j) sums_[j] = data[Row(team) * pitch + Column(team) + j];
  }
  void Store(const Team& team, float* data, int pitch) const {
    CheckTile(data, pitch * static_cast<int64_t>(sizeof(float)));
    for (int j = 0; j < kOwn; ++j) data[Row(team) * pitch + Column(team) + j] = sums_[j];
  }

 private:
  static constexpr int kOwn = kMma * kMma / kWarp;
  static int Row(const Team& team) { return team.rank() % kWarp / 2; }
  static int Column(const Team& team) { return team.rank() % 2 * kOwn; }

  float sums_[kOwn] = {};
};

#endif

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_LAUNCH_TENSOR_CORE_H_
