#include "kernels/cuda/product.h"

#include "absl/strings/str_cat.h"

namespace tacc::kernels::cuda {
namespace {

// An extent, and how far apart what it counts begins where that is not `dense`.
std::string Extent(int64_t extent, int64_t stride, int64_t dense) {
  return extent == 1 || stride == dense ? absl::StrCat(extent) : absl::StrCat(extent, ":", stride);
}

std::string Matrix(const EinsumView& view, int64_t batch, int64_t rows, int64_t columns) {
  const bool lies_by_rows = view.column_stride == 1 || columns == 1;
  const int64_t outer = lies_by_rows ? rows : columns, inner = lies_by_rows ? columns : rows;
  const int64_t stride = lies_by_rows ? view.row_stride : view.column_stride;
  return absl::StrCat("[", batch == 1 ? "" : Extent(batch, view.batch_stride, outer * inner) + ",",
                      Extent(outer, stride, inner), ",", inner, lies_by_rows ? "]" : "]^T");
}

}  // namespace

std::string InWords(const MatrixProduct& p) {
  using Summand = MatrixProduct::Summand;
  std::string text =
      absl::StrCat(Name(p.operands), " ", Matrix(p.left, p.batch, p.m, p.k), " x ", Matrix(p.right, p.batch, p.k, p.n));
  if (p.result != p.operands) absl::StrAppend(&text, " in ", Name(p.result));
  const EinsumView dense{{}, p.m * p.n, p.n, 1};
  if (const std::string out = Matrix(p.out, p.batch, p.m, p.n); out != Matrix(dense, p.batch, p.m, p.n))
    absl::StrAppend(&text, " to ", out);
  if (p.summand != Summand::kNone) absl::StrAppend(&text, p.summand == Summand::kBias ? " + bias" : " + y");
  return text;
}

}  // namespace tacc::kernels::cuda
