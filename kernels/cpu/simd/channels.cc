#include "kernels/cpu/simd/channels.h"

#include "kernels/cpu/simd/block.h"

namespace tacc::kernels::simd::TACC_ISA {
namespace {

template <typename C>
TACC_INLINE void AddSumsOf(const In& x, const In& z, int64_t begin, int64_t end, double* sum, double* products) {
  Buffer<C> bx, bz;
  double s = 0, p = 0;
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t n = Min(kBlock, end - i);
    const C* px = Load<C>(x, i, n, bx);
    const C* pz = Load<C>(z, i, n, bz);
#pragma omp simd reduction(+ : s, p)
    for (int64_t j = 0; j < n; ++j) {
      s += static_cast<double>(px[j]);
      p += static_cast<double>(px[j]) * static_cast<double>(pz[j]);
    }
  }
  *sum += s;
  *products += p;
}

template <typename C>
TACC_INLINE void AffineIn(const AffineOf& f, int64_t begin, int64_t end) {
  Buffer<C> bx, bz, by;
  const C a = static_cast<C>(f.a), b = static_cast<C>(f.b), offset = static_cast<C>(f.offset);
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t n = Min(kBlock, end - i);
    const C* px = Load<C>(f.x, i, n, bx);
    C* py = Target<C>(f.y, i, by);
    if (f.z.data == nullptr) {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) py[j] = a * px[j] + offset;
    } else {
      const C* pz = Load<C>(f.z, i, n, bz);
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) py[j] = a * px[j] + (b * pz[j] + offset);
    }
    Store<C>(f.y, i, n, py);
  }
}

}  // namespace

void AddSums(In x, In z, int64_t begin, int64_t end, double* sum, double* products) {
  if (IsF64(x) || IsF64(z)) return AddSumsOf<double>(x, z, begin, end, sum, products);
  AddSumsOf<float>(x, z, begin, end, sum, products);
}

void Affine(const AffineOf& f, int64_t begin, int64_t end) {
  if (IsF64(f.x) || IsF64(f.z)) return AffineIn<double>(f, begin, end);
  AffineIn<float>(f, begin, end);
}

}  // namespace tacc::kernels::simd::TACC_ISA
