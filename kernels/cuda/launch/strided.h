// Where the elements of a box lie in memory, element by element in row-major order of the box.
#ifndef TACC_KERNELS_CUDA_LAUNCH_STRIDED_H_
#define TACC_KERNELS_CUDA_LAUNCH_STRIDED_H_

#include <cstdint>

#include "kernels/cuda/launch/launch.h"
#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

// The widest unit that a thread moves at once.
struct alignas(16) Bytes16 {
  uint64_t halves[2];
};

struct Quotient {
  int64_t quotient, rest;
};

// a / b for a >= 0 and b > 0; narrow: both fit 32 bits, whose division is several times faster.
TACC_DEVICE inline Quotient Divide(bool narrow, int64_t a, int64_t b) {
  if (narrow) {
    const uint32_t quotient = static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
    return {quotient, static_cast<uint32_t>(a) - quotient * static_cast<uint32_t>(b)};
  }
  const int64_t quotient = a / b;
  return {quotient, a - quotient * b};
}

// N arrays, each with its own strides, in elements.
template <int N>
struct Strided {
  int rank = 0;
  bool narrow = true;  // every index fits 32 bits
  int64_t dims[Dims::kMaxRank] = {};
  int64_t strides[N][Dims::kMaxRank] = {};

  Strided() = default;
  Strided(const Dims& extents, const Dims (&steps)[N]) : rank(extents.rank()) {
    narrow = extents.Product() <= INT32_MAX;
    for (int d = 0; d < rank; ++d) {
      dims[d] = extents[d];
      for (int a = 0; a < N; ++a) strides[a][d] = steps[a][d];
    }
  }

  // Of element i of the box.
  TACC_DEVICE void Offsets(int64_t i, int64_t (&offsets)[N]) const {
    for (int a = 0; a < N; ++a) offsets[a] = 0;
    for (int d = Dims::kMaxRank - 1; d >= 0; --d) {
      if (d >= rank) continue;
      int64_t position = i;
      if (d > 0) {
        const Quotient next = Divide(narrow, i, dims[d]);
        position = next.rest;
        i = next.quotient;
      }
      for (int a = 0; a < N; ++a) offsets[a] += position * strides[a][d];
    }
  }
};

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_LAUNCH_STRIDED_H_
