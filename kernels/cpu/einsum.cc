#include "kernels/cpu/einsum.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm_cpu_dispatch.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/contract/pointwise.h"
#include "kernels/contract/shape.h"
#include "kernels/contract/unary.h"
#include "kernels/cpu/aten.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

DType ComputeType(DType a, DType b) {
  if (a == DType::kF64 || b == DType::kF64) return DType::kF64;
  return a == DType::kBF16 && b == DType::kBF16 && HasBf16Multiply() ? DType::kBF16 : DType::kF32;
}

Dims Permuted(const Dims& dims, const Dims& perm) {
  Dims result;
  for (int64_t i : perm) result.push_back(dims[static_cast<int>(i)]);
  return result;
}

Dims Inverse(const Dims& perm) {
  Dims inverse = perm;
  for (int i = 0; i < perm.rank(); ++i) inverse[static_cast<int>(perm[i])] = i;
  return inverse;
}

int64_t Align(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Scratch bytes of an operand or result: one copy when it is permuted, one when it is converted.
int64_t CopyBytesOf(const EinsumView& view, const Dims& dims, DType type, DType compute) {
  int64_t bytes = 0;
  if (!view.perm.empty()) bytes += Align(dims.Product() * SizeOf(type));
  if (type != compute) bytes += Align(dims.Product() * SizeOf(compute));
  return bytes;
}

// y = x in each place of the dims that x lacks; x has the last dims of y, and may be y.
void Repeat(const TensorView& x, const TensorView& y) {
  if (x.dims == y.dims) return CopyBytes(x.data, y.data, y.bytes());
  Dims last;
  for (int i = y.dims.rank() - x.dims.rank(); i < y.dims.rank(); ++i) last.push_back(i);
  kShape.Broadcast(x, last, y);
}

// The operand as the product wants it, in scratch memory where it must be permuted or converted.
const void* Arrange(const EinsumView& view, const TensorView& x, DType compute, char** scratch) {
  TensorView current = x;
  if (!view.perm.empty()) {
    const TensorView permuted{*scratch, x.dtype, Permuted(x.dims, view.perm)};
    *scratch += Align(permuted.bytes());
    kShape.Transpose(x, view.perm, permuted);
    current = permuted;
  }
  if (x.dtype != compute) {
    const TensorView converted{*scratch, compute, current.dims};
    *scratch += Align(converted.bytes());
    kUnary.Unary(UnaryOp::kCast, current, converted, {});
    current = converted;
  }
  return current.data;
}

// The part, whole, at `to`.
TensorView CopyPart(const TensorView& x, const EinsumPart& part, void* to) {
  const TensorView whole{to, x.dtype, x.dims};
  const int64_t run = x.dims.Product(part.dim, x.dims.rank()) * SizeOf(x.dtype), pitch = part.pitch * SizeOf(x.dtype);
  ParallelFor(x.dims.Product(0, part.dim), 1 + 65536 / (run + 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) memcpy(whole.as<char>() + i * run, x.as<char>() + i * pitch, run);
  });
  return whole;
}

at::Tensor Matrix(const void* data, const EinsumView& view, int64_t rows, int64_t columns, int64_t batch_index,
                  DType dtype) {
  char* start = static_cast<char*>(const_cast<void*>(data)) + batch_index * view.batch_stride * SizeOf(dtype);
  return at::from_blob(start, {rows, columns}, {view.row_stride, view.column_stride}, AtenOptions(dtype));
}

at::Tensor Batch(const void* data, const EinsumView& view, int64_t batch, int64_t rows, int64_t columns, DType dtype) {
  return at::from_blob(const_cast<void*>(data), {batch, rows, columns},
                       {view.batch_stride, view.row_stride, view.column_stride}, AtenOptions(dtype));
}

}  // namespace

bool HasBf16Multiply() { return __builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512bf16"); }

absl::StatusOr<CpuEinsum> CpuEinsum::Prepare(const std::string& spec, const TensorView& a, const TensorView& b,
                                             const TensorView& y, const EinsumPart& part) {
  absl::StatusOr<EinsumPlan> plan = PlanEinsum(spec, a.dims, b.dims);
  if (!plan.ok()) return plan.status();
  if (!(plan->result_dims == y.dims)) {
    return absl::InvalidArgumentError(absl::StrCat("einsum \"", spec, "\": the result has other dims than its view"));
  }
  for (DType type : {a.dtype, b.dtype, y.dtype}) {
    if (!IsFloat(type)) return absl::InvalidArgumentError(absl::StrCat("einsum \"", spec, "\" of ", Name(type)));
  }
  CpuEinsum kernel;
  kernel.plan_ = *std::move(plan);
  kernel.part_ = part;
  kernel.a_dims_ = a.dims;
  kernel.b_dims_ = b.dims;
  kernel.a_type_ = a.dtype;
  kernel.b_type_ = b.dtype;
  kernel.y_type_ = y.dtype;
  kernel.compute_ = ComputeType(a.dtype, b.dtype);
  return kernel;
}

void CpuEinsum::Product(const TensorView& a, const TensorView& b, void* result, double beta) const {
  TACC_KERNEL_CHECK(a.dims == a_dims_ && b.dims == b_dims_ && a.dtype == a_type_ && b.dtype == b_type_);
  const Scratch copy(part_.pitch > 0 ? a.bytes() : 0);
  const TensorView whole = part_.pitch > 0 ? CopyPart(a, part_, copy.data()) : a;
  const TensorView& left = plan_.swapped ? b : whole;
  const TensorView& right = plan_.swapped ? whole : b;
  Scratch scratch(CopyBytesOf(plan_.left, left.dims, left.dtype, compute_) +
                  CopyBytesOf(plan_.right, right.dims, right.dtype, compute_));
  char* free = static_cast<char*>(scratch.data());
  const void* left_data = Arrange(plan_.left, left, compute_, &free);
  const void* right_data = Arrange(plan_.right, right, compute_, &free);
  const auto [batch, m, n, k] = std::tuple(plan_.batch, plan_.m, plan_.n, plan_.k);
  if (batch > 1 && plan_.result.batch_stride == m * n && plan_.result.row_stride == n) {
    at::Tensor y = Batch(result, plan_.result, batch, m, n, compute_);
    const at::Tensor l = Batch(left_data, plan_.left, batch, m, k, compute_);
    const at::Tensor r = Batch(right_data, plan_.right, batch, k, n, compute_);
    if (beta == 0) {
      at::cpu::bmm_out(y, l, r);
    } else {
      at::cpu::baddbmm_out(y, y, l, r, beta);
    }
    return;
  }
  for (int64_t i = 0; i < batch; ++i) {
    at::Tensor y = Matrix(result, plan_.result, m, n, i, compute_);
    const at::Tensor l = Matrix(left_data, plan_.left, m, k, i, compute_);
    const at::Tensor r = Matrix(right_data, plan_.right, k, n, i, compute_);
    if (beta == 0) {
      at::cpu::mm_out(y, l, r);
    } else {
      at::cpu::addmm_out(y, y, l, r, beta);
    }
  }
}

void CpuEinsum::Run(const TensorView& a, const TensorView& b, const TensorView& y) const {
  TACC_KERNEL_CHECK(y.dims == plan_.result_dims && y.dtype == y_type_);
  if (y.size() == 0) return;
  if (plan_.k == 0) return kPointwise.Fill(0, y);
  if (ResultIsDirect()) return Product(a, b, y.data, 0);
  Scratch scratch(CopyBytesOf(plan_.result, y.dims, y_type_, compute_));
  char* free = static_cast<char*>(scratch.data());
  const Dims product_dims = plan_.result.perm.empty() ? y.dims : Permuted(y.dims, plan_.result.perm);
  TensorView product{free, compute_, product_dims};
  if (y_type_ == compute_) {
    Product(a, b, product.data, 0);
    return kShape.Transpose(product, Inverse(plan_.result.perm), y);
  }
  free += Align(product.bytes());
  Product(a, b, product.data, 0);
  if (plan_.result.perm.empty()) return kUnary.Unary(UnaryOp::kCast, product, y, {});
  const TensorView converted{free, y_type_, product_dims};
  kUnary.Unary(UnaryOp::kCast, product, converted, {});
  kShape.Transpose(converted, Inverse(plan_.result.perm), y);
}

void CpuEinsum::RunAccumulate(const TensorView& acc, const TensorView& a, const TensorView& b,
                              const TensorView& y) const {
  TACC_KERNEL_CHECK(acc.dtype == y.dtype);
  if (y.size() == 0) return;
  if (plan_.k == 0) return Repeat(acc, y);
  if (ResultIsDirect()) {
    Repeat(acc, y);
    return Product(a, b, y.data, 1);
  }
  if (plan_.result.perm.empty()) {
    // The product in its own dtype, added in the accumulator's.
    Scratch scratch(y.size() * SizeOf(compute_));
    const TensorView product{scratch.data(), compute_, y.dims};
    Product(a, b, product.data, 0);
    return kPointwise.Binary(BinaryOp::kAdd, product, acc, y);
  }
  Scratch scratch(y.bytes());
  const TensorView product{scratch.data(), y_type_, y.dims};
  Run(a, b, product);
  kPointwise.Binary(BinaryOp::kAdd, product, acc, y);
}

namespace {

absl::StatusOr<std::unique_ptr<EinsumKernel>> PrepareEinsum(const std::string& spec, const TensorView& a,
                                                            const TensorView& b, const TensorView& y,
                                                            const EinsumPart& part) {
  absl::StatusOr<CpuEinsum> kernel = CpuEinsum::Prepare(spec, a, b, y, part);
  if (!kernel.ok()) return kernel.status();
  return std::make_unique<CpuEinsum>(*std::move(kernel));
}

}  // namespace

const EinsumKernels kEinsum = {
    .PrepareEinsum = PrepareEinsum,
};

}  // namespace tacc::kernels::cpu
