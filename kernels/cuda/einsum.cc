#include "kernels/cuda/einsum.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>

#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/aten.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/scratch.h"

namespace tacc::kernels::cuda {
namespace {

bool Is16Bit(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

DType ComputeType(DType a, DType b) {
  if (a == DType::kF64 || b == DType::kF64) return DType::kF64;
  return a == b && Is16Bit(a) ? a : DType::kF32;
}

int64_t Align(int64_t bytes) { return (bytes + 511) / 512 * 512; }

Dims Permuted(const Dims& dims, const Dims& perm) {
  Dims result;
  for (int64_t i : perm) result.push_back(dims[static_cast<int>(i)]);
  return result;
}

c10::IntArrayRef Ref(const Dims& dims) { return {dims.begin(), static_cast<size_t>(dims.rank())}; }

at::Tensor Whole(const TensorView& x) { return TensorIn(x.data, Ref(x.dims), x.dtype); }

// What must lie in scratch memory: of an operand, or of the result.
bool IsArranged(const EinsumView& view, DType type, DType wanted) { return view.perm.empty() && type == wanted; }

int64_t CopyBytesOf(const EinsumView& view, const Dims& dims, DType type, DType wanted) {
  return IsArranged(view, type, wanted) ? 0 : Align(dims.Product() * SizeOf(wanted));
}

// Strides of a tensor [dims] that is a part of a larger one.
Dims StridesOf(const Dims& dims, const EinsumPart& part) {
  Dims strides = dims;
  int64_t stride = 1;
  for (int i = dims.rank() - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= dims[i];
    if (part.pitch > 0 && i == part.dim) stride = part.pitch;
  }
  return strides;
}

// The operand as the product wants it, at *scratch (which moves on) unless it lies so.
void* Arrange(const EinsumView& view, const TensorView& x, const Dims& strides, DType compute, char** scratch) {
  if (IsArranged(view, x.dtype, compute)) return x.data;
  const Dims dims = view.perm.empty() ? x.dims : Permuted(x.dims, view.perm);
  const TensorView arranged{*scratch, compute, dims};
  *scratch += Align(arranged.bytes());
  const at::Tensor from = TensorIn(x.data, Ref(x.dims), Ref(strides), x.dtype);
  Whole(arranged).copy_(view.perm.empty() ? from : from.permute(Ref(view.perm)));
  return arranged.data;
}

// The result of the product, which lies permuted, with the graph's dims.
at::Tensor InGraphOrder(const EinsumView& view, void* data, const Dims& dims, DType dtype) {
  if (view.perm.empty()) return Whole({data, dtype, dims});
  Dims inverse = view.perm;
  for (int i = 0; i < view.perm.rank(); ++i) inverse[static_cast<int>(view.perm[i])] = i;
  return Whole({data, dtype, Permuted(dims, view.perm)}).permute(Ref(inverse));
}

// As a [rows, columns] matrix, or where batch > 1 a [batch, rows, columns] stack of them.
at::Tensor Matrices(void* data, const EinsumView& view, int64_t batch, int64_t rows, int64_t columns, DType dtype) {
  if (batch == 1) return TensorIn(data, {rows, columns}, {view.row_stride, view.column_stride}, dtype);
  return TensorIn(data, {batch, rows, columns}, {view.batch_stride, view.row_stride, view.column_stride}, dtype);
}

// y = l r + beta y, where y has the operands' dtype, or f32 where they are narrower.
void Multiply(const at::Tensor& l, const at::Tensor& r, double beta, at::Tensor y) {
  const bool batched = y.dim() == 3;
  if (y.scalar_type() == l.scalar_type()) {
    if (beta == 0) {
      batched ? at::bmm_out(y, l, r) : at::mm_out(y, l, r);
    } else {
      batched ? at::baddbmm_out(y, y, l, r, beta) : at::addmm_out(y, y, l, r, beta);
    }
    return;
  }
  const at::ScalarType wide = y.scalar_type();
  // LibTorch's CPU products have no wider result: on the host the operands are converted.
  if constexpr (kDevice == c10::DeviceType::CPU) return Multiply(l.to(wide), r.to(wide), beta, y);
  if (beta == 0) {
    batched ? at::bmm_out(y, l, r, wide) : at::mm_out(y, l, r, wide);
  } else {
    batched ? at::baddbmm_out(y, y, l, r, wide, beta) : at::addmm_out(y, y, l, r, wide, beta);
  }
}

}  // namespace

absl::StatusOr<CudaEinsum> CudaEinsum::Prepare(const std::string& spec, const TensorView& a, const TensorView& b,
                                               const TensorView& y, const EinsumPart& part) {
  absl::StatusOr<EinsumPlan> plan = PlanEinsum(spec, a.dims, b.dims);
  if (!plan.ok()) return plan.status();
  if (!(plan->result_dims == y.dims)) {
    return absl::InvalidArgumentError(absl::StrCat("einsum \"", spec, "\": the result has other dims than its view"));
  }
  for (DType type : {a.dtype, b.dtype, y.dtype}) {
    if (!IsFloat(type)) return absl::InvalidArgumentError(absl::StrCat("einsum \"", spec, "\" of ", Name(type)));
  }
  CudaEinsum kernel;
  kernel.plan_ = *std::move(plan);
  kernel.a_dims_ = a.dims;
  kernel.b_dims_ = b.dims;
  kernel.a_type_ = a.dtype;
  kernel.b_type_ = b.dtype;
  kernel.y_type_ = y.dtype;
  kernel.compute_ = ComputeType(a.dtype, b.dtype);
  kernel.a_strides_ = StridesOf(a.dims, part);
  EinsumView& a_view = kernel.plan_.swapped ? kernel.plan_.right : kernel.plan_.left;
  if (part.pitch > 0 && IsArranged(a_view, a.dtype, kernel.compute_)) a_view = ViewOfPart(a_view, a.dims, part);
  kernel.product_ = Is16Bit(kernel.compute_) && y.dtype != kernel.compute_ ? DType::kF32 : kernel.compute_;
  return kernel;
}

int64_t CudaEinsum::WorkspaceBytes() const {
  const auto [left, left_type] = plan_.swapped ? std::pair(b_dims_, b_type_) : std::pair(a_dims_, a_type_);
  const auto [right, right_type] = plan_.swapped ? std::pair(a_dims_, a_type_) : std::pair(b_dims_, b_type_);
  return CopyBytesOf(plan_.left, left, left_type, compute_) + CopyBytesOf(plan_.right, right, right_type, compute_) +
         CopyBytesOf(plan_.result, plan_.result_dims, y_type_, product_);
}

bool CudaEinsum::FitsEpilogue(const TensorView& acc) const {
  return acc.dims.rank() < plan_.result_dims.rank() && acc.size() == plan_.n && ResultIsDirect() &&
         product_ == compute_ && plan_.batch == 1 && plan_.result.row_stride == plan_.n &&
         plan_.result.column_stride == 1;
}

MatrixProduct CudaEinsum::product(const TensorView* acc) const {
  using Summand = MatrixProduct::Summand;
  const Summand summand = acc == nullptr       ? Summand::kNone
                          : FitsEpilogue(*acc) ? Summand::kBias
                          : ResultIsDirect()   ? Summand::kResult
                                               : Summand::kNone;
  return {compute_, product_, plan_.batch, plan_.m, plan_.n, plan_.k, plan_.left, plan_.right, plan_.result, summand};
}

void CudaEinsum::Product(const TensorView& a, const TensorView& b, void* summand, void* result) const {
  TACC_KERNEL_CHECK(a.dims == a_dims_ && b.dims == b_dims_ && a.dtype == a_type_ && b.dtype == b_type_);
  const TensorView& left = plan_.swapped ? b : a;
  const TensorView& right = plan_.swapped ? a : b;
  Scratch scratch(CopyBytesOf(plan_.left, left.dims, left.dtype, compute_) +
                  CopyBytesOf(plan_.right, right.dims, right.dtype, compute_));
  char* free = static_cast<char*>(scratch.data());
  const Dims b_strides = StridesOf(b.dims, {});
  void* left_data = Arrange(plan_.left, left, plan_.swapped ? b_strides : a_strides_, compute_, &free);
  void* right_data = Arrange(plan_.right, right, plan_.swapped ? a_strides_ : b_strides, compute_, &free);
  if (fast_ != nullptr && fast_->Run({left_data, right_data, summand, result})) return;
  const at::Tensor l = Matrices(left_data, plan_.left, plan_.batch, plan_.m, plan_.k, compute_);
  const at::Tensor r = Matrices(right_data, plan_.right, plan_.batch, plan_.k, plan_.n, compute_);
  at::Tensor y = Matrices(result, plan_.result, plan_.batch, plan_.m, plan_.n, product_);
  if (summand == nullptr || summand == result) return Multiply(l, r, summand == nullptr ? 0 : 1, y);
  at::addmm_out(y, Whole({summand, compute_, {plan_.n}}), l, r);
}

void CudaEinsum::Run(const TensorView& a, const TensorView& b, const TensorView& y) const {
  TACC_KERNEL_CHECK(y.dims == plan_.result_dims && y.dtype == y_type_);
  if (y.size() == 0) return;
  if (plan_.k == 0) {
    Whole(y).zero_();
    return;
  }
  if (ResultIsDirect()) return Product(a, b, nullptr, y.data);
  Scratch scratch(CopyBytesOf(plan_.result, y.dims, y_type_, product_));
  Product(a, b, nullptr, scratch.data());
  Whole(y).copy_(InGraphOrder(plan_.result, scratch.data(), y.dims, product_));
}

void CudaEinsum::RunAccumulate(const TensorView& acc, const TensorView& a, const TensorView& b,
                               const TensorView& y) const {
  TACC_KERNEL_CHECK(acc.dtype == y.dtype && y.dims == plan_.result_dims && y.dtype == y_type_);
  if (y.size() == 0) return;
  at::Tensor result = Whole(y);
  if (plan_.k > 0 && FitsEpilogue(acc)) return Product(a, b, acc.data, y.data);
  if (plan_.k == 0 || ResultIsDirect()) {
    if (acc.data != y.data) result.copy_(Whole(acc));
    if (plan_.k > 0) Product(a, b, y.data, y.data);
    return;
  }
  Scratch scratch(CopyBytesOf(plan_.result, y.dims, y_type_, product_));
  Product(a, b, nullptr, scratch.data());
  at::add_out(result, Whole(acc), InGraphOrder(plan_.result, scratch.data(), y.dims, product_));
}

namespace {

absl::StatusOr<std::unique_ptr<EinsumKernel>> PrepareEinsum(const std::string& spec, const TensorView& a,
                                                            const TensorView& b, const TensorView& y,
                                                            const EinsumPart& part) {
  absl::StatusOr<CudaEinsum> kernel = CudaEinsum::Prepare(spec, a, b, y, part);
  if (!kernel.ok()) return kernel.status();
  return std::make_unique<CudaEinsum>(*std::move(kernel));
}

}  // namespace

const EinsumKernels kEinsum = {
    .PrepareEinsum = PrepareEinsum,
};

}  // namespace tacc::kernels::cuda
