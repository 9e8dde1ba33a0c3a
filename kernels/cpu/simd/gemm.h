// A small matrix product for blocks that lie in L1 and L2: C [M,N] (+)= A [M,K] B [K,N]. Compiled once per instruction
// set.
#ifndef TACC_KERNELS_CPU_SIMD_GEMM_H_
#define TACC_KERNELS_CPU_SIMD_GEMM_H_

#include "kernels/cpu/simd/block.h"

namespace tacc::kernels::simd::TACC_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kTileVectors = 4;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32, kTileVectors = 2;
#else
constexpr int kVectorBytes = 16, kTileVectors = 2;
#endif
constexpr int kTileRows = 6;  // rows x vectors of sums, a row of B and one element of A fit the registers

template <typename C>
struct Vector {
  typedef C Type __attribute__((vector_size(kVectorBytes), aligned(alignof(C)), may_alias));
  static constexpr int kLanes = kVectorBytes / sizeof(C);
};

// A(m, k) is a[m * row_stride + k * column_stride]; rows of b and c are dense, ldb and ldc apart.
template <typename C>
struct Product {
  int64_t m, n, k;
  const C* a;
  int64_t row_stride, column_stride;
  const C* b;
  int64_t ldb;
  C* c;
  int64_t ldc;
  bool accumulate;
};

template <typename C, int kRows, int kVectors>
TACC_NOINLINE void ProductTile(const Product<C>& p, const C* a, const C* b, C* c) {
  using V = typename Vector<C>::Type;
  constexpr int kLanes = Vector<C>::kLanes;
  V sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = p.accumulate ? *reinterpret_cast<const V*>(c + r * p.ldc + v * kLanes) : V{};
    }
  }
  for (int64_t k = 0; k < p.k; ++k) {
    V row[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) row[v] = *reinterpret_cast<const V*>(b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const C element = a[r * p.row_stride];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] += element * row[v];
    }
    a += p.column_stride;
    b += p.ldb;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) *reinterpret_cast<V*>(c + r * p.ldc + v * kLanes) = sums[r][v];
  }
}

template <typename C, int kVectors>
TACC_INLINE void ProductRows(const Product<C>& p, const C* b, C* c) {
  int64_t m = 0;
  for (; m + kTileRows <= p.m; m += kTileRows) {
    ProductTile<C, kTileRows, kVectors>(p, p.a + m * p.row_stride, b, c + m * p.ldc);
  }
  const C* a = p.a + m * p.row_stride;
  c += m * p.ldc;
  switch (p.m - m) {
    case 1:
      return ProductTile<C, 1, kVectors>(p, a, b, c);
    case 2:
      return ProductTile<C, 2, kVectors>(p, a, b, c);
    case 3:
      return ProductTile<C, 3, kVectors>(p, a, b, c);
    case 4:
      return ProductTile<C, 4, kVectors>(p, a, b, c);
    case 5:
      return ProductTile<C, 5, kVectors>(p, a, b, c);
    default:
      return;
  }
}

// n is a multiple of 16.
template <typename C>
TACC_INLINE void Multiply(const Product<C>& p) {
  constexpr int64_t kLanes = Vector<C>::kLanes;
  int64_t n = 0;
  for (; n + kTileVectors * kLanes <= p.n; n += kTileVectors * kLanes)
    ProductRows<C, kTileVectors>(p, p.b + n, p.c + n);
  for (; n + 2 * kLanes <= p.n; n += 2 * kLanes) ProductRows<C, 2>(p, p.b + n, p.c + n);
  for (; n < p.n; n += kLanes) ProductRows<C, 1>(p, p.b + n, p.c + n);
}

}  // namespace tacc::kernels::simd::TACC_ISA

#endif  // TACC_KERNELS_CPU_SIMD_GEMM_H_
