#include "kernels/cpu/simd/block.h"
#include "kernels/cpu/simd/rows.h"
#include "kernels/cpu/simd/vector_math.h"

namespace tacc::kernels::simd::TACC_ISA {
namespace {

template <typename C>
bool ComputesIn(const NormRows& r) {
  return (sizeof(C) == 8) == (IsF64(r.x) || IsF64(r.w) || IsF64(r.b));
}
template <typename C>
bool ComputesIn(const NormGradRows& r) {
  return (sizeof(C) == 8) == (IsF64(r.dy) || IsF64(r.x) || IsF64(r.w));
}

// Sum over one row of f(x) in C; blocks are summed one after the other.
template <typename C, typename F>
TACC_INLINE C RowSum(const In& x, int64_t offset, int64_t n, F f) {
  Buffer<C> bx;
  C total = 0;
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t m = Min(kBlock, n - i);
    const C* px = Load<C>(x, offset + i, m, bx);
    C sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < m; ++j) sum += f(px[j]);
    total += sum;
  }
  return total;
}

// What rms_norm multiplies by the weight: the normalised value, rounded to the dtype of x when that is narrower.
struct Exact {
  template <typename C>
  TACC_INLINE C operator()(C v) const {
    return v;
  }
};
struct ToBf16 {
  template <typename C>
  TACC_INLINE C operator()(C v) const {
    return static_cast<C>(Bf16ToFloat(FloatToBf16(static_cast<float>(v))));
  }
};
struct ToF16 {
  template <typename C>
  TACC_INLINE C operator()(C v) const {
    return static_cast<C>(F16ToFloat(FloatToF16(static_cast<float>(v))));
  }
};

template <typename C, typename Round>
void RmsNormOf(const NormRows& r, int64_t begin, int64_t end, Round round) {
  Buffer<C> bx, bw, by;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t offset = row * r.n;
    const C sum = RowSum<C>(r.x, offset, r.n, [](C v) { return v * v; });
    const C rstd = C(1) / Sqrt(sum / static_cast<C>(r.n) + static_cast<C>(r.eps));
    StoreOne<C>(r.rstd, row, rstd);
    for (int64_t i = 0; i < r.n; i += kBlock) {
      const int64_t m = Min(kBlock, r.n - i);
      const C* x = Load<C>(r.x, offset + i, m, bx);
      const C* w = Load<C>(r.w, i, m, bw);
      C* y = Target<C>(r.y, offset + i, by);
#pragma omp simd
      for (int64_t j = 0; j < m; ++j) y[j] = round(x[j] * rstd) * w[j];
      Store<C>(r.y, offset + i, m, y);
    }
  }
}

template <typename C>
void RmsNormDispatch(const NormRows& r, int64_t begin, int64_t end) {
  if (r.x.dtype == DType::kBF16) return RmsNormOf<C>(r, begin, end, ToBf16());
  if (r.x.dtype == DType::kF16) return RmsNormOf<C>(r, begin, end, ToF16());
  RmsNormOf<C>(r, begin, end, Exact());
}

// Where a block of dx is made, before StoreGradient: never on acc, which is read after.
template <typename C>
TACC_INLINE C* GradientTarget(const NormGradRows& r, int64_t offset, Buffer<C>& buffer) {
  return r.acc.data != nullptr ? buffer.values : Target<C>(r.dx, offset, buffer);
}

// A cast of what is in dx, which the cache still has.
template <typename C>
TACC_INLINE void StoreCopy(const NormGradRows& r, int64_t offset, int64_t n, Buffer<C>& spare) {
  if (r.copy.data == nullptr) return;
  ConvertOut<C>(Load<C>({r.dx.data, r.dx.dtype}, offset, n, spare), r.copy.data, r.copy.dtype, offset, n);
}

// acc + dx is rounded twice, as by an `add` of its own: dx goes through memory in its dtype.
template <typename C>
TACC_INLINE void StoreGradient(const NormGradRows& r, int64_t offset, int64_t n, C* dx, Buffer<C>& spare) {
  if (r.acc.data == nullptr) {
    Store<C>(r.dx, offset, n, dx);
    return StoreCopy<C>(r, offset, n, spare);
  }
  if (r.dx.dtype != Native<C>::kDType) {
    ConvertOut<C>(dx, spare.values, r.dx.dtype, 0, n);
    ConvertIn<C>(spare.values, r.dx.dtype, 0, n, dx);
  }
  const C* acc = Load<C>(r.acc, offset, n, spare);
  C* out = Target<C>(r.dx, offset, spare);
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) out[j] = acc[j] + dx[j];
  Store<C>(r.dx, offset, n, out);
  StoreCopy<C>(r, offset, n, spare);
}

// With h = x * rstd and g = dy * w: dx = rstd * (g - h * mean(g * h)), dw = sum over rows of dy * h.
template <typename C>
void RmsNormGradOf(const NormGradRows& r, int64_t begin, int64_t end) {
  Buffer<C> bd, bx, bw, bo;
  C* dw = static_cast<C*>(r.dw);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t offset = row * r.n;
    const C rstd = LoadOne<C>(r.rstd, row);
    C total = 0;
    for (int64_t i = 0; i < r.n; i += kBlock) {
      const int64_t m = Min(kBlock, r.n - i);
      const C* d = Load<C>(r.dy, offset + i, m, bd);
      const C* x = Load<C>(r.x, offset + i, m, bx);
      const C* w = Load<C>(r.w, i, m, bw);
      C sum = 0;
      if (dw != nullptr) {
        C* target = dw + i;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < m; ++j) {
          const C dh = d[j] * (x[j] * rstd);
          target[j] += dh;
          sum += dh * w[j];
        }
      } else {
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < m; ++j) sum += d[j] * (x[j] * rstd) * w[j];
      }
      total += sum;
    }
    const C mean = total / static_cast<C>(r.n);
    for (int64_t i = 0; i < r.n; i += kBlock) {
      const int64_t m = Min(kBlock, r.n - i);
      const C* d = Load<C>(r.dy, offset + i, m, bd);
      const C* x = Load<C>(r.x, offset + i, m, bx);
      const C* w = Load<C>(r.w, i, m, bw);
      C* dx = GradientTarget<C>(r, offset + i, bo);
#pragma omp simd
      for (int64_t j = 0; j < m; ++j) dx[j] = rstd * (d[j] * w[j] - x[j] * rstd * mean);
      StoreGradient<C>(r, offset + i, m, dx, bd);
    }
  }
}

// Weight and bias of layer norm are optional: a block of ones or zeros stands in.
template <typename C>
TACC_INLINE const C* LoadOr(const In& w, int64_t offset, int64_t n, Buffer<C>& buffer, C value) {
  if (w.data != nullptr) return Load<C>(w, offset, n, buffer);
  for (int64_t j = 0; j < n; ++j) buffer.values[j] = value;
  return buffer.values;
}

template <typename C>
void LayerNormOf(const NormRows& r, int64_t begin, int64_t end) {
  Buffer<C> bx, bw, bb, by;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t offset = row * r.n;
    const C mean = RowSum<C>(r.x, offset, r.n, [](C v) { return v; }) / static_cast<C>(r.n);
    const C sum = RowSum<C>(r.x, offset, r.n, [mean](C v) { return (v - mean) * (v - mean); });
    const C rstd = C(1) / Sqrt(sum / static_cast<C>(r.n) + static_cast<C>(r.eps));
    StoreOne<C>(r.mean, row, mean);
    StoreOne<C>(r.rstd, row, rstd);
    for (int64_t i = 0; i < r.n; i += kBlock) {
      const int64_t m = Min(kBlock, r.n - i);
      const C* x = Load<C>(r.x, offset + i, m, bx);
      const C* w = LoadOr<C>(r.w, i, m, bw, C(1));
      const C* b = LoadOr<C>(r.b, i, m, bb, C(0));
      C* y = Target<C>(r.y, offset + i, by);
#pragma omp simd
      for (int64_t j = 0; j < m; ++j) y[j] = (x[j] - mean) * rstd * w[j] + b[j];
      Store<C>(r.y, offset + i, m, y);
    }
  }
}

// With h = (x - mean) * rstd and g = dy * w: dx = rstd * (g - mean(g) - h * mean(g * h)).
template <typename C>
void LayerNormGradOf(const NormGradRows& r, int64_t begin, int64_t end) {
  Buffer<C> bd, bx, bw, bo;
  C* dw = static_cast<C*>(r.dw);
  C* db = static_cast<C*>(r.db);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t offset = row * r.n;
    const C mean = LoadOne<C>(r.mean, row), rstd = LoadOne<C>(r.rstd, row);
    C total_g = 0, total_gh = 0;
    for (int64_t i = 0; i < r.n; i += kBlock) {
      const int64_t m = Min(kBlock, r.n - i);
      const C* d = Load<C>(r.dy, offset + i, m, bd);
      const C* x = Load<C>(r.x, offset + i, m, bx);
      const C* w = LoadOr<C>(r.w, i, m, bw, C(1));
      C sum_g = 0, sum_gh = 0;
#pragma omp simd reduction(+ : sum_g, sum_gh)
      for (int64_t j = 0; j < m; ++j) {
        const C g = d[j] * w[j];
        sum_g += g;
        sum_gh += g * ((x[j] - mean) * rstd);
      }
      total_g += sum_g;
      total_gh += sum_gh;
      if (dw != nullptr) {
        C* target = dw + i;
#pragma omp simd
        for (int64_t j = 0; j < m; ++j) target[j] += d[j] * ((x[j] - mean) * rstd);
      }
      if (db != nullptr) {
        C* target = db + i;
#pragma omp simd
        for (int64_t j = 0; j < m; ++j) target[j] += d[j];
      }
    }
    const C mean_g = total_g / static_cast<C>(r.n), mean_gh = total_gh / static_cast<C>(r.n);
    for (int64_t i = 0; i < r.n; i += kBlock) {
      const int64_t m = Min(kBlock, r.n - i);
      const C* d = Load<C>(r.dy, offset + i, m, bd);
      const C* x = Load<C>(r.x, offset + i, m, bx);
      const C* w = LoadOr<C>(r.w, i, m, bw, C(1));
      C* dx = GradientTarget<C>(r, offset + i, bo);
#pragma omp simd
      for (int64_t j = 0; j < m; ++j) dx[j] = rstd * (d[j] * w[j] - mean_g - (x[j] - mean) * rstd * mean_gh);
      StoreGradient<C>(r, offset + i, m, dx, bd);
    }
  }
}

template <typename C>
void L2NormalizeOf(const NormRows& r, int64_t begin, int64_t end) {
  Buffer<C> bx, by;
  const C eps = static_cast<C>(r.eps);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t offset = row * r.n;
    const C norm = Sqrt(RowSum<C>(r.x, offset, r.n, [](C v) { return v * v; }));
    const C rnorm = C(1) / (norm < eps ? eps : norm);
    StoreOne<C>(r.rstd, row, rnorm);
    for (int64_t i = 0; i < r.n; i += kBlock) {
      const int64_t m = Min(kBlock, r.n - i);
      const C* x = Load<C>(r.x, offset + i, m, bx);
      C* y = Target<C>(r.y, offset + i, by);
#pragma omp simd
      for (int64_t j = 0; j < m; ++j) y[j] = x[j] * rnorm;
      Store<C>(r.y, offset + i, m, y);
    }
  }
}

// With h = x * rnorm: dx = rnorm * (dy - h * (dy . h)); where the norm was below eps the divisor is a constant.
template <typename C>
void L2NormalizeGradOf(const NormGradRows& r, int64_t begin, int64_t end) {
  Buffer<C> bd, bx, bo;
  const C largest = C(1) / static_cast<C>(r.eps);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t offset = row * r.n;
    const C rnorm = LoadOne<C>(r.rstd, row);
    C dot = 0;
    for (int64_t i = 0; i < r.n; i += kBlock) {
      const int64_t m = Min(kBlock, r.n - i);
      const C* d = Load<C>(r.dy, offset + i, m, bd);
      const C* x = Load<C>(r.x, offset + i, m, bx);
      C sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t j = 0; j < m; ++j) sum += d[j] * (x[j] * rnorm);
      dot += sum;
    }
    if (rnorm >= largest) dot = 0;
    for (int64_t i = 0; i < r.n; i += kBlock) {
      const int64_t m = Min(kBlock, r.n - i);
      const C* d = Load<C>(r.dy, offset + i, m, bd);
      const C* x = Load<C>(r.x, offset + i, m, bx);
      C* dx = Target<C>(r.dx, offset + i, bo);
#pragma omp simd
      for (int64_t j = 0; j < m; ++j) dx[j] = rnorm * (d[j] - x[j] * rnorm * dot);
      Store<C>(r.dx, offset + i, m, dx);
    }
  }
}

}  // namespace

void RmsNorm(const NormRows& rows, int64_t begin, int64_t end) {
  if (ComputesIn<double>(rows)) return RmsNormDispatch<double>(rows, begin, end);
  RmsNormDispatch<float>(rows, begin, end);
}
void RmsNormGrad(const NormGradRows& rows, int64_t begin, int64_t end) {
  if (ComputesIn<double>(rows)) return RmsNormGradOf<double>(rows, begin, end);
  RmsNormGradOf<float>(rows, begin, end);
}
void LayerNorm(const NormRows& rows, int64_t begin, int64_t end) {
  if (ComputesIn<double>(rows)) return LayerNormOf<double>(rows, begin, end);
  LayerNormOf<float>(rows, begin, end);
}
void LayerNormGrad(const NormGradRows& rows, int64_t begin, int64_t end) {
  if (ComputesIn<double>(rows)) return LayerNormGradOf<double>(rows, begin, end);
  LayerNormGradOf<float>(rows, begin, end);
}
void L2Normalize(const NormRows& rows, int64_t begin, int64_t end) {
  if (ComputesIn<double>(rows)) return L2NormalizeOf<double>(rows, begin, end);
  L2NormalizeOf<float>(rows, begin, end);
}
void L2NormalizeGrad(const NormGradRows& rows, int64_t begin, int64_t end) {
  if (ComputesIn<double>(rows)) return L2NormalizeGradOf<double>(rows, begin, end);
  L2NormalizeGradOf<float>(rows, begin, end);
}

}  // namespace tacc::kernels::simd::TACC_ISA
