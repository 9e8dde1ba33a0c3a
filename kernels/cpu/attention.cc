#include "kernels/cpu/attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_cpu_dispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_cpu_dispatch.h>
#include <ATen/ops/from_blob.h>

#include <optional>
#include <tuple>

#include "kernels/cpu/aten.h"
#include "kernels/cpu/pointwise.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/shape.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

struct Shape {
  int64_t b, s, t, h, k, d, group;
};

Shape Check(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionParameters& parameters) {
  TACC_KERNEL_CHECK(q.dims.rank() == 4 && k.dims.rank() == 4 && k.dims == v.dims);
  const Shape shape{q.dims[0], q.dims[1], k.dims[1], q.dims[2], k.dims[2], q.dims[3], q.dims[2] / k.dims[2]};
  TACC_KERNEL_CHECK(k.dims[0] == shape.b && k.dims[3] == shape.d && (!parameters.causal || shape.t == shape.s));
  TACC_KERNEL_CHECK(shape.h % shape.k == 0 && q.dtype == k.dtype && q.dtype == v.dtype);
  TACC_KERNEL_CHECK(parameters.alibi_slopes.empty() || static_cast<int64_t>(parameters.alibi_slopes.size()) == shape.h);
  return shape;
}

// Query heads g, G + g, 2G + g, ... of a [B,S,H,D] tensor as [B,K,S,D]; with G = 1 all heads, for k and v too.
at::Tensor Heads(const TensorView& x, int64_t group, int64_t g) {
  const int64_t s = x.dims[1], h = x.dims[2], d = x.dims[3];
  return at::from_blob(x.as<char>() + g * d * SizeOf(x.dtype), {x.dims[0], h / group, s, d},
                       {s * h * d, group * d, h * d, 1}, AtenOptions(x.dtype));
}

// The same of lse [B,H,S] as [B,K,S].
at::Tensor LseHeads(void* data, DType dtype, const Shape& shape, int64_t g) {
  return at::from_blob(static_cast<char*>(data) + g * shape.s * SizeOf(dtype), {shape.b, shape.k, shape.s},
                       {shape.h * shape.s, shape.group * shape.s, 1}, AtenOptions(dtype));
}

Strides AtenStrides(const at::Tensor& x) { return Strides(x.strides().begin(), x.strides().end()); }
Dims AtenDims(const at::Tensor& x) { return Dims(x.sizes().begin(), x.sizes().end()); }

// Copies between strided tensors of one dtype.
void Copy(const at::Tensor& from, const at::Tensor& to) {
  StridedCopy(AtenDims(from), from.element_size(), from.data_ptr(), AtenStrides(from), to.data_ptr(), AtenStrides(to));
}

// Softmax does not change when a row of scores is shifted, so slope * j stands for slope * (j - i): a [1,H,1,T] mask
// that LibTorch broadcasts over the queries. Only lse must be shifted back.
class Alibi {
 public:
  Alibi(const Shape& shape, const AttentionParameters& parameters, DType dtype)
      : shape_(shape),
        slopes_(parameters.alibi_slopes),
        dtype_(dtype == DType::kF64 ? DType::kF64 : DType::kF32),
        scratch_(slopes_.empty() ? 0 : shape.h * shape.t * SizeOf(dtype_)) {
    if (slopes_.empty()) return;
    for (int64_t h = 0; h < shape.h; ++h) {
      for (int64_t j = 0; j < shape.t; ++j) {
        const double value = slopes_[h] * static_cast<double>(j);
        if (dtype_ == DType::kF64) {
          static_cast<double*>(scratch_.data())[h * shape.t + j] = value;
        } else {
          static_cast<float*>(scratch_.data())[h * shape.t + j] = static_cast<float>(value);
        }
      }
    }
  }

  std::optional<at::Tensor> Mask(int64_t g) const {
    if (slopes_.empty()) return std::nullopt;
    return at::from_blob(static_cast<char*>(scratch_.data()) + g * shape_.t * SizeOf(dtype_),
                         {1, shape_.k, 1, shape_.t}, {shape_.h * shape_.t, shape_.group * shape_.t, shape_.t, 1},
                         AtenOptions(dtype_));
  }

  // to = from + sign * slope * i, all [B,H,S].
  template <typename T>
  void Shift(const T* from, double sign, T* to) const {
    for (int64_t row = 0; row < shape_.b * shape_.h; ++row) {
      const double slope = sign * slopes_[row % shape_.h];
      for (int64_t i = 0; i < shape_.s; ++i) {
        to[row * shape_.s + i] = static_cast<T>(from[row * shape_.s + i] + slope * static_cast<double>(i));
      }
    }
  }
  void ShiftLse(const TensorView& from, double sign, void* to) const {
    if (from.dtype == DType::kF64) return Shift(from.as<double>(), sign, static_cast<double*>(to));
    Shift(from.as<float>(), sign, static_cast<float*>(to));
  }

 private:
  const Shape& shape_;
  const std::vector<double>& slopes_;
  DType dtype_;
  Scratch scratch_;
};

// Adds the groups' gradients of k or v in f32 (f64), then rounds once.
class GroupSum {
 public:
  GroupSum(const Shape& shape, const TensorView& result)
      : result_(result),
        single_(shape.group == 1),
        dtype_(result.dtype == DType::kF64 ? DType::kF64 : DType::kF32),
        part_(single_ ? 0 : result.bytes()),
        sum_(single_ ? 0 : result.size() * SizeOf(dtype_)) {}

  void Add(const at::Tensor& gradient, int64_t g) {
    if (single_) return Copy(gradient, Heads(result_, 1, 0));
    const TensorView part{part_.data(), result_.dtype, result_.dims}, sum{sum_.data(), dtype_, result_.dims};
    Copy(gradient, Heads(part, 1, 0));
    if (g == 0) return Unary(UnaryOp::kCast, part, sum);
    Binary(BinaryOp::kAdd, sum, part, sum);
  }
  void Finish() const {
    if (!single_) Unary(UnaryOp::kCast, TensorView{sum_.data(), dtype_, result_.dims}, result_);
  }

 private:
  const TensorView& result_;
  bool single_;
  DType dtype_;
  Scratch part_, sum_;
};

}  // namespace

void Attention(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionParameters& parameters,
               const TensorView& out, const TensorView& lse) {
  const Shape shape = Check(q, k, v, parameters);
  TACC_KERNEL_CHECK(out.dims == q.dims && out.dtype == q.dtype && lse.size() == shape.b * shape.h * shape.s);
  TACC_KERNEL_CHECK(lse.dtype == (q.dtype == DType::kF64 ? DType::kF64 : DType::kF32));
  if (q.size() == 0) return;
  TACC_KERNEL_CHECK(shape.t > 0);
  const Alibi alibi(shape, parameters, q.dtype);
  for (int64_t g = 0; g < shape.group; ++g) {
    const auto [result, result_lse] =
        at::cpu::_scaled_dot_product_flash_attention_for_cpu(Heads(q, shape.group, g), Heads(k, 1, 0), Heads(v, 1, 0),
                                                             0.0, parameters.causal, alibi.Mask(g), parameters.scale);
    Copy(result, Heads(out, shape.group, g));
    Copy(result_lse, LseHeads(lse.data, lse.dtype, shape, g));
  }
  if (!parameters.alibi_slopes.empty()) alibi.ShiftLse(lse, -1, lse.data);
}

void AttentionGrad(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
                   const TensorView& out, const TensorView& lse, const AttentionParameters& parameters,
                   const TensorView& dq, const TensorView& dk, const TensorView& dv) {
  const Shape shape = Check(q, k, v, parameters);
  TACC_KERNEL_CHECK(dout.dims == q.dims && out.dims == q.dims && dq.dims == q.dims && dk.dims == k.dims &&
                    dv.dims == k.dims && lse.size() == shape.b * shape.h * shape.s);
  if (q.size() == 0) {
    Fill(0, dk);
    return Fill(0, dv);
  }
  const Alibi alibi(shape, parameters, q.dtype);
  Scratch shifted(parameters.alibi_slopes.empty() ? 0 : lse.bytes());
  void* lse_data = lse.data;
  if (!parameters.alibi_slopes.empty()) {
    alibi.ShiftLse(lse, 1, shifted.data());
    lse_data = shifted.data();
  }
  GroupSum dk_sum(shape, dk), dv_sum(shape, dv);
  for (int64_t g = 0; g < shape.group; ++g) {
    const auto [group_dq, group_dk, group_dv] = at::cpu::_scaled_dot_product_flash_attention_for_cpu_backward(
        Heads(dout, shape.group, g), Heads(q, shape.group, g), Heads(k, 1, 0), Heads(v, 1, 0),
        Heads(out, shape.group, g), LseHeads(lse_data, lse.dtype, shape, g), 0.0, parameters.causal, alibi.Mask(g),
        parameters.scale);
    Copy(group_dq, Heads(dq, shape.group, g));
    dk_sum.Add(group_dk, g);
    dv_sum.Add(group_dv, g);
  }
  dk_sum.Finish();
  dv_sum.Finish();
}

}  // namespace tacc::kernels::cpu
