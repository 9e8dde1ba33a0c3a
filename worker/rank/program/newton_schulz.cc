#include "worker/rank/program/newton_schulz.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "graph/ir/status_macros.h"

namespace tacc::worker {
namespace {

using kernels::BinaryOp;
using kernels::Dims;
using kernels::DType;
using kernels::TensorView;
using kernels::UnaryOp;

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kEpsilon = 1e-7;

int64_t Align(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

absl::StatusOr<NewtonSchulz> NewtonSchulz::Prepare(const kernels::Kernels& kernels, const TensorView& x,
                                                   const TensorView& y, int64_t rows, int64_t columns, int64_t steps) {
  NewtonSchulz made(kernels);
  made.x_ = x;
  made.y_ = y;
  made.rows_ = rows;
  made.columns_ = columns;
  made.steps_ = steps;
  const int64_t side = std::min(rows, columns);
  const TensorView matrix{nullptr, x.dtype, {rows, columns}}, gram{nullptr, x.dtype, {side, side}};
  const bool is_wide = rows <= columns;
  const auto prepare = [&](const char* spec, const TensorView& a, const TensorView& b, const TensorView& product,
                           std::shared_ptr<const kernels::EinsumKernel>* out) -> absl::Status {
    TACC_ASSIGN_OR_RETURN(*out, kernels.einsum.PrepareEinsum(spec, a, b, product, {}));
    return absl::OkStatus();
  };
  TACC_RETURN_IF_ERROR(prepare(is_wide ? "ik,jk->ij" : "ki,kj->ij", matrix, matrix, gram, &made.gram_));
  TACC_RETURN_IF_ERROR(prepare("ij,jk->ik", gram, gram, gram, &made.square_));
  TACC_RETURN_IF_ERROR(is_wide ? prepare("ij,jk->ik", gram, matrix, matrix, &made.apply_)
                               : prepare("ik,kj->ij", matrix, gram, matrix, &made.apply_));
  return made;
}

void NewtonSchulz::Run() const {
  const int64_t elements = rows_ * columns_, side = std::min(rows_, columns_), width = kernels::SizeOf(x_.dtype);
  if (elements == 0) return;
  const kernels::ScratchMemory scratch =
      kernels_->TakeScratch(Align(elements * width) + 2 * Align(side * side * width) + 64);
  for (int64_t i = 0; i < x_.size() / elements; ++i) {
    const auto at = [&](const TensorView& all) {
      return TensorView{all.as<char>() + i * elements * width, all.dtype, {rows_, columns_}};
    };
    RunOne(at(x_), at(y_), static_cast<char*>(scratch.get()));
  }
}

void NewtonSchulz::RunOne(const TensorView& from, const TensorView& to, char* scratch) const {
  const auto take = [&](DType dtype, const Dims& dims) {
    const TensorView view{scratch, dtype, dims};
    scratch += Align(view.bytes());
    return view;
  };
  const int64_t side = std::min(rows_, columns_);
  const bool is_wide = rows_ <= columns_;
  const TensorView other = take(from.dtype, from.dims), gram = take(from.dtype, {side, side}),
                   square = take(from.dtype, {side, side});
  const TensorView norm = take(from.dtype == DType::kF64 ? DType::kF64 : DType::kF32, {});
  const auto& [unary, binary] = std::tie(kernels_->unary.Unary, kernels_->pointwise.Binary);
  kernels_->sum_squares.SumSquares({{from, from.dims}}, norm);
  unary(UnaryOp::kSqrt, norm, norm, {});
  unary(UnaryOp::kClamp, norm, norm, {kEpsilon, std::numeric_limits<double>::infinity()});
  unary(UnaryOp::kReciprocal, norm, norm, {});
  // Each step takes one to the other; the last one makes the result.
  TensorView x = steps_ % 2 == 0 ? to : other, next = steps_ % 2 == 0 ? other : to;
  binary(BinaryOp::kMul, from, norm, x);
  for (int64_t step = 0; step < steps_; ++step) {
    gram_->Run(x, x, gram);
    square_->Run(gram, gram, square);
    unary(UnaryOp::kScale, gram, gram, {kB, 0});
    unary(UnaryOp::kScale, square, square, {kC, 0});
    binary(BinaryOp::kAdd, gram, square, gram);
    unary(UnaryOp::kScale, x, next, {kA, 0});
    if (is_wide) {
      apply_->RunAccumulate(next, gram, x, next);
    } else {
      apply_->RunAccumulate(next, x, gram, next);
    }
    std::swap(x, next);
  }
}

}  // namespace tacc::worker
