#include "kernels/contract/adafactor.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>

#include "kernels/contract/unary.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

// Sums are made of so many blocks of runs, each by one thread, whatever the number of threads.
constexpr int64_t kBlocks = 8;

// A part as runs: its elements along the last dim, one behind the other in memory and in the stack.
class Runs {
 public:
  Runs(const TensorView& x, const MatrixPart& part)
      : part_(part), local_(DenseStrides(x.dims)), whole_(DenseStrides(part.logical)) {
    TACC_KERNEL_CHECK(part.bounds.rank() == x.dims.rank() && part.begin.rank() == x.dims.rank());
    TACC_KERNEL_CHECK(part.logical.rank() == x.dims.rank());
    length_ = part.bounds.empty() ? 1 : part.bounds.back();
    count_ = part.bounds.empty() ? 1 : part.bounds.Product(0, part.bounds.rank() - 1);
    if (length_ == 0) count_ = 0;
  }

  int64_t count() const { return count_; }
  int64_t length() const { return length_; }

  // visit(offset, row, column, n) for each piece of the runs [first, limit) that lies in one row: n elements from
  // `offset` of the tensor on, in the stack's rows counted over all matrices.
  template <typename Visit>
  void ForEachPiece(int64_t first, int64_t limit, const Visit& visit) const {
    for (int64_t run = first; run < limit; ++run) {
      int64_t offset = 0, at = 0, rest = run;
      const int last = part_.bounds.rank() - 1;
      if (last >= 0) at = part_.begin[last];
      for (int d = last - 1; d >= 0; --d) {
        const int64_t index = rest % part_.bounds[d];
        rest /= part_.bounds[d];
        offset += index * local_[d];
        at += (part_.begin[d] + index) * whole_[d];
      }
      for (int64_t done = 0; done < length_;) {
        const int64_t row = (at + done) / part_.columns, column = (at + done) % part_.columns;
        const int64_t n = std::min(length_ - done, part_.columns - column);
        visit(offset + done, row, column, n);
        done += n;
      }
    }
  }

 private:
  const MatrixPart& part_;
  Strides local_, whole_;
  int64_t count_ = 1, length_ = 1;
};

// f(T()) with the type of a tensor of f32 or f64.
template <typename F>
void WithType(const TensorView& x, const F& f) {
  TACC_KERNEL_CHECK(x.dtype == DType::kF32 || x.dtype == DType::kF64);
  return x.dtype == DType::kF64 ? f(double()) : f(float());
}

// f(T()) with the type of a floating tensor.
template <typename F>
void WithAnyType(const TensorView& x, const F& f) {
  if (x.dtype == DType::kBF16) return f(c10::BFloat16());
  if (x.dtype == DType::kF16) return f(c10::Half());
  WithType(x, f);
}

void SquareSums(const TensorView& g, const MatrixPart& part, const TensorView& grad_scale, double epsilon,
                const SecondMoments& sums) {
  const Runs runs(g, part);
  const int64_t rows = sums.row.size(), columns = part.is_factored ? sums.column.size() : 0, all = rows + columns;
  const int64_t blocks = std::min(kBlocks, runs.count());
  const double scale = ReadScalar(grad_scale);
  const Scratch scratch(blocks * all * static_cast<int64_t>(sizeof(double)));
  double* const partial = static_cast<double*>(scratch.data());
  WithType(g, [&](auto zero) {
    using T = decltype(zero);
    const T* x = g.as<T>();
    ParallelFor(blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        double* of_rows = partial + block * all;
        double* of_columns = of_rows + rows;
        std::fill(of_rows, of_rows + all, 0.0);
        runs.ForEachPiece(runs.count() * block / blocks, runs.count() * (block + 1) / blocks,
                          [&](int64_t offset, int64_t row, int64_t column, int64_t n) {
                            double sum = 0;
                            double* to = of_columns + row / part.rows * part.columns + column;
                            for (int64_t j = 0; j < n; ++j) {
                              const double scaled = static_cast<double>(x[offset + j]) * scale;
                              const double square = scaled * scaled + epsilon;
                              sum += square;
                              if (part.is_factored) to[j] += square;
                            }
                            of_rows[row] += sum;
                          });
      }
    });
  });
  WithType(sums.row, [&](auto zero) {
    using T = decltype(zero);
    ParallelFor(all, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double sum = 0;
        for (int64_t block = 0; block < blocks; ++block) sum += partial[block * all + i];
        (i < rows ? sums.row.as<T>()[i] : sums.column.as<T>()[i - rows]) = static_cast<T>(sum);
      }
    });
  });
}

// What a gradient is multiplied by, by row and by column.
class Factors {
 public:
  Factors(const SecondMoments& moments, const MatrixPart& part)
      : scratch_((moments.row.size() + (part.is_factored ? moments.column.size() : 0)) *
                 static_cast<int64_t>(sizeof(double))),
        part_(part),
        num_rows_(moments.row.size()) {
    WithType(moments.row, [&](auto zero) {
      using T = decltype(zero);
      const T* row = moments.row.as<T>();
      const int64_t group = part.is_factored ? part.rows : num_rows_;
      for (int64_t first = 0; first < num_rows_; first += group) {
        double mean = 0;
        for (int64_t i = 0; i < group && part.is_factored; ++i) mean += static_cast<double>(row[first + i]);
        mean = part.is_factored ? mean / static_cast<double>(group) : 1;
        for (int64_t i = 0; i < group; ++i)
          rows()[first + i] = 1 / std::sqrt(static_cast<double>(row[first + i]) / mean);
      }
      for (int64_t j = 0; part.is_factored && j < moments.column.size(); ++j)
        columns()[j] = 1 / std::sqrt(static_cast<double>(moments.column.as<T>()[j]));
    });
  }

  double of_row(int64_t row) const { return rows()[row]; }
  // From a place in a row on.
  const double* of_columns(int64_t row, int64_t column) const {
    return part_.is_factored ? columns() + row / part_.rows * part_.columns + column : nullptr;
  }

 private:
  double* rows() const { return static_cast<double*>(scratch_.data()); }
  double* columns() const { return rows() + num_rows_; }

  Scratch scratch_;
  const MatrixPart& part_;
  int64_t num_rows_;
};

void UpdateSquares(const TensorView& g, const MatrixPart& part, const TensorView& grad_scale,
                   const SecondMoments& moments, const TensorView& y) {
  const Runs runs(g, part);
  const Factors factors(moments, part);
  const double scale = ReadScalar(grad_scale);
  const int64_t blocks = std::min(kBlocks, runs.count());
  double partial[kBlocks] = {};
  WithType(g, [&](auto zero) {
    using T = decltype(zero);
    ParallelFor(blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        runs.ForEachPiece(runs.count() * block / blocks, runs.count() * (block + 1) / blocks,
                          [&](int64_t offset, int64_t row, int64_t column, int64_t n) {
                            const double of_row = factors.of_row(row) * scale;
                            const double* of_column = factors.of_columns(row, column);
                            double sum = 0;
                            for (int64_t j = 0; j < n; ++j) {
                              const double u = static_cast<double>(g.as<T>()[offset + j]) * of_row *
                                               (of_column == nullptr ? 1 : of_column[j]);
                              sum += u * u;
                            }
                            partial[block] += sum;
                          });
      }
    });
  });
  double sum = 0;
  for (double part_sum : partial) sum += part_sum;
  WriteScalar(sum, y);
}

void Update(const TensorView& w, const TensorView& g, const MatrixPart& part, const SecondMoments& moments,
            const AdafactorScalars& scalars, const AdafactorParameters& parameters, const TensorView& new_w,
            const TensorView& copy) {
  TACC_KERNEL_CHECK(w.size() == g.size() && new_w.size() == g.size() && w.dtype == new_w.dtype);
  CopyBytes(w.data, new_w.data, w.bytes());
  if (ReadScalar(scalars.apply) != 0) {
    const Runs runs(g, part);
    const Factors factors(moments, part);
    const double learning_rate = ReadScalar(scalars.learning_rate), scale = ReadScalar(scalars.grad_scale);
    const double rms = std::sqrt(ReadScalar(scalars.squares) / static_cast<double>(part.logical.Product()));
    const double step = learning_rate / std::max(1.0, rms / parameters.clip_threshold);
    const double decay = 1 - learning_rate * parameters.weight_decay;
    WithType(g, [&](auto zero) {
      using T = decltype(zero);
      WithAnyType(new_w, [&](auto weight_zero) {
        using W = decltype(weight_zero);
        ParallelFor(runs.count(), 1 + 8192 / (runs.length() + 1), [&](int64_t begin, int64_t end) {
          runs.ForEachPiece(begin, end, [&](int64_t offset, int64_t row, int64_t column, int64_t n) {
            const double of_row = factors.of_row(row) * scale * step;
            const double* of_column = factors.of_columns(row, column);
            for (int64_t j = 0; j < n; ++j) {
              const double u =
                  static_cast<double>(g.as<T>()[offset + j]) * of_row * (of_column == nullptr ? 1 : of_column[j]);
              W& weight = new_w.as<W>()[offset + j];
              weight = static_cast<W>(static_cast<double>(weight) * decay - u);
            }
          });
        });
      });
    });
  }
  if (copy.data != nullptr) kUnary.Unary(UnaryOp::kCast, new_w, copy, {});
}

}  // namespace

const AdafactorKernels kAdafactor = {
    .SquareSums = SquareSums,
    .UpdateSquares = UpdateSquares,
    .Update = Update,
};

}  // namespace tacc::kernels::cpu
