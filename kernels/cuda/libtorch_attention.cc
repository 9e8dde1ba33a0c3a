#include "kernels/cuda/libtorch_attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <tuple>
#include <utility>

#include "kernels/cuda/aten.h"

namespace tacc::kernels::cuda {
namespace {

c10::IntArrayRef Ref(const Dims& dims) { return {dims.begin(), static_cast<size_t>(dims.rank())}; }

// Our [B,S,H,D] as LibTorch's [B,H,S,D], where it lies: dense, or with its tokens `pitch` elements apart.
at::Tensor Heads(const TensorView& x, int64_t pitch = 0) {
  if (pitch == 0) return TensorIn(x.data, Ref(x.dims), x.dtype).transpose(1, 2);
  const int64_t strides[] = {x.dims[1] * pitch, pitch, x.dims[3], 1};
  return TensorIn(x.data, Ref(x.dims), strides, x.dtype).transpose(1, 2);
}

// What the backward wants of the forward beside its results.
struct ForwardResult {
  at::Tensor out, lse, seed, offset;
};

ForwardResult Forward(AttentionBackend backend, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      bool causal, double scale) {
  constexpr double kNoDropout = 0;
  auto result = backend == AttentionBackend::kFlash
                    ? at::_scaled_dot_product_flash_attention(q, k, v, kNoDropout, causal,
                                                              /*return_debug_mask=*/false, scale)
                    : at::_scaled_dot_product_cudnn_attention(q, k, v, /*attn_bias=*/std::nullopt,
                                                              /*compute_log_sumexp=*/true, kNoDropout, causal,
                                                              /*return_debug_mask=*/false, scale);
  return {std::get<0>(result), std::get<1>(result), std::get<6>(result), std::get<7>(result)};
}

}  // namespace

struct LibtorchAttention::State {
  AttentionBackend backend;
  // Without dropout nobody reads what the forward gives as its seed and offset, but the backward wants the like.
  at::Tensor seed, offset;
  // Whether lse is [B,H,S,1].
  bool lse_has_unit_dim;
};

LibtorchAttention::LibtorchAttention(AttentionBackend backend, DType dtype, int64_t head_dim) {
  TACC_KERNEL_CHECK(backend == AttentionBackend::kFlash || backend == AttentionBackend::kCudnn);
  const at::Tensor x = at::zeros({1, 1, 128, head_dim}, AtenOptions(dtype));
  ForwardResult forward = Forward(backend, x, x, x, /*causal=*/true, /*scale=*/1);
  state_ = std::make_unique<State>(
      State{backend, std::move(forward.seed), std::move(forward.offset), forward.lse.dim() == 4});
}

LibtorchAttention::~LibtorchAttention() = default;
LibtorchAttention::LibtorchAttention(LibtorchAttention&&) = default;

void LibtorchAttention::Run(const TensorView& q, const TensorView& k, const TensorView& v,
                            const AttentionExtras& extras, const AttentionParameters& parameters, const TensorView& out,
                            const TensorView& lse) const {
  TACC_KERNEL_CHECK(extras.first_keys.data == nullptr && extras.earlier_lse.data == nullptr &&
                    parameters.key_bias.data == nullptr && parameters.bias.data == nullptr);
  TACC_KERNEL_CHECK(out.dims == q.dims && lse.size() == q.dims.Product(0, 3) && lse.dtype == DType::kF32);
  if (q.size() == 0) return;
  const int64_t pitch = parameters.pitch;
  const ForwardResult result =
      Forward(state_->backend, Heads(q, pitch), Heads(k, pitch), Heads(v, pitch), parameters.causal, parameters.scale);
  const int64_t lse_dims[] = {q.dims[0], q.dims[2], q.dims[1]};
  TORCH_CHECK(result.lse.numel() == lse.size(), "LibTorch's attention gives an lse of another size");
  Heads(out).copy_(result.out);
  TensorIn(lse.data, lse_dims, lse.dtype).copy_(result.lse.view(lse_dims));
}

void LibtorchAttention::RunGrad(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
                                const TensorView& out, const TensorView& lse, const TensorView& first_keys,
                                const AttentionParameters& parameters, const TensorView& dq, const TensorView& dk,
                                const TensorView& dv) const {
  TACC_KERNEL_CHECK(first_keys.data == nullptr && parameters.key_bias.data == nullptr &&
                    parameters.bias.data == nullptr);
  TACC_KERNEL_CHECK(dout.dims == q.dims && out.dims == q.dims && dq.dims == q.dims && dk.dims == k.dims &&
                    dv.dims == k.dims && lse.size() == q.dims.Product(0, 3) && lse.dtype == DType::kF32);
  const int64_t pitch = parameters.pitch;
  if (q.size() == 0) {
    Heads(dk, pitch).zero_();
    Heads(dv, pitch).zero_();
    return;
  }
  at::Tensor statistics = TensorIn(lse.data, {q.dims[0], q.dims[2], q.dims[1]}, lse.dtype);
  if (state_->lse_has_unit_dim) statistics = statistics.unsqueeze(-1);
  const at::Tensor none, q_heads = Heads(q, pitch), k_heads = Heads(k, pitch), v_heads = Heads(v, pitch);
  const auto [q_gradient, k_gradient, v_gradient] =
      state_->backend == AttentionBackend::kFlash
          ? at::_scaled_dot_product_flash_attention_backward(
                Heads(dout), q_heads, k_heads, v_heads, Heads(out), statistics, none, none, q.dims[1], k.dims[1],
                /*dropout_p=*/0.0, parameters.causal, state_->seed, state_->offset, parameters.scale)
          : at::_scaled_dot_product_cudnn_attention_backward(Heads(dout), q_heads, k_heads, v_heads, Heads(out),
                                                             statistics, state_->seed, state_->offset,
                                                             /*attn_bias=*/none, none, none, q.dims[1], k.dims[1],
                                                             /*dropout_p=*/0.0, parameters.causal, parameters.scale);
  Heads(dq, pitch).copy_(q_gradient);
  Heads(dk, pitch).copy_(k_gradient);
  Heads(dv, pitch).copy_(v_gradient);
}

}  // namespace tacc::kernels::cuda
