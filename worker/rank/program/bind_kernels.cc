#include "worker/rank/program/bind_kernels.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/rank/program/bind_aten.h"
#include "worker/rank/program/bind_image_kernels.h"
#include "worker/rank/program/bind_optimizer.h"
#include "worker/rank/program/bind_random.h"
#include "worker/rank/program/binding.h"
#include "worker/rank/program/kernel_operands.h"

namespace tacc::worker {
namespace {

using kernels::BinaryOp, kernels::UnaryGradOp, kernels::UnaryOp;

template <UnaryOp kOp>
absl::StatusOr<Kernel> Unary(const Binding& b) {
  return Kernel([&k = b.kernels.unary, x = b.in(0), y = b.out(0)] { k.Unary(kOp, x, y, {}); });
}

template <UnaryGradOp kOp>
absl::StatusOr<Kernel> UnaryGrad(const Binding& b) {
  return Kernel([&k = b.kernels.unary, x = b.in(0), dy = b.in(1), dx = b.out(0)] { k.UnaryGrad(kOp, x, dy, dx, {}); });
}

template <BinaryOp kOp>
absl::StatusOr<Kernel> Binary(const Binding& b) {
  return Kernel([&k = b.kernels.pointwise, a = b.in(0), c = b.in(1), y = b.out(0)] { k.Binary(kOp, a, c, y); });
}

absl::StatusOr<Kernel> Scale(const Binding& b) {
  const kernels::UnaryParameters p{b.attr<double>("factor"), 0};
  return Kernel([&k = b.kernels.unary, p, x = b.in(0), y = b.out(0)] { k.Unary(UnaryOp::kScale, x, y, p); });
}

absl::StatusOr<Kernel> AddScalar(const Binding& b) {
  const kernels::UnaryParameters p{b.attr<double>("value"), 0};
  return Kernel([&k = b.kernels.unary, p, x = b.in(0), y = b.out(0)] { k.Unary(UnaryOp::kAddScalar, x, y, p); });
}

absl::StatusOr<Kernel> Clamp(const Binding& b) {
  const kernels::UnaryParameters p{b.attr<double>("min"), b.attr<double>("max")};
  return Kernel([&k = b.kernels.unary, p, x = b.in(0), y = b.out(0)] { k.Unary(UnaryOp::kClamp, x, y, p); });
}

absl::StatusOr<Kernel> ClampGrad(const Binding& b) {
  const kernels::UnaryParameters p{b.attr<double>("min"), b.attr<double>("max")};
  return Kernel([&k = b.kernels.unary, p, x = b.in(0), dy = b.in(1), dx = b.out(0)] {
    k.UnaryGrad(UnaryGradOp::kClamp, x, dy, dx, p);
  });
}

absl::StatusOr<Kernel> Gelu(const Binding& b) {
  const bool tanh = b.attr<std::string>("approximate") == "tanh";
  return tanh ? Unary<UnaryOp::kGeluTanh>(b) : Unary<UnaryOp::kGelu>(b);
}

absl::StatusOr<Kernel> GeluGrad(const Binding& b) {
  const bool tanh = b.attr<std::string>("approximate") == "tanh";
  return tanh ? UnaryGrad<UnaryGradOp::kGeluTanh>(b) : UnaryGrad<UnaryGradOp::kGelu>(b);
}

absl::StatusOr<Kernel> Swiglu(const Binding& b) {
  return Kernel([&k = b.kernels.pointwise, gate = b.in(0), up = b.in(1), y = b.out(0)] { k.Swiglu(gate, up, y); });
}

absl::StatusOr<Kernel> SwigluGrad(const Binding& b) {
  return Kernel([&k = b.kernels.pointwise, gate = b.in(0), up = b.in(1), dy = b.in(2), dgate = b.out(0),
                 dup = b.out(1)] { k.SwigluGrad(gate, up, dy, dgate, dup); });
}

absl::StatusOr<Kernel> SwigluJoined(const Binding& b) {
  return Kernel([&k = b.kernels.pointwise, x = b.in(0), y = b.out(0)] { k.SwigluJoined(x, y); });
}

absl::StatusOr<Kernel> SwigluJoinedGrad(const Binding& b) {
  return Kernel(
      [&k = b.kernels.pointwise, x = b.in(0), dy = b.in(1), dx = b.out(0)] { k.SwigluJoinedGrad(x, dy, dx); });
}

absl::StatusOr<Kernel> Select(const Binding& b) {
  if (b.in(0).dims.rank() > 0) return Where(b);
  return Kernel(
      [&k = b.kernels.pointwise, cond = b.in(0), x = b.in(1), z = b.in(2), y = b.out(0)] { k.Select(cond, x, z, y); });
}

absl::StatusOr<Kernel> Constant(const Binding& b) {
  return Kernel([&k = b.kernels.pointwise, value = b.attr<double>("value"), y = b.out(0)] { k.Fill(value, y); });
}

absl::StatusOr<Kernel> Iota(const Binding& b) {
  return Kernel([&k = b.kernels.pointwise, dim = b.dim(), first = b.out_begin(0, b.dim()), y = b.out(0)] {
    k.Iota(dim, first, y);
  });
}

absl::StatusOr<Kernel> Reshape(const Binding& b) {
  return Kernel([&k = b.kernels.shape, x = b.in(0), y = b.out(0)] { k.CopyBytes(x.data, y.data, y.bytes()); });
}

absl::StatusOr<Kernel> Transpose(const Binding& b) {
  return Kernel([&k = b.kernels.shape, perm = b.dims("perm"), x = b.in(0), y = b.out(0)] { k.Transpose(x, perm, y); });
}

absl::StatusOr<Kernel> Slice(const Binding& b) {
  return Kernel([&k = b.kernels.shape, dim = b.dim(), start = b.attr<int64_t>("start"), x = b.in(0), y = b.out(0)] {
    k.Slice(x, dim, start, y);
  });
}

absl::StatusOr<Kernel> Concat(const Binding& b) {
  return Kernel([&k = b.kernels.shape, dim = b.dim(), xs = b.request.in, y = b.out(0)] { k.Concat(xs, dim, y); });
}

absl::StatusOr<Kernel> Pad(const Binding& b) {
  return Kernel([&k = b.kernels.shape, dim = b.dim(), low = b.attr<int64_t>("low"), x = b.in(0), y = b.out(0)] {
    k.Pad(x, dim, low, y);
  });
}

absl::StatusOr<Kernel> Broadcast(const Binding& b) {
  return Kernel([&k = b.kernels.shape, dims = b.dims("dims"), x = b.in(0), y = b.out(0)] { k.Broadcast(x, dims, y); });
}

absl::StatusOr<Kernel> ReduceSum(const Binding& b) {
  return Kernel([&k = b.kernels.reduce, dims = b.dims("dims"), x = b.in(0), y = b.out(0)] { k.ReduceSum(x, dims, y); });
}

absl::StatusOr<Kernel> ReduceMax(const Binding& b) {
  return Kernel([&k = b.kernels.reduce, dims = b.dims("dims"), x = b.in(0), y = b.out(0)] { k.ReduceMax(x, dims, y); });
}

absl::StatusOr<Kernel> Einsum(const Binding& b) {
  ProductOf product = ProductOfNode(b);
  absl::StatusOr<std::shared_ptr<const kernels::EinsumKernel>> kernel =
      b.kernels.einsum.PrepareEinsum(b.attr<std::string>("spec"), product.a, product.b, product.y, product.part);
  if (!kernel.ok()) return kernel.status();
  return Kernel([&kernels = b.kernels, kernel = *std::move(kernel), product = std::move(product)] {
    product.Run(kernels, *kernel);
  });
}

absl::StatusOr<Kernel> RmsNorm(const Binding& b) {
  return Kernel([&k = b.kernels.norm, eps = b.attr<double>("eps"), x = b.in(0), w = b.in(1), y = b.out(0),
                 rstd = b.out(1)] { k.RmsNorm(x, w, eps, y, rstd); });
}

absl::StatusOr<Kernel> AddRmsNorm(const Binding& b) {
  return Kernel([&k = b.kernels.norm, eps = b.attr<double>("eps"), x = b.in(0), residual = b.in(1), w = b.in(2),
                 y = b.out(0), rstd = b.out(1), sum = b.out(2)] { k.AddRmsNorm(x, residual, w, eps, y, rstd, sum); });
}

absl::StatusOr<Kernel> RmsNormGrad(const Binding& b) {
  return Kernel([&k = b.kernels.norm, dy = b.in(0), x = b.in(1), w = b.in(2), rstd = b.in(3), dx = b.out(0),
                 dw = b.out(1), copy = b.copy()] { k.RmsNormGrad(dy, x, w, rstd, dx, dw, copy); });
}

absl::StatusOr<Kernel> RmsNormGradAccumulate(const Binding& b) {
  return Kernel([&k = b.kernels.norm, acc = b.in(0), dy = b.in(1), x = b.in(2), w = b.in(3), rstd = b.in(4),
                 out = b.out(0), dw = b.out(1),
                 copy = b.copy()] { k.RmsNormGradAccumulate(acc, dy, x, w, rstd, out, dw, copy); });
}

absl::StatusOr<Kernel> LayerNorm(const Binding& b) {
  return Kernel([&k = b.kernels.norm, eps = b.attr<double>("eps"), x = b.in(0), w = b.in_or_absent(1),
                 bias = b.in_or_absent(2), y = b.out(0), mean = b.out(1),
                 rstd = b.out(2)] { k.LayerNorm(x, w, bias, eps, y, mean, rstd); });
}

absl::StatusOr<Kernel> AddLayerNorm(const Binding& b) {
  return Kernel([&k = b.kernels.norm, eps = b.attr<double>("eps"), x = b.in(0), residual = b.in(1),
                 w = b.in_or_absent(2), bias = b.in_or_absent(3), y = b.out(0), mean = b.out(1), rstd = b.out(2),
                 sum = b.out(3)] { k.AddLayerNorm(x, residual, w, bias, eps, y, mean, rstd, sum); });
}

absl::StatusOr<Kernel> LayerNormGrad(const Binding& b) {
  return Kernel([&k = b.kernels.norm, dy = b.in(0), x = b.in(1), mean = b.in(2), rstd = b.in(3), w = b.in_or_absent(4),
                 dx = b.out(0), dw = b.out_before_copy(1), db = b.out_before_copy(2),
                 copy = b.copy()] { k.LayerNormGrad(dy, x, mean, rstd, w, dx, dw, db, copy); });
}

absl::StatusOr<Kernel> LayerNormGradAccumulate(const Binding& b) {
  return Kernel([&k = b.kernels.norm, acc = b.in(0), dy = b.in(1), x = b.in(2), mean = b.in(3), rstd = b.in(4),
                 w = b.in_or_absent(5), out = b.out(0), dw = b.out_before_copy(1), db = b.out_before_copy(2),
                 copy = b.copy()] { k.LayerNormGradAccumulate(acc, dy, x, mean, rstd, w, out, dw, db, copy); });
}

absl::StatusOr<Kernel> L2Normalize(const Binding& b) {
  return Kernel([&k = b.kernels.norm, eps = b.attr<double>("eps"), x = b.in(0), y = b.out(0), rnorm = b.out(1)] {
    k.L2Normalize(x, eps, y, rnorm);
  });
}

absl::StatusOr<Kernel> L2NormalizeGrad(const Binding& b) {
  return Kernel([&k = b.kernels.norm, eps = b.attr<double>("eps"), dy = b.in(0), x = b.in(1), rnorm = b.in(2),
                 dx = b.out(0)] { k.L2NormalizeGrad(dy, x, rnorm, eps, dx); });
}

absl::StatusOr<Kernel> RopeTable(const Binding& b) {
  return Kernel([&k = b.kernels.rotary, inv_freq = b.attr<std::vector<double>>("inv_freq"),
                 scale = b.attr<double>("attention_scale", 1.0), positions = b.positions(b.out(0).dims.rank() - 2),
                 start = b.in_or_absent(0), cos = b.out(0),
                 sin = b.out(1)] { k.RopeTable(inv_freq, scale, positions, start, cos, sin); });
}

absl::StatusOr<Kernel> Positions(const Binding& b) {
  return Kernel([&k = b.kernels.rotary, positions = b.positions(b.out(0).dims.rank() - 1), start = b.in_or_absent(0),
                 y = b.out(0)] { k.Positions(positions, start, y); });
}

absl::StatusOr<Kernel> Rotary(const Binding& b) {
  const kernels::RotaryStyle style =
      b.attr<std::string>("style") == "half" ? kernels::RotaryStyle::kHalf : kernels::RotaryStyle::kInterleaved;
  const kernels::RotaryDirection direction =
      b.attr<bool>("inverse") ? kernels::RotaryDirection::kInverse : kernels::RotaryDirection::kForward;
  const int64_t parts = b.attr<int64_t>("parts"), all = b.in(0).dims[2];
  const int64_t heads = parts > 0 ? all / parts * b.attr<int64_t>("limit") : all;
  return Kernel([&k = b.kernels.rotary, style, direction, heads, x = b.in(0), cos = b.in(1), sin = b.in(2),
                 y = b.out(0)] { k.Rotary(x, cos, sin, style, direction, y, heads); });
}

absl::StatusOr<Kernel> Attention(const Binding& b) {
  return Kernel([&k = b.kernels.attention, n = AttentionOfNode(b)] {
    if (n.dbias.data != nullptr) {
      k.AttentionBiasGrad(n.dout, n.q, n.k, n.v, n.out, n.lse, n.extras.first_keys, n.parameters, n.dbias);
    } else if (n.is_gradient()) {
      k.AttentionGrad(n.dout, n.q, n.k, n.v, n.out, n.lse, n.extras.first_keys, n.parameters, n.dq, n.dk, n.dv);
    } else {
      k.Attention(n.q, n.k, n.v, n.extras, n.parameters, n.out, n.lse);
    }
  });
}

absl::StatusOr<Kernel> Embedding(const Binding& b) {
  return Kernel([&k = b.kernels.embedding, offset = b.in_begin(0, 0), table = b.in(0), ids = b.in(1), y = b.out(0)] {
    k.Embedding(table, ids, offset, y);
  });
}

absl::StatusOr<Kernel> EmbeddingGrad(const Binding& b) {
  return Kernel([&k = b.kernels.embedding, offset = b.out_begin(0, 0), dy = b.in(0), ids = b.in(1), dtable = b.out(0)] {
    k.EmbeddingGrad(dy, ids, offset, dtable);
  });
}

absl::StatusOr<Kernel> Softmax(const Binding& b) {
  return Kernel([&k = b.kernels.router, x = b.in(0), y = b.out(0)] { k.Softmax(x, y); });
}

absl::StatusOr<Kernel> SoftmaxGrad(const Binding& b) {
  return Kernel([&k = b.kernels.router, dy = b.in(0), y = b.in(1), dx = b.out(0)] { k.SoftmaxGrad(dy, y, dx); });
}

absl::StatusOr<Kernel> TopK(const Binding& b) {
  return Kernel([&k = b.kernels.router, groups = TopKGroupsOf(b), kind = TopKWeightsOf(b), p = b.in(0),
                 choice = b.request.in.back(), weights = b.out(0),
                 ids = b.out(1)] { k.TopK(p, choice, groups, kind, weights, ids); });
}

absl::StatusOr<Kernel> TopKGrad(const Binding& b) {
  return Kernel([&k = b.kernels.router, kind = TopKWeightsOf(b), dw = b.in(0), p = b.in(1), ids = b.in(2),
                 dp = b.out(0)] { k.TopKGrad(dw, p, ids, kind, dp); });
}

absl::StatusOr<Kernel> ExpertCounts(const Binding& b) {
  return Kernel([&k = b.kernels.router, ids = b.in(0), counts = b.out(0)] { k.ExpertCounts(ids, counts); });
}

absl::StatusOr<Kernel> ExpertMatmul(const Binding& b) {
  const kernels::ExpertWeights kind =
      b.attr<bool>("transposed") ? kernels::ExpertWeights::kTransposed : kernels::ExpertWeights::kPlain;
  return Kernel([&k = b.kernels.expert, kind, offset = b.in_begin(2, 0), x = b.in(0), ids = b.in(1), w = b.in(2),
                 y = b.out(0)] { k.ExpertMatmul(x, ids, w, kind, offset, y); });
}

absl::StatusOr<Kernel> ExpertMatmulGrad(const Binding& b) {
  return Kernel([&k = b.kernels.expert, offset = b.out_begin(0, 0), x = b.in(0), dy = b.in(1), ids = b.in(2),
                 dw = b.out(0)] { k.ExpertMatmulGrad(x, dy, ids, offset, dw); });
}

absl::StatusOr<Kernel> DispatchSlots(const Binding& b) {
  return Kernel([&k = b.kernels.dispatch, num_experts = b.attr<int64_t>("num_experts"), ids = b.in(0),
                 places = b.out(0), row_ids = b.out(1),
                 overflow = b.out(2)] { k.DispatchSlots(ids, num_experts, places, row_ids, overflow); });
}

absl::StatusOr<Kernel> Dispatch(const Binding& b) {
  return Kernel(
      [&k = b.kernels.dispatch, x = b.in(0), places = b.in(1), rows = b.out(0)] { k.Dispatch(x, places, rows); });
}

absl::StatusOr<Kernel> Combine(const Binding& b) {
  return Kernel(
      [&k = b.kernels.dispatch, rows = b.in(0), places = b.in(1), y = b.out(0)] { k.Combine(rows, places, y); });
}

absl::StatusOr<Kernel> MulRows(const Binding& b) {
  return Kernel([&k = b.kernels.router, x = b.in(0), w = b.in(1), y = b.out(0)] { k.MulRows(x, w, y); });
}

absl::StatusOr<Kernel> DotRows(const Binding& b) {
  return Kernel([&k = b.kernels.router, x = b.in(0), z = b.in(1), y = b.out(0)] { k.DotRows(x, z, y); });
}

absl::StatusOr<Kernel> CrossEntropy(const Binding& b) {
  const int vocabulary = b.in(0).dims.rank() - 1;
  return Kernel([&k = b.kernels.cross_entropy, offset = b.in_begin(0, vocabulary), bounds = b.in_bounds(1),
                 logits = b.in(0), targets = b.in(1), loss = b.out(0), count = b.out(1),
                 lse = b.out(2)] { k.CrossEntropy(logits, targets, offset, bounds, loss, count, lse); });
}

absl::StatusOr<Kernel> LogSumExp(const Binding& b) {
  return Kernel([&k = b.kernels.cross_entropy, valid = b.in_bounds(0).back(), x = b.in(0), y = b.out(0)] {
    k.LogSumExp(x, valid, y);
  });
}

absl::StatusOr<Kernel> CrossEntropySum(const Binding& b) {
  const int vocabulary = b.in(0).dims.rank() - 1;
  return Kernel([&k = b.kernels.cross_entropy, offset = b.in_begin(0, vocabulary), valid = b.in_bounds(0).back(),
                 bounds = b.in_bounds(1), logits = b.in(0), targets = b.in(1), lse = b.in(2), loss = b.out(0),
                 count = b.out(1)] { k.CrossEntropySum(logits, targets, lse, offset, valid, bounds, loss, count); });
}

absl::StatusOr<Kernel> CrossEntropyGrad(const Binding& b) {
  const int vocabulary = b.in(0).dims.rank() - 1;
  return Kernel([&k = b.kernels.cross_entropy, offset = b.in_begin(0, vocabulary), bounds = b.in_bounds(1),
                 logits = b.in(0), targets = b.in(1), lse = b.in(2), dloss = b.in(3),
                 dlogits = b.out(0)] { k.CrossEntropyGrad(logits, targets, lse, dloss, offset, bounds, dlogits); });
}

absl::StatusOr<Kernel> IsFinite(const Binding& b) {
  return Kernel([&k = b.kernels.pointwise, x = b.in(0), y = b.out(0)] { k.IsFinite(x, y); });
}

absl::StatusOr<Kernel> SumSquares(const Binding& b) {
  return Kernel([&k = b.kernels.sum_squares, xs = BoundedOperands(b), y = b.out(0)] { k.SumSquares(xs, y); });
}

absl::StatusOr<Kernel> MaskPadding(const Binding& b) {
  return Kernel([&k = b.kernels.shape, bounds = b.in_bounds(0), x = b.in(0), y = b.out(0)] {
    k.CopyBytes(x.data, y.data, y.bytes());
    k.MaskPadding(y, bounds);
  });
}

const std::map<std::string, PrepareKernel>& Table() {
  static const std::map<std::string, PrepareKernel> table = {
      {"add", Binary<BinaryOp::kAdd>},
      {"add_layer_norm", AddLayerNorm},
      {"add_rms_norm", AddRmsNorm},
      {"add_scalar", AddScalar},
      {"attention", Attention},
      {"attention_bias_grad", Attention},
      {"attention_continue", Attention},
      {"attention_grad", Attention},
      {"attention_joined", Attention},
      {"attention_joined_grad", Attention},
      {"broadcast", Broadcast},
      {"cast", Unary<UnaryOp::kCast>},
      {"clamp", Clamp},
      {"clamp_grad", ClampGrad},
      {"combine", Combine},
      {"concat", Concat},
      {"constant", Constant},
      {"cos", Unary<UnaryOp::kCos>},
      {"cross_entropy", CrossEntropy},
      {"cross_entropy_grad", CrossEntropyGrad},
      {"cross_entropy_sum", CrossEntropySum},
      {"dispatch", Dispatch},
      {"dispatch_slots", DispatchSlots},
      {"div", Binary<BinaryOp::kDiv>},
      {"dot_rows", DotRows},
      {"einsum", Einsum},
      {"einsum_accumulate", Einsum},
      {"einsum_joined", Einsum},
      {"embedding", Embedding},
      {"embedding_grad", EmbeddingGrad},
      {"exp", Unary<UnaryOp::kExp>},
      {"expert_counts", ExpertCounts},
      {"expert_matmul", ExpertMatmul},
      {"expert_matmul_grad", ExpertMatmulGrad},
      {"gelu", Gelu},
      {"gelu_grad", GeluGrad},
      {"iota", Iota},
      {"is_finite", IsFinite},
      {"l2_normalize", L2Normalize},
      {"l2_normalize_grad", L2NormalizeGrad},
      {"layer_norm", LayerNorm},
      {"layer_norm_grad", LayerNormGrad},
      {"layer_norm_grad_accumulate", LayerNormGradAccumulate},
      {"log", Unary<UnaryOp::kLog>},
      {"logsumexp", LogSumExp},
      {"mask_padding", MaskPadding},
      {"maximum", Binary<BinaryOp::kMaximum>},
      {"minimum", Binary<BinaryOp::kMinimum>},
      {"mul", Binary<BinaryOp::kMul>},
      {"mul_rows", MulRows},
      {"neg", Unary<UnaryOp::kNeg>},
      {"pad", Pad},
      {"positions", Positions},
      {"reciprocal", Unary<UnaryOp::kReciprocal>},
      {"reduce_max", ReduceMax},
      {"reduce_sum", ReduceSum},
      {"relu", Unary<UnaryOp::kRelu>},
      {"relu_grad", UnaryGrad<UnaryGradOp::kRelu>},
      {"reshape", Reshape},
      {"stop_gradient", Reshape},
      {"rms_norm", RmsNorm},
      {"rms_norm_grad", RmsNormGrad},
      {"rms_norm_grad_accumulate", RmsNormGradAccumulate},
      {"rope_table", RopeTable},
      {"rotary", Rotary},
      {"rsqrt", Unary<UnaryOp::kRsqrt>},
      {"scale", Scale},
      {"select", Select},
      {"sigmoid", Unary<UnaryOp::kSigmoid>},
      {"sigmoid_grad", UnaryGrad<UnaryGradOp::kSigmoid>},
      {"silu", Unary<UnaryOp::kSilu>},
      {"silu_grad", UnaryGrad<UnaryGradOp::kSilu>},
      {"sin", Unary<UnaryOp::kSin>},
      {"slice", Slice},
      {"softmax", Softmax},
      {"softmax_grad", SoftmaxGrad},
      {"sqrt", Unary<UnaryOp::kSqrt>},
      {"square", Unary<UnaryOp::kSquare>},
      {"sub", Binary<BinaryOp::kSub>},
      {"sum_squares", SumSquares},
      {"swiglu", Swiglu},
      {"swiglu_grad", SwigluGrad},
      {"swiglu_joined", SwigluJoined},
      {"swiglu_joined_grad", SwigluJoinedGrad},
      {"tanh", Unary<UnaryOp::kTanh>},
      {"tanh_grad", UnaryGrad<UnaryGradOp::kTanh>},
      {"top_k", TopK},
      {"top_k_grad", TopKGrad},
      {"transpose", Transpose},
  };
  return table;
}

const PrepareKernel* Find(const std::string& op) {
  for (const auto* table : {&Table(), &AtenKernels(), &ImageKernels(), &OptimizerKernels(), &RandomKernels()}) {
    if (const auto it = table->find(op); it != table->end()) return &it->second;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<Kernel> BindKernel(const kernels::Kernels& kernels, const KernelRequest& request) {
  const PrepareKernel* prepare = Find(std::string(request.node->op.name()));
  if (prepare == nullptr) {
    std::string types;
    for (const TensorView& x : request.in) absl::StrAppend(&types, types.empty() ? "" : ", ", kernels::Name(x.dtype));
    return absl::UnimplementedError(
        absl::StrCat("the ", kernels.device, " has no kernel for ", request.node->op.name(), "(", types, ")"));
  }
  return (*prepare)(Binding{kernels, request});
}

std::vector<std::string> BoundOps() {
  std::vector<std::string> names;
  for (const auto* table : {&Table(), &AtenKernels(), &ImageKernels(), &OptimizerKernels(), &RandomKernels()}) {
    for (const auto& [op, prepare] : *table) names.push_back(op);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace tacc::worker
