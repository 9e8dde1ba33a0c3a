#include "kernels/contract/pointwise.h"

#include <cstring>
#include <vector>

#include "kernels/contract/sum_squares.h"
#include "kernels/contract/unary.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

// Elements a thread works on at least: about 10 us of memory traffic, a few times the cost of waking a thread.
constexpr int64_t kGrain = 16384;

// Sums are cut into at most this many blocks, whatever the number of threads.
constexpr int64_t kMaxSumBlocks = 256;

// Sums f(begin, end) over [0, n) in fixed blocks.
template <typename F>
double BlockedSum(int64_t n, int64_t min_block, const F& f) {
  double partial[kMaxSumBlocks];
  int64_t block = (n + kMaxSumBlocks - 1) / kMaxSumBlocks;
  if (block < min_block) block = min_block;
  const int64_t num_blocks = (n + block - 1) / block;
  ParallelFor(num_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i * block;
      partial[i] = f(first, first + block < n ? first + block : n);
    }
  });
  double total = 0;
  for (int64_t i = 0; i < num_blocks; ++i) total += partial[i];
  return total;
}

// A clamp's bounds as x's dtype has them: the clamped values of a narrow x lie on the rounded bounds, and belong
// inside.
UnaryParameters RoundedBounds(UnaryParameters bounds, DType dtype) {
  if (dtype != DType::kBF16 && dtype != DType::kF16) return bounds;
  float wide[2] = {static_cast<float>(bounds.p0), static_cast<float>(bounds.p1)};
  uint16_t narrow[2];
  const TensorView wide_view{wide, DType::kF32, {2}}, narrow_view{narrow, dtype, {2}};
  const simd::Loops& loops = simd::BestLoops();
  loops.unary(UnaryOp::kCast, 0, 0, In(wide_view), Out(narrow_view), 0, 2);
  loops.unary(UnaryOp::kCast, 0, 0, In(narrow_view), Out(wide_view), 0, 2);
  return {.p0 = wide[0], .p1 = wide[1]};
}

double SumSquaresOf(const TensorView& x, const Dims& bounds) {
  TACC_KERNEL_CHECK(bounds.rank() == x.dims.rank());
  const simd::Loops& loops = simd::BestLoops();
  // A run is what lies densely inside the bounds: the dims from the last one that is cut.
  int cut = bounds.rank() - 1;
  while (cut > 0 && bounds[cut] == x.dims[cut]) --cut;
  if (cut <= 0) {
    const int64_t n = bounds.Product();
    return BlockedSum(n, kGrain, [&](int64_t begin, int64_t end) { return loops.sum_squares(In(x), begin, end); });
  }
  const int64_t run = bounds.Product(cut, bounds.rank()), stride = x.dims.Product(cut, bounds.rank());
  const int64_t num_runs = bounds.Product(0, cut);
  return BlockedSum(num_runs, kGrain / (run + 1) + 1, [&](int64_t begin, int64_t end) {
    double sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      int64_t index = i, row = 0, row_stride = 1;
      for (int d = cut - 1; d >= 0; --d) {
        row += index % bounds[d] * row_stride;
        index /= bounds[d];
        row_stride *= x.dims[d];
      }
      sum += loops.sum_squares(In(x), row * stride, row * stride + run);
    }
    return sum;
  });
}

void Unary(UnaryOp op, const TensorView& x, const TensorView& y, UnaryParameters parameters) {
  const int64_t n = x.size();
  TACC_KERNEL_CHECK(y.size() == n);
  const simd::Loops& loops = simd::BestLoops();
  ParallelFor(n, kGrain, [&](int64_t begin, int64_t end) {
    loops.unary(op, parameters.p0, parameters.p1, In(x), Out(y), begin, end);
  });
}

void UnaryGrad(UnaryGradOp op, const TensorView& x, const TensorView& dy, const TensorView& dx,
               UnaryParameters parameters) {
  const int64_t n = x.size();
  TACC_KERNEL_CHECK(dy.size() == n && dx.size() == n);
  if (op == UnaryGradOp::kClamp) parameters = RoundedBounds(parameters, x.dtype);
  const simd::Loops& loops = simd::BestLoops();
  ParallelFor(n, kGrain, [&](int64_t begin, int64_t end) {
    loops.unary_grad(op, parameters.p0, parameters.p1, In(x), In(dy), Out(dx), begin, end);
  });
}

void Binary(BinaryOp op, const TensorView& a, const TensorView& b, const TensorView& y) {
  const int64_t n = a.size(), period = b.size();
  TACC_KERNEL_CHECK(y.size() == n);
  if (n == 0) return;
  TACC_KERNEL_CHECK(period > 0 && n % period == 0);
  const simd::Loops& loops = simd::BestLoops();
  ParallelFor(n, kGrain,
              [&](int64_t begin, int64_t end) { loops.binary(op, In(a), In(b), period, Out(y), begin, end); });
}

void Swiglu(const TensorView& gate, const TensorView& up, const TensorView& y) {
  const int64_t n = gate.size();
  TACC_KERNEL_CHECK(up.size() == n && y.size() == n);
  const simd::Loops& loops = simd::BestLoops();
  ParallelFor(n, kGrain, [&](int64_t begin, int64_t end) { loops.swiglu(In(gate), In(up), Out(y), begin, end); });
}

void SwigluGrad(const TensorView& gate, const TensorView& up, const TensorView& dy, const TensorView& dgate,
                const TensorView& dup) {
  const int64_t n = gate.size();
  TACC_KERNEL_CHECK(up.size() == n && dy.size() == n && dgate.size() == n && dup.size() == n);
  const simd::Loops& loops = simd::BestLoops();
  ParallelFor(n, kGrain, [&](int64_t begin, int64_t end) {
    loops.swiglu_grad(In(gate), In(up), In(dy), Out(dgate), Out(dup), begin, end);
  });
}

// Elements [begin, begin + n) of a tensor.
TensorView Part(const TensorView& x, int64_t begin, int64_t n) {
  return {x.as<char>() + begin * SizeOf(x.dtype), x.dtype, {n}};
}

// Calls f(gate, width, n, half) for pieces of rows: the n gates from element `gate` of x on, whose ups lie `width`
// further on, and the n elements of `half` from element `half` on.
template <typename F>
void ForGates(const TensorView& x, const TensorView& half, F f) {
  TACC_KERNEL_CHECK(x.row_length() == 2 * half.row_length() && x.num_rows() == half.num_rows());
  const int64_t width = half.row_length();
  ParallelFor(half.size(), kGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t n = std::min(end - begin, width - begin % width);
      f(begin + begin / width * width, width, n, begin);
      begin += n;
    }
  });
}

void SwigluJoined(const TensorView& x, const TensorView& y) {
  const simd::Loops& loops = simd::BestLoops();
  ForGates(x, y, [&](int64_t gate, int64_t width, int64_t n, int64_t half) {
    loops.swiglu(In(Part(x, gate, n)), In(Part(x, gate + width, n)), Out(Part(y, half, n)), 0, n);
  });
}

void SwigluJoinedGrad(const TensorView& x, const TensorView& dy, const TensorView& dx) {
  TACC_KERNEL_CHECK(dx.dims == x.dims);
  const simd::Loops& loops = simd::BestLoops();
  ForGates(x, dy, [&](int64_t gate, int64_t width, int64_t n, int64_t half) {
    loops.swiglu_grad(In(Part(x, gate, n)), In(Part(x, gate + width, n)), In(Part(dy, half, n)), Out(Part(dx, gate, n)),
                      Out(Part(dx, gate + width, n)), 0, n);
  });
}

void Select(const TensorView& cond, const TensorView& a, const TensorView& b, const TensorView& y) {
  TACC_KERNEL_CHECK(cond.size() == 1 && a.dtype == b.dtype && a.dtype == y.dtype);
  TACC_KERNEL_CHECK(a.size() == y.size() && b.size() == y.size());
  const TensorView& chosen = ReadScalar(cond) != 0 ? a : b;
  CopyBytes(chosen.data, y.data, y.bytes());
}

void IsFinite(const TensorView& x, const TensorView& y) {
  const simd::Loops& loops = simd::BestLoops();
  const double bad = BlockedSum(
      x.size(), kGrain, [&](int64_t begin, int64_t end) { return loops.is_finite(In(x), begin, end) ? 0.0 : 1.0; });
  WriteScalar(bad == 0 ? 1.0 : 0.0, y);
}

void SumSquares(const std::vector<BoundedTensor>& xs, const TensorView& y) {
  double total = 0;
  for (const auto& [x, bounds] : xs) total += SumSquaresOf(x, bounds);
  WriteScalar(total, y);
}

void Fill(double value, const TensorView& y) {
  const int64_t size = SizeOf(y.dtype);
  char element[8];
  WriteScalar(value, TensorView{element, y.dtype, {}});
  bool same_bytes = true;
  for (int64_t i = 1; i < size; ++i) same_bytes = same_bytes && element[i] == element[0];
  ParallelFor(y.size(), kGrain, [&](int64_t begin, int64_t end) {
    char* data = y.as<char>() + begin * size;
    if (same_bytes) {
      std::memset(data, element[0], (end - begin) * size);
      return;
    }
    for (int64_t i = begin; i < end; ++i, data += size) std::memcpy(data, element, size);
  });
}

void Iota(int dim, int64_t first, const TensorView& y) {
  TACC_KERNEL_CHECK(dim >= 0 && dim < y.dims.rank());
  const int64_t inner = y.dims.Product(dim + 1, y.dims.rank()), extent = y.dims[dim], n = y.size();
  const int64_t size = SizeOf(y.dtype);
  for (int64_t i = 0; i < n; ++i) {
    WriteScalar(static_cast<double>(first + i / inner % extent), TensorView{y.as<char>() + i * size, y.dtype, {}});
  }
}

}  // namespace

const UnaryKernels kUnary = {
    .Unary = Unary,
    .UnaryGrad = UnaryGrad,
};

const PointwiseKernels kPointwise = {
    .Binary = Binary,
    .Swiglu = Swiglu,
    .SwigluGrad = SwigluGrad,
    .SwigluJoined = SwigluJoined,
    .SwigluJoinedGrad = SwigluJoinedGrad,
    .Select = Select,
    .IsFinite = IsFinite,
    .Fill = Fill,
    .Iota = Iota,
};

const SumSquaresKernels kSumSquares = {
    .SumSquares = SumSquares,
};

}  // namespace tacc::kernels::cpu
