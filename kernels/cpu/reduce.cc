// ReduceSum and ReduceMax of shape.h.
#include "kernels/contract/reduce.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

enum class Kind { kSum, kMax };

constexpr int64_t kColumns = 256;    // results accumulated side by side
constexpr int64_t kGrain = 16384;    // elements read by a thread at least
constexpr int64_t kMaxBlocks = 256;  // of a reduction to one element

// Dims of x with neighbours of the same kind merged; extents of 1 are dropped.
struct Plan {
  Dims kept, kept_strides, reduced, reduced_strides;
  bool inner_kept = false;  // the last merged dim
};

Plan MakePlan(const TensorView& x, const Dims& dims) {
  int64_t extents[Dims::kMaxRank], strides[Dims::kMaxRank];
  bool is_reduced[Dims::kMaxRank];
  int rank = 0;
  const Strides dense = DenseStrides(x.dims);
  for (int i = 0; i < x.dims.rank(); ++i) {
    if (x.dims[i] == 1) continue;
    const bool reduced = std::find(dims.begin(), dims.end(), i) != dims.end();
    if (rank > 0 && is_reduced[rank - 1] == reduced) {
      extents[rank - 1] *= x.dims[i];
      strides[rank - 1] = dense[i];
      continue;
    }
    extents[rank] = x.dims[i];
    strides[rank] = dense[i];
    is_reduced[rank] = reduced;
    ++rank;
  }
  Plan plan;
  for (int i = 0; i < rank; ++i) {
    (is_reduced[i] ? plan.reduced : plan.kept).push_back(extents[i]);
    (is_reduced[i] ? plan.reduced_strides : plan.kept_strides).push_back(strides[i]);
  }
  plan.inner_kept = rank > 0 && !is_reduced[rank - 1];
  return plan;
}

int64_t Offset(const Dims& dims, const Strides& strides, int rank, int64_t index) {
  int64_t offset = 0;
  for (int i = rank - 1; i >= 0; --i) {
    offset += index % dims[i] * strides[i];
    index /= dims[i];
  }
  return offset;
}

void Store(double value, const TensorView& y, int64_t i) {
  simd::BestLoops().unary(UnaryOp::kCast, 0, 0, {&value, DType::kF64}, {y.as<char>() + i * SizeOf(y.dtype), y.dtype}, 0,
                          1);
}

// The last merged dim is kept: columns of results accumulate over all reduced positions, in order.
void ReduceColumns(Kind kind, const Plan& plan, const TensorView& x, const TensorView& y) {
  const simd::Loops& loops = simd::BestLoops();
  const int outer_rank = plan.kept.rank() - 1;
  const int64_t n = plan.kept.back(), num_blocks = (n + kColumns - 1) / kColumns;
  const int64_t outer = plan.kept.Product(0, outer_rank), reduced = plan.reduced.Product();
  ParallelFor(outer * num_blocks, 1 + kGrain / (reduced * std::min(n, kColumns) + 1), [&](int64_t begin, int64_t end) {
    double acc[kColumns];
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / num_blocks, column = item % num_blocks * kColumns;
      const int64_t width = std::min(kColumns, n - column);
      const int64_t base = Offset(plan.kept, plan.kept_strides, outer_rank, row) + column;
      std::fill(acc, acc + width, kind == Kind::kSum ? 0.0 : -std::numeric_limits<double>::infinity());
      for (int64_t r = 0; r < reduced; ++r) {
        const int64_t offset = base + Offset(plan.reduced, plan.reduced_strides, plan.reduced.rank(), r);
        (kind == Kind::kSum ? loops.accumulate_f64 : loops.accumulate_max)(acc, In(x), offset, width);
      }
      loops.unary(UnaryOp::kCast, 0, 0, {acc, DType::kF64},
                  {y.as<char>() + (row * n + column) * SizeOf(y.dtype), y.dtype}, 0, width);
    }
  });
}

// The last merged dim is reduced: each result is the reduction of dense runs.
void ReduceRuns(Kind kind, const Plan& plan, const TensorView& x, const TensorView& y) {
  const simd::Loops& loops = simd::BestLoops();
  const auto combine = [&](double a, double b) {
    if (kind == Kind::kSum) return a + b;
    return a != a || a > b ? a : b;
  };
  const auto reduce = [&](int64_t begin, int64_t end) {
    return (kind == Kind::kSum ? loops.sum : loops.max)(In(x), begin, end);
  };
  const double identity = kind == Kind::kSum ? 0.0 : -std::numeric_limits<double>::infinity();
  const int outer_rank = plan.reduced.rank() - 1;
  const int64_t n = plan.reduced.rank() > 0 ? plan.reduced.back() : 1;
  const int64_t outer = plan.reduced.rank() > 0 ? plan.reduced.Product(0, outer_rank) : 1;
  const int64_t num_results = plan.kept.Product();
  if (num_results == 1 && outer == 1) {
    double partial[kMaxBlocks];
    const int64_t block = std::max(kGrain, (n + kMaxBlocks - 1) / kMaxBlocks), num_blocks = (n + block - 1) / block;
    ParallelFor(num_blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) partial[i] = reduce(i * block, std::min(n, (i + 1) * block));
    });
    double total = identity;
    for (int64_t i = 0; i < num_blocks; ++i) total = combine(total, partial[i]);
    return Store(total, y, 0);
  }
  ParallelFor(num_results, 1 + kGrain / (n * outer + 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t base = Offset(plan.kept, plan.kept_strides, plan.kept.rank(), i);
      double total = identity;
      for (int64_t r = 0; r < outer; ++r) {
        const int64_t offset = base + Offset(plan.reduced, plan.reduced_strides, outer_rank, r);
        total = combine(total, reduce(offset, offset + n));
      }
      Store(total, y, i);
    }
  });
}

void Reduce(Kind kind, const TensorView& x, const Dims& dims, const TensorView& y) {
  int64_t reduced = 1;
  for (int64_t dim : dims) reduced *= x.dims[static_cast<int>(dim)];
  TACC_KERNEL_CHECK(reduced == 0 || y.size() * reduced == x.size());
  if (y.size() == 0) return;
  if (x.size() == 0) {
    for (int64_t i = 0; i < y.size(); ++i) {
      Store(kind == Kind::kSum ? 0.0 : -std::numeric_limits<double>::infinity(), y, i);
    }
    return;
  }
  const Plan plan = MakePlan(x, dims);
  if (plan.inner_kept) return ReduceColumns(kind, plan, x, y);
  ReduceRuns(kind, plan, x, y);
}

void ReduceSum(const TensorView& x, const Dims& dims, const TensorView& y) { Reduce(Kind::kSum, x, dims, y); }
void ReduceMax(const TensorView& x, const Dims& dims, const TensorView& y) { Reduce(Kind::kMax, x, dims, y); }

// Rows along a dim: `inner` neighbours of each element lie between it and the next of its row.
template <typename T>
void ScatterAddRows(const TensorView& x, const TensorView& ids, int64_t inner, int64_t from, int64_t to,
                    const TensorView& y) {
  const int64_t rows = y.size() / to;
  ParallelFor(rows, 1 + 16384 / (from + to), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t outer = row / inner, offset = row % inner;
      const T* source = x.as<T>() + outer * from * inner + offset;
      const int64_t* places = ids.as<int64_t>() + outer * from * inner + offset;
      T* target = y.as<T>() + outer * to * inner + offset;
      for (int64_t j = 0; j < to; ++j) target[j * inner] = 0;
      for (int64_t i = 0; i < from; ++i) {
        const int64_t place = places[i * inner];
        if (place >= 0 && place < to) target[place * inner] += source[i * inner];
      }
    }
  });
}

void ScatterAdd(const TensorView& x, const TensorView& ids, int dim, const TensorView& y) {
  TACC_KERNEL_CHECK(x.dtype == y.dtype && ids.dtype == DType::kI64 && ids.dims == x.dims);
  if (y.size() == 0) return;
  const int64_t inner = x.dims.Product(dim + 1, x.dims.rank());
  if (y.dtype == DType::kF64) return ScatterAddRows<double>(x, ids, inner, x.dims[dim], y.dims[dim], y);
  TACC_KERNEL_CHECK(y.dtype == DType::kF32);
  ScatterAddRows<float>(x, ids, inner, x.dims[dim], y.dims[dim], y);
}

}  // namespace

const ReduceKernels kReduce = {
    .ReduceSum = ReduceSum,
    .ReduceMax = ReduceMax,
    .ScatterAdd = ScatterAdd,
};

}  // namespace tacc::kernels::cpu
