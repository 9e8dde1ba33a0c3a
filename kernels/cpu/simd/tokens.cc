// Loops whose rows are tokens: rotary embedding and cross-entropy.
#include "kernels/cpu/simd/block.h"
#include "kernels/cpu/simd/rows.h"
#include "kernels/cpu/simd/vector_math.h"

namespace tacc::kernels::simd::TACC_ISA {
namespace {

template <typename C>
void RotaryOf(const RotaryRows& r, int64_t begin, int64_t end) {
  Buffer<C> b1, b2, bc, bs, o1, o2;
  const C sign = static_cast<C>(r.sign);
  constexpr int64_t kPairs = kBlock / 2;
  const auto copy = [&](int64_t from, int64_t limit) {
    for (int64_t i = from; i < limit; i += kBlock) {
      const int64_t n = Min(kBlock, limit - i);
      const C* x = Load<C>(r.x, i, n, b1);
      C* y = Target<C>(r.y, i, o1);
      for (int64_t j = 0; j < n; ++j) y[j] = x[j];
      Store<C>(r.y, i, n, y);
    }
  };
  for (int64_t token = begin; token < end; ++token) {
    const int64_t position = token % r.sequence, first = token * r.num_heads * r.head_dim;
    for (int64_t i = 0; i < r.half; i += kPairs) {
      const int64_t n = Min(kPairs, r.half - i);
      const C* c = Load<C>(r.cos, position * r.half + i, n, bc);
      const C* s = Load<C>(r.sin, position * r.half + i, n, bs);
      for (int64_t head = 0; head < r.num_turned; ++head) {
        const int64_t offset = first + head * r.head_dim;
        if (r.interleaved) {
          const C* x = Load<C>(r.x, offset + 2 * i, 2 * n, b1);
          C* y = Target<C>(r.y, offset + 2 * i, o1);
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) {
            const C u = x[2 * j], v = x[2 * j + 1], t = s[j] * sign;
            y[2 * j] = u * c[j] - v * t;
            y[2 * j + 1] = v * c[j] + u * t;
          }
          Store<C>(r.y, offset + 2 * i, 2 * n, y);
        } else {
          const C* x1 = Load<C>(r.x, offset + i, n, b1);
          const C* x2 = Load<C>(r.x, offset + r.half + i, n, b2);
          C* y1 = Target<C>(r.y, offset + i, o1);
          C* y2 = Target<C>(r.y, offset + r.half + i, o2);
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) {
            const C u = x1[j], v = x2[j], t = s[j] * sign;
            y1[j] = u * c[j] - v * t;
            y2[j] = v * c[j] + u * t;
          }
          Store<C>(r.y, offset + i, n, y1);
          Store<C>(r.y, offset + r.half + i, n, y2);
        }
      }
    }
    if (r.x.data == r.y.data) continue;
    for (int64_t head = 0; head < r.num_turned; ++head) {
      copy(first + head * r.head_dim + 2 * r.half, first + (head + 1) * r.head_dim);
    }
    copy(first + r.num_turned * r.head_dim, first + r.num_heads * r.head_dim);
  }
}

// log(sum(exp(row))), with a running maximum: each block is read once.
template <typename C>
void CrossEntropyOf(const CrossEntropyRows& r, int64_t begin, int64_t end) {
  Buffer<C> bx;
  const C infinity = static_cast<C>(__builtin_inf());
  for (int64_t row = begin; row < end; ++row) {
    C maximum = -infinity;
    double sum = 0;
    for (int64_t i = 0; i < r.vocabulary; i += kBlock) {
      const int64_t n = Min(kBlock, r.vocabulary - i);
      const C* x = Load<C>(r.logits, row * r.pitch + r.first + i, n, bx);
      C block_max = maximum;
#pragma omp simd reduction(max : block_max)
      for (int64_t j = 0; j < n; ++j) block_max = x[j] > block_max ? x[j] : block_max;
      if (block_max > maximum) {
        sum *= ::exp(static_cast<double>(maximum - block_max));
        maximum = block_max;
      }
      const C shift = maximum == -infinity ? C(0) : maximum;
      C block_sum = 0;
#pragma omp simd reduction(+ : block_sum)
      for (int64_t j = 0; j < n; ++j) block_sum += Exp(x[j] - shift);
      sum += static_cast<double>(block_sum);
    }
    StoreOne<C>(r.out, row * r.out_pitch + r.out_first, static_cast<C>(static_cast<double>(maximum) + ::log(sum)));
  }
}

template <typename C>
void CrossEntropyGradOf(const CrossEntropyRows& r, int64_t begin, int64_t end) {
  Buffer<C> bx, by;
  const C dloss = static_cast<C>(r.dloss);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t target = static_cast<int64_t>(r.targets[row]) - r.offset;
    const bool counted = r.targets[row] >= 0;
    const C lse = LoadOne<C>(r.lse, row);
    for (int64_t i = 0; i < r.vocabulary; i += kBlock) {
      const int64_t n = Min(kBlock, r.vocabulary - i);
      const int64_t offset = row * r.pitch + i;
      C* y = Target<C>(r.out, offset, by);
      if (counted) {
        const C* x = Load<C>(r.logits, offset, n, bx);
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) y[j] = Exp(x[j] - lse) * dloss;
        if (target >= i && target < i + n) y[target - i] -= dloss;
      } else {
        for (int64_t j = 0; j < n; ++j) y[j] = C(0);
      }
      Store<C>(r.out, offset, n, y);
    }
  }
}

}  // namespace

void Rotary(const RotaryRows& rows, int64_t begin, int64_t end) {
  if (IsF64(rows.x)) return RotaryOf<double>(rows, begin, end);
  RotaryOf<float>(rows, begin, end);
}
void CrossEntropy(const CrossEntropyRows& rows, int64_t begin, int64_t end) {
  if (IsF64(rows.logits)) return CrossEntropyOf<double>(rows, begin, end);
  CrossEntropyOf<float>(rows, begin, end);
}
void CrossEntropyGrad(const CrossEntropyRows& rows, int64_t begin, int64_t end) {
  if (IsF64(rows.logits)) return CrossEntropyGradOf<double>(rows, begin, end);
  CrossEntropyGradOf<float>(rows, begin, end);
}

}  // namespace tacc::kernels::simd::TACC_ISA
