// Binds each op of the graph to its kernel: the bodies of CpuKernelTable and CudaKernelTable. Included by their .cc
// files only, each of which has included its device's kernels and said before, in namespace tacc::worker,
//   namespace device = kernels::cpu;   // or kernels::cuda
// The kernels of all devices have the same names and contracts (kernels/cpu/*.h).
#ifndef TACC_WORKER_RANK_PROGRAM_BIND_KERNELS_H_
#define TACC_WORKER_RANK_PROGRAM_BIND_KERNELS_H_

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "graph/ir/sequence_order.h"
#include "worker/rank/device/kernel_table.h"

namespace tacc::worker {
namespace {

using kernels::Dims;
using kernels::TensorView;

// A request with short names for its parts.
struct Binding {
  const KernelRequest& request;

  const TensorView& in(size_t i) const { return request.in[i]; }
  const TensorView& out(size_t i) const { return request.out[i]; }
  // An optional operand or result: a view without data when it is absent.
  TensorView in_or_absent(size_t i) const { return i < request.in.size() ? request.in[i] : TensorView(); }
  TensorView out_or_absent(size_t i) const { return i < request.out.size() ? request.out[i] : TensorView(); }
  bool has(const std::string& name) const { return request.node->attrs.count(name) > 0; }
  template <typename T>
  T attr(const std::string& name, T fallback = T()) const {
    return graph::GetAttr<T>(request.node->attrs, name, fallback);
  }
  // The result that a norm's gradient has last where it is asked for a copy, and the optional one before it.
  TensorView copy() const { return has("copy") ? request.out.back() : TensorView(); }
  TensorView out_before_copy(size_t i) const { return i + has("copy") < request.out.size() ? out(i) : TensorView(); }
  int dim(const std::string& name = "dim") const { return static_cast<int>(attr<int64_t>(name)); }
  Dims dims(const std::string& name) const {
    const std::vector<int64_t> values = attr<std::vector<int64_t>>(name);
    return Dims(values.begin(), values.end());
  }
  // Where the rank's part begins on a dim, and how much of it exists.
  int64_t in_begin(size_t operand, int dim) const {
    return operand < request.in_ranges.size() ? request.in_ranges[operand][dim].begin : 0;
  }
  int64_t out_begin(size_t result, int dim) const {
    return result < request.out_ranges.size() ? request.out_ranges[result][dim].begin : 0;
  }
  const Dims& logical(size_t operand) const {
    return request.in_logical.empty() ? in(operand).dims : request.in_logical[operand];
  }
  graph::Range in_range(size_t operand, int dim) const {
    return request.in_ranges.empty() ? graph::Range{0, in(operand).dims[dim]} : request.in_ranges[operand][dim];
  }
  // The order of a sequence of `extent`.
  graph::SequenceOrder order(int64_t extent) const { return {extent, attr<int64_t>("zigzag")}; }
  // Of the sequence in dim 1 of an operand of attention.
  std::vector<device::SequenceRun> runs(size_t operand, int64_t shift) const {
    std::vector<device::SequenceRun> runs;
    for (const graph::PositionRun& run :
         graph::PositionRuns(order(logical(operand)[1]), in_range(operand, 1), attr<int64_t>("block"), shift)) {
      runs.push_back({run.length, run.position, run.block});
    }
    return runs;
  }
  // Of the sequence that is made in dim `dim` of the first result.
  std::vector<int64_t> positions(int dim) const {
    const int64_t length = attr<int64_t>("length");
    const graph::Range range = request.out_ranges.empty() ? graph::Range{0, length} : request.out_ranges[0][dim];
    return graph::Positions(order(length), range);
  }
  Dims in_bounds(size_t operand) const {
    if (operand >= request.in_ranges.size()) return in(operand).dims;
    Dims bounds;
    for (const graph::Range& range : request.in_ranges[operand]) bounds.push_back(range.end - range.begin);
    return bounds;
  }
};

using Prepare = absl::StatusOr<Kernel> (*)(const Binding&);

template <device::UnaryOp kOp>
absl::StatusOr<Kernel> Unary(const Binding& b) {
  return Kernel([x = b.in(0), y = b.out(0)] { device::Unary(kOp, x, y); });
}

template <device::UnaryGradOp kOp>
absl::StatusOr<Kernel> UnaryGrad(const Binding& b) {
  return Kernel([x = b.in(0), dy = b.in(1), dx = b.out(0)] { device::UnaryGrad(kOp, x, dy, dx); });
}

template <device::BinaryOp kOp>
absl::StatusOr<Kernel> Binary(const Binding& b) {
  return Kernel([a = b.in(0), c = b.in(1), y = b.out(0)] { device::Binary(kOp, a, c, y); });
}

absl::StatusOr<Kernel> Scale(const Binding& b) {
  const device::UnaryParameters p{b.attr<double>("factor"), 0};
  return Kernel([p, x = b.in(0), y = b.out(0)] { device::Unary(device::UnaryOp::kScale, x, y, p); });
}

absl::StatusOr<Kernel> AddScalar(const Binding& b) {
  const device::UnaryParameters p{b.attr<double>("value"), 0};
  return Kernel([p, x = b.in(0), y = b.out(0)] { device::Unary(device::UnaryOp::kAddScalar, x, y, p); });
}

absl::StatusOr<Kernel> Clamp(const Binding& b) {
  const device::UnaryParameters p{b.attr<double>("min"), b.attr<double>("max")};
  return Kernel([p, x = b.in(0), y = b.out(0)] { device::Unary(device::UnaryOp::kClamp, x, y, p); });
}

absl::StatusOr<Kernel> ClampGrad(const Binding& b) {
  const device::UnaryParameters p{b.attr<double>("min"), b.attr<double>("max")};
  return Kernel(
      [p, x = b.in(0), dy = b.in(1), dx = b.out(0)] { device::UnaryGrad(device::UnaryGradOp::kClamp, x, dy, dx, p); });
}

absl::StatusOr<Kernel> Gelu(const Binding& b) {
  const bool tanh = b.attr<std::string>("approximate") == "tanh";
  return tanh ? Unary<device::UnaryOp::kGeluTanh>(b) : Unary<device::UnaryOp::kGelu>(b);
}

absl::StatusOr<Kernel> GeluGrad(const Binding& b) {
  const bool tanh = b.attr<std::string>("approximate") == "tanh";
  return tanh ? UnaryGrad<device::UnaryGradOp::kGeluTanh>(b) : UnaryGrad<device::UnaryGradOp::kGelu>(b);
}

absl::StatusOr<Kernel> Swiglu(const Binding& b) {
  return Kernel([gate = b.in(0), up = b.in(1), y = b.out(0)] { device::Swiglu(gate, up, y); });
}

absl::StatusOr<Kernel> SwigluGrad(const Binding& b) {
  return Kernel([gate = b.in(0), up = b.in(1), dy = b.in(2), dgate = b.out(0), dup = b.out(1)] {
    device::SwigluGrad(gate, up, dy, dgate, dup);
  });
}

absl::StatusOr<Kernel> SwigluJoined(const Binding& b) {
  return Kernel([x = b.in(0), y = b.out(0)] { device::SwigluJoined(x, y); });
}

absl::StatusOr<Kernel> SwigluJoinedGrad(const Binding& b) {
  return Kernel([x = b.in(0), dy = b.in(1), dx = b.out(0)] { device::SwigluJoinedGrad(x, dy, dx); });
}

absl::StatusOr<Kernel> Select(const Binding& b) {
  return Kernel([cond = b.in(0), x = b.in(1), z = b.in(2), y = b.out(0)] { device::Select(cond, x, z, y); });
}

absl::StatusOr<Kernel> Constant(const Binding& b) {
  return Kernel([value = b.attr<double>("value"), y = b.out(0)] { device::Fill(value, y); });
}

absl::StatusOr<Kernel> Iota(const Binding& b) {
  return Kernel([dim = b.dim(), first = b.out_begin(0, b.dim()), y = b.out(0)] { device::Iota(dim, first, y); });
}

absl::StatusOr<Kernel> Reshape(const Binding& b) {
  return Kernel([x = b.in(0), y = b.out(0)] { device::CopyBytes(x.data, y.data, y.bytes()); });
}

absl::StatusOr<Kernel> Transpose(const Binding& b) {
  return Kernel([perm = b.dims("perm"), x = b.in(0), y = b.out(0)] { device::Transpose(x, perm, y); });
}

absl::StatusOr<Kernel> Slice(const Binding& b) {
  return Kernel([dim = b.dim(), start = b.attr<int64_t>("start"), x = b.in(0), y = b.out(0)] {
    device::Slice(x, dim, start, y);
  });
}

absl::StatusOr<Kernel> Concat(const Binding& b) {
  return Kernel([dim = b.dim(), xs = b.request.in, y = b.out(0)] { device::Concat(xs, dim, y); });
}

absl::StatusOr<Kernel> Pad(const Binding& b) {
  return Kernel(
      [dim = b.dim(), low = b.attr<int64_t>("low"), x = b.in(0), y = b.out(0)] { device::Pad(x, dim, low, y); });
}

absl::StatusOr<Kernel> Broadcast(const Binding& b) {
  return Kernel([dims = b.dims("dims"), x = b.in(0), y = b.out(0)] { device::Broadcast(x, dims, y); });
}

absl::StatusOr<Kernel> ReduceSum(const Binding& b) {
  return Kernel([dims = b.dims("dims"), x = b.in(0), y = b.out(0)] { device::ReduceSum(x, dims, y); });
}

absl::StatusOr<Kernel> ReduceMax(const Binding& b) {
  return Kernel([dims = b.dims("dims"), x = b.in(0), y = b.out(0)] { device::ReduceMax(x, dims, y); });
}

// A product's node: y = (acc +) einsum(a, b).
struct ProductOf {
  TensorView acc, a, b, y;         // acc: without data where there is none
  device::EinsumPart part;         // of what a is
  std::vector<TensorView> copied;  // what must be put into scratch memory first, one behind the other, to be b

  void Run(const device::EinsumKernel& kernel) const {
    if (copied.empty()) return Run(kernel, b);
    const device::Scratch scratch(b.bytes());
    const TensorView copy{scratch.data(), b.dtype, b.dims};
    int64_t offset = 0;
    for (const TensorView& part : copied) {
      device::CopyBytes(part.data, copy.as<char>() + offset, part.bytes());
      offset += part.bytes();
    }
    Run(kernel, copy);
  }

 private:
  void Run(const device::EinsumKernel& kernel, const TensorView& b_at) const {
    acc.data == nullptr ? kernel.Run(a, b_at, y) : kernel.RunAccumulate(acc, a, b_at, y);
  }
};

// The parts that follow a are multiplied where they lie when each begins where the one before ends.
ProductOf ProductOfNode(const Binding& b) {
  const size_t first = b.request.node->op == "einsum_accumulate" ? 1 : 0;
  ProductOf product{first == 0 ? TensorView() : b.in(0), b.in(first), b.in(first + 1), b.out(0), {}, {}};
  if (const int64_t parts = b.attr<int64_t>("parts"); parts > 0) {
    const TensorView whole = product.a;
    const int64_t start = b.attr<int64_t>("start"), run = whole.dims.Product(b.dim(), whole.dims.rank());
    product.part = {b.dim(), run};
    product.a.data = whole.as<char>() + run / parts * start * kernels::SizeOf(whole.dtype);
    product.a.dims[b.dim()] = whole.dims[b.dim()] / parts * (b.attr<int64_t>("limit") - start);
  }
  bool lie_in_a_row = true;
  for (size_t i = first + 2; i < b.request.in.size(); ++i) {
    lie_in_a_row = lie_in_a_row && b.in(i - 1).as<char>() + b.in(i - 1).bytes() == b.in(i).data;
    product.b.dims[0] += b.in(i).dims[0];
  }
  if (!lie_in_a_row) product.copied.assign(b.request.in.begin() + first + 1, b.request.in.end());
  return product;
}

absl::StatusOr<device::EinsumKernel> PrepareEinsum(const Binding& b, const ProductOf& product) {
  return device::EinsumKernel::Prepare(b.attr<std::string>("spec"), product.a, product.b, product.y, product.part);
}

absl::StatusOr<Kernel> Einsum(const Binding& b) {
  ProductOf product = ProductOfNode(b);
  auto kernel = PrepareEinsum(b, product);
  if (!kernel.ok()) return kernel.status();
  return Kernel([kernel = *std::move(kernel), product = std::move(product)] { product.Run(kernel); });
}

absl::StatusOr<Kernel> RmsNorm(const Binding& b) {
  return Kernel([eps = b.attr<double>("eps"), x = b.in(0), w = b.in(1), y = b.out(0), rstd = b.out(1)] {
    device::RmsNorm(x, w, eps, y, rstd);
  });
}

absl::StatusOr<Kernel> AddRmsNorm(const Binding& b) {
  return Kernel([eps = b.attr<double>("eps"), x = b.in(0), residual = b.in(1), w = b.in(2), y = b.out(0),
                 rstd = b.out(1), sum = b.out(2)] { device::AddRmsNorm(x, residual, w, eps, y, rstd, sum); });
}

absl::StatusOr<Kernel> RmsNormGrad(const Binding& b) {
  return Kernel([dy = b.in(0), x = b.in(1), w = b.in(2), rstd = b.in(3), dx = b.out(0), dw = b.out(1),
                 copy = b.copy()] { device::RmsNormGrad(dy, x, w, rstd, dx, dw, copy); });
}

absl::StatusOr<Kernel> RmsNormGradAccumulate(const Binding& b) {
  return Kernel([acc = b.in(0), dy = b.in(1), x = b.in(2), w = b.in(3), rstd = b.in(4), out = b.out(0), dw = b.out(1),
                 copy = b.copy()] { device::RmsNormGradAccumulate(acc, dy, x, w, rstd, out, dw, copy); });
}

absl::StatusOr<Kernel> LayerNorm(const Binding& b) {
  return Kernel([eps = b.attr<double>("eps"), x = b.in(0), w = b.in_or_absent(1), bias = b.in_or_absent(2),
                 y = b.out(0), mean = b.out(1),
                 rstd = b.out(2)] { device::LayerNorm(x, w, bias, eps, y, mean, rstd); });
}

absl::StatusOr<Kernel> AddLayerNorm(const Binding& b) {
  return Kernel([eps = b.attr<double>("eps"), x = b.in(0), residual = b.in(1), w = b.in_or_absent(2),
                 bias = b.in_or_absent(3), y = b.out(0), mean = b.out(1), rstd = b.out(2),
                 sum = b.out(3)] { device::AddLayerNorm(x, residual, w, bias, eps, y, mean, rstd, sum); });
}

absl::StatusOr<Kernel> LayerNormGrad(const Binding& b) {
  return Kernel([dy = b.in(0), x = b.in(1), mean = b.in(2), rstd = b.in(3), w = b.in_or_absent(4), dx = b.out(0),
                 dw = b.out_before_copy(1), db = b.out_before_copy(2),
                 copy = b.copy()] { device::LayerNormGrad(dy, x, mean, rstd, w, dx, dw, db, copy); });
}

absl::StatusOr<Kernel> LayerNormGradAccumulate(const Binding& b) {
  return Kernel([acc = b.in(0), dy = b.in(1), x = b.in(2), mean = b.in(3), rstd = b.in(4), w = b.in_or_absent(5),
                 out = b.out(0), dw = b.out_before_copy(1), db = b.out_before_copy(2),
                 copy = b.copy()] { device::LayerNormGradAccumulate(acc, dy, x, mean, rstd, w, out, dw, db, copy); });
}

absl::StatusOr<Kernel> L2Normalize(const Binding& b) {
  return Kernel([eps = b.attr<double>("eps"), x = b.in(0), y = b.out(0), rnorm = b.out(1)] {
    device::L2Normalize(x, eps, y, rnorm);
  });
}

absl::StatusOr<Kernel> L2NormalizeGrad(const Binding& b) {
  return Kernel([eps = b.attr<double>("eps"), dy = b.in(0), x = b.in(1), rnorm = b.in(2), dx = b.out(0)] {
    device::L2NormalizeGrad(dy, x, rnorm, eps, dx);
  });
}

absl::StatusOr<Kernel> RopeTable(const Binding& b) {
  return Kernel([inv_freq = b.attr<std::vector<double>>("inv_freq"), scale = b.attr<double>("attention_scale", 1.0),
                 positions = b.positions(b.out(0).dims.rank() - 2), start = b.in_or_absent(0), cos = b.out(0),
                 sin = b.out(1)] { device::RopeTable(inv_freq, scale, positions, start, cos, sin); });
}

absl::StatusOr<Kernel> Positions(const Binding& b) {
  return Kernel([positions = b.positions(b.out(0).dims.rank() - 1), start = b.in_or_absent(0), y = b.out(0)] {
    device::Positions(positions, start, y);
  });
}

absl::StatusOr<Kernel> Rotary(const Binding& b) {
  const device::RotaryStyle style =
      b.attr<std::string>("style") == "half" ? device::RotaryStyle::kHalf : device::RotaryStyle::kInterleaved;
  const device::RotaryDirection direction =
      b.attr<bool>("inverse") ? device::RotaryDirection::kInverse : device::RotaryDirection::kForward;
  const int64_t parts = b.attr<int64_t>("parts"), all = b.in(0).dims[2];
  const int64_t heads = parts > 0 ? all / parts * b.attr<int64_t>("limit") : all;
  return Kernel([style, direction, heads, x = b.in(0), cos = b.in(1), sin = b.in(2), y = b.out(0)] {
    device::Rotary(x, cos, sin, style, direction, y, heads);
  });
}

// A node of attention or its gradient.
struct AttentionOf {
  TensorView q, k, v;
  device::AttentionExtras extras;
  device::AttentionParameters parameters;
  TensorView out, lse;          // the gradient reads them
  TensorView dout, dq, dk, dv;  // the gradient's; dout without data: the forward

  bool is_gradient() const { return dout.data != nullptr; }
};

// Heads [first, first + count) of x [B,S,G,D], which lie `x.dims[2] * x.dims[3]` elements apart from token to token.
TensorView HeadsOf(const TensorView& x, int64_t first, int64_t count) {
  TensorView heads = x;
  heads.data = x.as<char>() + first * x.dims[3] * kernels::SizeOf(x.dtype);
  heads.dims[2] = count;
  return heads;
}

// The slopes are those of the heads that this rank holds.
AttentionOf AttentionOfNode(const Binding& b) {
  const graph::Op& op = b.request.node->op;
  const bool is_joined = op == "attention_joined" || op == "attention_joined_grad";
  const bool is_gradient = op == "attention_grad" || op == "attention_joined_grad";
  const size_t q = is_gradient ? 1 : 0, k = is_joined ? q : q + 1, after = is_joined ? q + 1 : q + 3;
  AttentionOf node;
  node.parameters = {.causal = b.attr<bool>("causal"), .scale = b.attr<double>("scale")};
  const int64_t group = b.attr<int64_t>("group"), kv_heads = b.in(q).dims[2] / (group + 2), heads = group * kv_heads;
  if (is_joined) {
    node.q = HeadsOf(b.in(q), 0, heads);
    node.k = HeadsOf(b.in(q), heads, kv_heads);
    node.v = HeadsOf(b.in(q), heads + kv_heads, kv_heads);
    node.parameters.pitch = b.in(q).dims[2] * b.in(q).dims[3];
  } else {
    node.q = b.in(q);
    node.k = b.in(q + 1);
    node.v = b.in(q + 2);
  }
  const std::vector<double> slopes = b.attr<std::vector<double>>("alibi_slopes");
  // Where heads are joined each rank has as many of each kind.
  const int64_t first_head = is_joined ? b.in_begin(q, 2) / b.in(q).dims[2] * heads : b.in_begin(q, 2);
  for (int64_t h = 0; !slopes.empty() && h < node.q.dims[2]; ++h) {
    const size_t head = static_cast<size_t>(first_head + h);
    node.parameters.alibi_slopes.push_back(head < slopes.size() ? slopes[head] : 0);  // a padded head has no slope
  }
  node.parameters.queries = b.runs(q, 0);
  node.parameters.keys = b.runs(k, b.attr<int64_t>("shift"));
  if (!is_gradient) {
    const bool goes_on = op == "attention_continue";
    node.extras = {b.in_or_absent(after + (goes_on ? 2 : 0)), goes_on ? b.in(after) : TensorView(),
                   goes_on ? b.in(after + 1) : TensorView()};
    node.out = b.out(0);
    node.lse = b.out(1);
    return node;
  }
  node.dout = b.in(0);
  node.out = b.in(after);
  node.lse = b.in(after + 1);
  node.extras.first_keys = b.in_or_absent(after + 2);
  node.dq = is_joined ? HeadsOf(b.out(0), 0, heads) : b.out(0);
  node.dk = is_joined ? HeadsOf(b.out(0), heads, kv_heads) : b.out(1);
  node.dv = is_joined ? HeadsOf(b.out(0), heads + kv_heads, kv_heads) : b.out(2);
  return node;
}

absl::StatusOr<Kernel> Attention(const Binding& b) {
  return Kernel([n = AttentionOfNode(b)] {
    if (n.is_gradient()) {
      device::AttentionGrad(n.dout, n.q, n.k, n.v, n.out, n.lse, n.extras.first_keys, n.parameters, n.dq, n.dk, n.dv);
    } else {
      device::Attention(n.q, n.k, n.v, n.extras, n.parameters, n.out, n.lse);
    }
  });
}

absl::StatusOr<Kernel> Embedding(const Binding& b) {
  return Kernel([offset = b.in_begin(0, 0), table = b.in(0), ids = b.in(1), y = b.out(0)] {
    device::Embedding(table, ids, offset, y);
  });
}

absl::StatusOr<Kernel> EmbeddingGrad(const Binding& b) {
  return Kernel([offset = b.out_begin(0, 0), dy = b.in(0), ids = b.in(1), dtable = b.out(0)] {
    device::EmbeddingGrad(dy, ids, offset, dtable);
  });
}

absl::StatusOr<Kernel> Softmax(const Binding& b) {
  return Kernel([x = b.in(0), y = b.out(0)] { device::Softmax(x, y); });
}

absl::StatusOr<Kernel> SoftmaxGrad(const Binding& b) {
  return Kernel([dy = b.in(0), y = b.in(1), dx = b.out(0)] { device::SoftmaxGrad(dy, y, dx); });
}

device::TopKWeights TopKWeightsOf(const Binding& b) {
  return b.attr<bool>("normalize") ? device::TopKWeights::kNormalized : device::TopKWeights::kPlain;
}

absl::StatusOr<Kernel> TopK(const Binding& b) {
  return Kernel([kind = TopKWeightsOf(b), p = b.in(0), weights = b.out(0), ids = b.out(1)] {
    device::TopK(p, kind, weights, ids);
  });
}

absl::StatusOr<Kernel> TopKGrad(const Binding& b) {
  return Kernel([kind = TopKWeightsOf(b), dw = b.in(0), p = b.in(1), ids = b.in(2), dp = b.out(0)] {
    device::TopKGrad(dw, p, ids, kind, dp);
  });
}

absl::StatusOr<Kernel> ExpertCounts(const Binding& b) {
  return Kernel([ids = b.in(0), counts = b.out(0)] { device::ExpertCounts(ids, counts); });
}

absl::StatusOr<Kernel> ExpertMatmul(const Binding& b) {
  const device::ExpertWeights kind =
      b.attr<bool>("transposed") ? device::ExpertWeights::kTransposed : device::ExpertWeights::kPlain;
  return Kernel([kind, offset = b.in_begin(2, 0), x = b.in(0), ids = b.in(1), w = b.in(2), y = b.out(0)] {
    device::ExpertMatmul(x, ids, w, kind, offset, y);
  });
}

absl::StatusOr<Kernel> ExpertMatmulGrad(const Binding& b) {
  return Kernel([offset = b.out_begin(0, 0), x = b.in(0), dy = b.in(1), ids = b.in(2), dw = b.out(0)] {
    device::ExpertMatmulGrad(x, dy, ids, offset, dw);
  });
}

absl::StatusOr<Kernel> DispatchSlots(const Binding& b) {
  return Kernel([num_experts = b.attr<int64_t>("num_experts"), ids = b.in(0), places = b.out(0), row_ids = b.out(1),
                 overflow = b.out(2)] { device::DispatchSlots(ids, num_experts, places, row_ids, overflow); });
}

absl::StatusOr<Kernel> Dispatch(const Binding& b) {
  return Kernel([x = b.in(0), places = b.in(1), rows = b.out(0)] { device::Dispatch(x, places, rows); });
}

absl::StatusOr<Kernel> Combine(const Binding& b) {
  return Kernel([rows = b.in(0), places = b.in(1), y = b.out(0)] { device::Combine(rows, places, y); });
}

absl::StatusOr<Kernel> MulRows(const Binding& b) {
  return Kernel([x = b.in(0), w = b.in(1), y = b.out(0)] { device::MulRows(x, w, y); });
}

absl::StatusOr<Kernel> DotRows(const Binding& b) {
  return Kernel([x = b.in(0), z = b.in(1), y = b.out(0)] { device::DotRows(x, z, y); });
}

absl::StatusOr<Kernel> CrossEntropy(const Binding& b) {
  const int vocabulary = b.in(0).dims.rank() - 1;
  return Kernel([offset = b.in_begin(0, vocabulary), bounds = b.in_bounds(1), logits = b.in(0), targets = b.in(1),
                 loss = b.out(0), count = b.out(1),
                 lse = b.out(2)] { device::CrossEntropy(logits, targets, offset, bounds, loss, count, lse); });
}

absl::StatusOr<Kernel> LogSumExp(const Binding& b) {
  return Kernel([valid = b.in_bounds(0).back(), x = b.in(0), y = b.out(0)] { device::LogSumExp(x, valid, y); });
}

absl::StatusOr<Kernel> CrossEntropySum(const Binding& b) {
  const int vocabulary = b.in(0).dims.rank() - 1;
  return Kernel([offset = b.in_begin(0, vocabulary), valid = b.in_bounds(0).back(), bounds = b.in_bounds(1),
                 logits = b.in(0), targets = b.in(1), lse = b.in(2), loss = b.out(0), count = b.out(1)] {
    device::CrossEntropySum(logits, targets, lse, offset, valid, bounds, loss, count);
  });
}

absl::StatusOr<Kernel> CrossEntropyGrad(const Binding& b) {
  const int vocabulary = b.in(0).dims.rank() - 1;
  return Kernel([offset = b.in_begin(0, vocabulary), bounds = b.in_bounds(1), logits = b.in(0), targets = b.in(1),
                 lse = b.in(2), dloss = b.in(3), dlogits = b.out(0)] {
    device::CrossEntropyGrad(logits, targets, lse, dloss, offset, bounds, dlogits);
  });
}

absl::StatusOr<Kernel> Dropout(const Binding& b) {
  const device::DropoutParameters p{
      .rate = b.attr<double>("rate"), .key = b.attr<int64_t>("key"), .seed = b.attr<int64_t>("seed")};
  device::SamplePart part;
  const Dims& logical = b.logical(0);
  part.logical = Dims(logical.begin() + 1, logical.end());
  for (int d = 1; d < logical.rank(); ++d) part.offset.push_back(b.in_begin(0, d));
  if (b.attr<int64_t>("zigzag") > 0) {
    part.positions = graph::Positions(b.order(logical[1]), b.in_range(0, 1));
  }
  return Kernel([p, part, x = b.in(0), step = b.in(1), sample = b.in(2), y = b.out(0)] {
    device::Dropout(x, step, sample, part, p, y);
  });
}

absl::StatusOr<Kernel> IsFinite(const Binding& b) {
  return Kernel([x = b.in(0), y = b.out(0)] { device::IsFinite(x, y); });
}

std::vector<device::BoundedTensor> BoundedOperands(const Binding& b) {
  std::vector<device::BoundedTensor> operands;
  for (size_t i = 0; i < b.request.in.size(); ++i) operands.push_back({b.in(i), b.in_bounds(i)});
  return operands;
}

absl::StatusOr<Kernel> SumSquares(const Binding& b) {
  return Kernel([xs = BoundedOperands(b), y = b.out(0)] { device::SumSquares(xs, y); });
}

device::AdamWParameters AdamWParametersOf(const Binding& b) {
  return {.beta1 = b.attr<double>("beta1"),
          .beta2 = b.attr<double>("beta2"),
          .epsilon = b.attr<double>("epsilon"),
          .weight_decay = b.attr<double>("weight_decay")};
}

device::AdamWScalars AdamWScalarsOf(const Binding& b) { return {b.in(4), b.in(5), b.in(6), b.in(7)}; }

absl::StatusOr<Kernel> AdamW(const Binding& b) {
  return Kernel([p = AdamWParametersOf(b), scalars = AdamWScalarsOf(b), w = b.in(0), m = b.in(1), v = b.in(2),
                 g = b.in(3), new_w = b.out(0), new_m = b.out(1), new_v = b.out(2),
                 copy = b.out_or_absent(3)] { device::AdamW(w, m, v, g, scalars, p, new_w, new_m, new_v, copy); });
}

absl::StatusOr<Kernel> LrSchedule(const Binding& b) {
  const std::string type = b.attr<std::string>("type");
  device::LrSchedule schedule{.learning_rate = b.attr<double>("learning_rate"),
                              .warmup_steps = b.attr<int64_t>("warmup_steps"),
                              .max_steps = b.attr<int64_t>("max_steps"),
                              .min_lr_ratio = b.attr<double>("min_lr_ratio")};
  schedule.type = type == "cosine"   ? device::LrScheduleType::kCosine
                  : type == "linear" ? device::LrScheduleType::kLinear
                                     : device::LrScheduleType::kConstant;
  return Kernel([schedule, step = b.in(0), y = b.out(0)] { device::LearningRate(schedule, step, y); });
}

absl::StatusOr<Kernel> MaskPadding(const Binding& b) {
  return Kernel([bounds = b.in_bounds(0), x = b.in(0), y = b.out(0)] {
    device::CopyBytes(x.data, y.data, y.bytes());
    device::MaskPadding(y, bounds);
  });
}

const std::map<std::string, Prepare>& Table() {
  using device::BinaryOp;
  using device::UnaryGradOp;
  using device::UnaryOp;
  static const std::map<std::string, Prepare> table = {
      {"adamw", AdamW},
      {"add", Binary<BinaryOp::kAdd>},
      {"add_layer_norm", AddLayerNorm},
      {"add_rms_norm", AddRmsNorm},
      {"add_scalar", AddScalar},
      {"attention", Attention},
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
      {"cross_entropy", CrossEntropy},
      {"cross_entropy_grad", CrossEntropyGrad},
      {"cross_entropy_sum", CrossEntropySum},
      {"dispatch", Dispatch},
      {"dispatch_slots", DispatchSlots},
      {"div", Binary<BinaryOp::kDiv>},
      {"dot_rows", DotRows},
      {"dropout", Dropout},
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
      {"lr_schedule", LrSchedule},
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

// Errors: as KernelTable::Prepare; `name` is the device's.
absl::StatusOr<Kernel> PrepareKernel(const KernelRequest& request, const char* name) {
  const auto it = Table().find(std::string(request.node->op.name()));
  if (it == Table().end()) {
    std::string types;
    for (const TensorView& x : request.in) absl::StrAppend(&types, types.empty() ? "" : ", ", kernels::Name(x.dtype));
    return absl::UnimplementedError(
        absl::StrCat("the ", name, " has no kernel for ", request.node->op.name(), "(", types, ")"));
  }
  return it->second(Binding{request});
}

// Of the table, sorted.
std::vector<std::string> KernelOps() {
  std::vector<std::string> names;
  for (const auto& [op, prepare] : Table()) names.push_back(op);
  return names;
}

}  // namespace
}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROGRAM_BIND_KERNELS_H_
