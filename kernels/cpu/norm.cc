#include "kernels/contract/norm.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

constexpr int64_t kGrain = 16384;         // elements a thread works on at least
constexpr int64_t kAddedElements = 4096;  // and of a sum that is read again, about as many at a time

// Gradients of weights are summed over this many groups of rows, then over the groups in order: results do not depend
// on the number of threads, and up to 64 of them find work.
constexpr int64_t kMaxGroups = 64;
constexpr int64_t kMinGroupRows = 16;

int64_t NumGroups(int64_t num_rows) {
  return std::clamp<int64_t>((num_rows + kMinGroupRows - 1) / kMinGroupRows, 1, kMaxGroups);
}

int64_t RowGrain(int64_t n) { return 1 + kGrain / (n + 1); }

void CheckRows(const TensorView& x, const TensorView& rows) { TACC_KERNEL_CHECK(rows.size() == x.num_rows()); }

// acc and copy may be absent.
void CheckGradient(const TensorView& acc, const TensorView& x, const TensorView& out, const TensorView& copy) {
  TACC_KERNEL_CHECK(out.size() == x.size() && (copy.data == nullptr || copy.size() == x.size()));
  TACC_KERNEL_CHECK(acc.data == nullptr || acc.size() == x.size());
}

simd::NormRows RmsNormRows(const TensorView& x, const TensorView& w, double eps, const TensorView& y,
                           const TensorView& rstd) {
  TACC_KERNEL_CHECK(y.size() == x.size() && w.size() == x.row_length());
  CheckRows(x, rstd);
  return {.n = x.row_length(), .eps = eps, .x = In(x), .w = In(w), .y = Out(y), .rstd = Out(rstd)};
}

simd::NormRows LayerNormRows(const TensorView& x, const TensorView& w, const TensorView& b, double eps,
                             const TensorView& y, const TensorView& mean, const TensorView& rstd) {
  TACC_KERNEL_CHECK(y.size() == x.size());
  TACC_KERNEL_CHECK(w.data == nullptr || w.size() == x.row_length());
  TACC_KERNEL_CHECK(b.data == nullptr || b.size() == x.row_length());
  CheckRows(x, mean);
  CheckRows(x, rstd);
  return {.n = x.row_length(),
          .eps = eps,
          .x = In(x),
          .w = In(w),
          .b = In(b),
          .y = Out(y),
          .mean = Out(mean),
          .rstd = Out(rstd)};
}

// Runs loop(rows, begin, end) over the rows of x = a + b, a few at a time, which are added up before and then in cache.
template <typename Loop>
void ForRowsOfSum(const TensorView& a, const TensorView& b, const TensorView& sum, const simd::NormRows& rows,
                  Loop loop) {
  TACC_KERNEL_CHECK(a.size() == sum.size() && b.size() == sum.size());
  const int64_t n = rows.n, few = 1 + kAddedElements / (n + 1);
  ParallelFor(sum.num_rows(), RowGrain(n), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row += few) {
      const int64_t limit = std::min(end, row + few);
      simd::BestLoops().binary(BinaryOp::kAdd, In(a), In(b), sum.size(), Out(sum), row * n, limit * n);
      loop(rows, row, limit);
    }
  });
}

// Scratch of the gradients: num_sums (1: dw, 2: dw and db) partial sums in the compute dtype (f32, f64).
int64_t NormGradWorkspaceBytes(int64_t num_rows, int64_t row_length, int num_sums, DType compute) {
  return NumGroups(num_rows) * num_sums * row_length * SizeOf(compute);
}

// Runs loop(rows, begin, end) over groups of rows with partial sums, then adds these up into sums (dw, db).
template <typename Loop>
void GradWithSums(simd::NormGradRows rows, int64_t num_rows, DType compute, const TensorView& dw, const TensorView& db,
                  Loop loop) {
  const int64_t n = rows.n, num_groups = NumGroups(num_rows), element = SizeOf(compute);
  const int num_sums = (dw.data != nullptr) + (db.data != nullptr);
  Scratch scratch(NormGradWorkspaceBytes(num_rows, n, num_sums, compute));
  char* partial = static_cast<char*>(scratch.data());
  ParallelFor(num_groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      simd::NormGradRows part = rows;
      char* sums = partial + group * num_sums * n * element;
      std::memset(sums, 0, num_sums * n * element);
      if (dw.data != nullptr) part.dw = sums;
      if (db.data != nullptr) part.db = sums + (num_sums - 1) * n * element;
      loop(part, num_rows * group / num_groups, num_rows * (group + 1) / num_groups);
    }
  });
  const simd::Loops& loops = simd::BestLoops();
  constexpr int64_t kColumns = 256;
  ParallelFor((n + kColumns - 1) / kColumns, 4, [&](int64_t begin, int64_t end) {
    double acc[kColumns];
    for (int64_t column = begin * kColumns; column < std::min(n, end * kColumns); column += kColumns) {
      const int64_t width = std::min(kColumns, n - column);
      for (int sum = 0; sum < num_sums; ++sum) {
        const TensorView& target = sum == 0 && dw.data != nullptr ? dw : db;
        std::fill(acc, acc + width, 0.0);
        for (int64_t group = 0; group < num_groups; ++group) {
          loops.accumulate_f64(acc, {partial, compute}, (group * num_sums + sum) * n + column, width);
        }
        loops.unary(UnaryOp::kCast, 0, 0, {acc, DType::kF64},
                    {target.as<char>() + column * SizeOf(target.dtype), target.dtype}, 0, width);
      }
    }
  });
}

DType ComputeType(const TensorView& dy, const TensorView& x, const TensorView& w) {
  const bool f64 = dy.dtype == DType::kF64 || x.dtype == DType::kF64 || (w.data != nullptr && w.dtype == DType::kF64);
  return f64 ? DType::kF64 : DType::kF32;
}

void RmsNorm(const TensorView& x, const TensorView& w, double eps, const TensorView& y, const TensorView& rstd) {
  const simd::NormRows rows = RmsNormRows(x, w, eps, y, rstd);
  ParallelFor(x.num_rows(), RowGrain(rows.n),
              [&](int64_t begin, int64_t end) { simd::BestLoops().rms_norm(rows, begin, end); });
}

void AddRmsNorm(const TensorView& a, const TensorView& b, const TensorView& w, double eps, const TensorView& y,
                const TensorView& rstd, const TensorView& sum) {
  ForRowsOfSum(a, b, sum, RmsNormRows(sum, w, eps, y, rstd), simd::BestLoops().rms_norm);
}

void RmsNormGradAccumulate(const TensorView& acc, const TensorView& dy, const TensorView& x, const TensorView& w,
                           const TensorView& rstd, const TensorView& out, const TensorView& dw,
                           const TensorView& copy) {
  TACC_KERNEL_CHECK(dy.size() == x.size() && w.size() == x.row_length() && dw.size() == x.row_length());
  CheckGradient(acc, x, out, copy);
  CheckRows(x, rstd);
  const simd::NormGradRows rows{.n = x.row_length(),
                                .dy = In(dy),
                                .x = In(x),
                                .w = In(w),
                                .rstd = In(rstd),
                                .acc = In(acc),
                                .dx = Out(out),
                                .copy = Out(copy)};
  GradWithSums(rows, x.num_rows(), ComputeType(dy, x, w), dw, TensorView{}, simd::BestLoops().rms_norm_grad);
}

void RmsNormGrad(const TensorView& dy, const TensorView& x, const TensorView& w, const TensorView& rstd,
                 const TensorView& dx, const TensorView& dw, const TensorView& copy) {
  RmsNormGradAccumulate(TensorView{}, dy, x, w, rstd, dx, dw, copy);
}

void LayerNorm(const TensorView& x, const TensorView& w, const TensorView& b, double eps, const TensorView& y,
               const TensorView& mean, const TensorView& rstd) {
  const simd::NormRows rows = LayerNormRows(x, w, b, eps, y, mean, rstd);
  ParallelFor(x.num_rows(), RowGrain(rows.n),
              [&](int64_t begin, int64_t end) { simd::BestLoops().layer_norm(rows, begin, end); });
}

void AddLayerNorm(const TensorView& a, const TensorView& b, const TensorView& w, const TensorView& bias, double eps,
                  const TensorView& y, const TensorView& mean, const TensorView& rstd, const TensorView& sum) {
  ForRowsOfSum(a, b, sum, LayerNormRows(sum, w, bias, eps, y, mean, rstd), simd::BestLoops().layer_norm);
}

void LayerNormGradAccumulate(const TensorView& acc, const TensorView& dy, const TensorView& x, const TensorView& mean,
                             const TensorView& rstd, const TensorView& w, const TensorView& out, const TensorView& dw,
                             const TensorView& db, const TensorView& copy) {
  TACC_KERNEL_CHECK(dy.size() == x.size());
  TACC_KERNEL_CHECK(w.data == nullptr || w.size() == x.row_length());
  TACC_KERNEL_CHECK(dw.data == nullptr || dw.size() == x.row_length());
  TACC_KERNEL_CHECK(db.data == nullptr || db.size() == x.row_length());
  CheckGradient(acc, x, out, copy);
  CheckRows(x, mean);
  CheckRows(x, rstd);
  const simd::NormGradRows rows{.n = x.row_length(),
                                .dy = In(dy),
                                .x = In(x),
                                .w = In(w),
                                .mean = In(mean),
                                .rstd = In(rstd),
                                .acc = In(acc),
                                .dx = Out(out),
                                .copy = Out(copy)};
  if (dw.data == nullptr && db.data == nullptr) {
    ParallelFor(x.num_rows(), RowGrain(rows.n),
                [&](int64_t begin, int64_t end) { simd::BestLoops().layer_norm_grad(rows, begin, end); });
    return;
  }
  GradWithSums(rows, x.num_rows(), ComputeType(dy, x, w), dw, db, simd::BestLoops().layer_norm_grad);
}

void LayerNormGrad(const TensorView& dy, const TensorView& x, const TensorView& mean, const TensorView& rstd,
                   const TensorView& w, const TensorView& dx, const TensorView& dw, const TensorView& db,
                   const TensorView& copy) {
  LayerNormGradAccumulate(TensorView{}, dy, x, mean, rstd, w, dx, dw, db, copy);
}

void L2Normalize(const TensorView& x, double eps, const TensorView& y, const TensorView& rnorm) {
  TACC_KERNEL_CHECK(y.size() == x.size());
  CheckRows(x, rnorm);
  const simd::NormRows rows{.n = x.row_length(), .eps = eps, .x = In(x), .y = Out(y), .rstd = Out(rnorm)};
  ParallelFor(x.num_rows(), RowGrain(rows.n),
              [&](int64_t begin, int64_t end) { simd::BestLoops().l2_normalize(rows, begin, end); });
}

void L2NormalizeGrad(const TensorView& dy, const TensorView& x, const TensorView& rnorm, double eps,
                     const TensorView& dx) {
  TACC_KERNEL_CHECK(dy.size() == x.size() && dx.size() == x.size());
  CheckRows(x, rnorm);
  const simd::NormGradRows rows{
      .n = x.row_length(), .eps = eps, .dy = In(dy), .x = In(x), .rstd = In(rnorm), .dx = Out(dx)};
  ParallelFor(x.num_rows(), RowGrain(rows.n),
              [&](int64_t begin, int64_t end) { simd::BestLoops().l2_normalize_grad(rows, begin, end); });
}

}  // namespace

const NormKernels kNorm = {
    .RmsNorm = RmsNorm,
    .AddRmsNorm = AddRmsNorm,
    .RmsNormGrad = RmsNormGrad,
    .RmsNormGradAccumulate = RmsNormGradAccumulate,
    .LayerNorm = LayerNorm,
    .AddLayerNorm = AddLayerNorm,
    .LayerNormGrad = LayerNormGrad,
    .LayerNormGradAccumulate = LayerNormGradAccumulate,
    .L2Normalize = L2Normalize,
    .L2NormalizeGrad = L2NormalizeGrad,
};

}  // namespace tacc::kernels::cpu
