// convolution(x, w[, bias]) -> y; convolution_transposed(y, w[, bias]) -> x, which is also a convolution's gradient of
// x; convolution_grad_weight(dy, x) -> dw. Shapes: samples N, input channels C, output channels O, groups G; x
// [N,C,spatial...], w [O,C/G,kernel...], y [N,O,windows...] of every one of them, whichever is the result.
#include <numeric>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/facts.h"
#include "graph/ops/target.h"
#include "graph/ops/window.h"

namespace tacc::graph {
namespace {

constexpr char kSize[] = "size";      // of the result's spatial dims: several have the same windows
constexpr char kKernel[] = "kernel";  // spatial dims of w
constexpr char kGroups[] = "groups";

int64_t Groups(const OpCall& call) { return call.attr<int64_t>(kGroups, 1); }

// Groups that divide the input channels and the output channels of w [O,C/G,...].
absl::Status CheckGroups(const OpCall& call, int64_t in_channels, int64_t out_channels) {
  const int64_t groups = Groups(call);
  if (groups >= 1 && in_channels >= 1 && in_channels % groups == 0 && out_channels % groups == 0)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("groups=", groups, "; wanted a divisor of ", in_channels,
                                                 " input channels and of ", out_channels, " output channels"));
}

absl::Status WantBias(const OpCall& call, int64_t channels) {
  return call.operands.size() < 3 ? absl::OkStatus() : WantType("bias", call.in(2), {call.in(0).dtype, {channels}});
}

absl::Status WantWeight(const TensorType& w, const TensorType& image) {
  TACC_RETURN_IF_ERROR(WantRank("w", w, image.rank()));
  return w.dtype == image.dtype ? absl::OkStatus()
                                : Wanted("w", w, absl::StrCat("elements of type ", Name(image.dtype)));
}

absl::StatusOr<Types> InferConvolution(const OpCall& call) {
  const TensorType &x = call.in(0), &w = call.in(1);
  TACC_RETURN_IF_ERROR(WantImage("x", x));
  TACC_RETURN_IF_ERROR(WantWeight(w, x));
  TACC_RETURN_IF_ERROR(CheckGroups(call, x.dims[1], w.dims[0]));
  const Dims kernel = SpatialDims(w);
  TACC_RETURN_IF_ERROR(WantDims("w", w, ImageDims(w.dims[0], x.dims[1] / Groups(call), kernel)));
  TACC_RETURN_IF_ERROR(WantBias(call, w.dims[0]));
  TACC_ASSIGN_OR_RETURN(const Window window, WindowOf(call, kernel, Dims(kernel.size(), 1)));
  TACC_ASSIGN_OR_RETURN(const Dims windows, NumWindows(window, SpatialDims(x)));
  return Types{{x.dtype, ImageDims(x.dims[0], w.dims[0], windows)}};
}

absl::StatusOr<Types> InferTransposed(const OpCall& call) {
  const TensorType &y = call.in(0), &w = call.in(1);
  TACC_RETURN_IF_ERROR(WantImage("y", y));
  TACC_RETURN_IF_ERROR(WantWeight(w, y));
  const int64_t channels = w.dims[1] * Groups(call);
  TACC_RETURN_IF_ERROR(CheckGroups(call, channels, y.dims[1]));
  const Dims kernel = SpatialDims(w);
  TACC_RETURN_IF_ERROR(WantDims("w", w, ImageDims(y.dims[1], w.dims[1], kernel)));
  TACC_RETURN_IF_ERROR(WantBias(call, channels));
  TACC_ASSIGN_OR_RETURN(const Window window, WindowOf(call, kernel, Dims(kernel.size(), 1)));
  TACC_ASSIGN_OR_RETURN(const Dims size, SpatialAttr(call, kSize, kernel.size(), 0, {}));
  TACC_ASSIGN_OR_RETURN(const Dims windows, NumWindows(window, size));
  TACC_RETURN_IF_ERROR(WantDims("y", y, ImageDims(y.dims[0], y.dims[1], windows)));
  return Types{{y.dtype, ImageDims(y.dims[0], channels, size)}};
}

// Summed over samples, micro-batches and ranks, so in the accumulation type.
absl::StatusOr<Types> InferGradWeight(const OpCall& call) {
  const TensorType &dy = call.in(0), &x = call.in(1);
  TACC_RETURN_IF_ERROR(WantImage("x", x));
  TACC_RETURN_IF_ERROR(WantRank("dy", dy, x.rank()));
  TACC_RETURN_IF_ERROR(CheckGroups(call, x.dims[1], dy.dims[1]));
  TACC_ASSIGN_OR_RETURN(const Dims kernel, SpatialAttr(call, kKernel, x.rank() - 2, 1, {}));
  TACC_ASSIGN_OR_RETURN(const Window window, WindowOf(call, kernel, Dims(kernel.size(), 1)));
  TACC_ASSIGN_OR_RETURN(const Dims windows, NumWindows(window, SpatialDims(x)));
  TACC_RETURN_IF_ERROR(WantType("dy", dy, {x.dtype, ImageDims(x.dims[0], dy.dims[1], windows)}));
  return Types{{AccumulationType(x.dtype), ImageDims(dy.dims[1], x.dims[1] / Groups(call), kernel)}};
}

// Samples, and with one group both kinds of channels, else the groups: each has its own input and output channels, and
// those of a group stay together. `x`, `w`, `y`, `bias` are the dims of each.
struct ConvolutionRule {
  Rule rule;
  std::vector<int> x, w, y, bias;
};

ConvolutionRule RuleOf(const OpCall& call, const TensorType& x, const TensorType& y) {
  ConvolutionRule c;
  const int n = c.rule.AddFactor(x.dims[0]);
  c.x = c.w = c.y = std::vector<int>(x.rank(), Rule::kNone);
  c.x[0] = c.y[0] = n;
  if (Groups(call) > 1) {
    c.x[1] = c.y[1] = c.w[0] = c.rule.AddFactor(Groups(call));
    c.rule.factors.back().even = true;
  } else {
    c.y[1] = c.w[0] = c.rule.AddFactor(y.dims[1]);
    c.x[1] = c.w[1] = c.rule.AddFactor(x.dims[1]);
  }
  return c;
}

// `reduced`: the channels that are summed over, of `in` and w. With a bias they stay whole, since it is added once.
Rule ProductRule(const OpCall& call, ConvolutionRule c, const std::vector<int>& in, const std::vector<int>& out) {
  c.rule.in = {in, c.w};
  c.rule.out = {out};
  if (call.operands.size() < 3) {
    c.rule.linear_in = {{0}, {1}};
    return c.rule;
  }
  if (Groups(call) == 1) c.rule.factors[in[1]].replicate = true;
  c.rule.in.push_back({out[1]});
  c.rule.linear_in = {{0, 2}, {1, 2}};
  return c.rule;
}

// Each element of y, from each element of the kernel and each input channel of its group.
double Flops(const TensorType& y, int64_t channels_of_group, const Dims& kernel) {
  double flops = 2.0 * static_cast<double>(y.num_elements()) * static_cast<double>(channels_of_group);
  for (int64_t k : kernel) flops *= static_cast<double>(k);
  return flops;
}

Attrs WindowOfNode(const Node& node) {
  Attrs attrs = node.attrs;
  attrs.erase(kSize);
  return attrs;
}

// The derivative of either product, which `gradient_op` computes: from (x, w) or (y, w) to the other image, with
// (y, x) or (x, y) as what the weight's gradient reads.
absl::Status Derive(VjpCall& call, const char* gradient_op, bool is_transposed) {
  Builder& b = call.builder;
  const Node& node = call.node;
  const ValueId in = node.operands[0], w = node.operands[1];
  const DType dtype = b.type(in).dtype;
  const ValueId d = b.Cast(call.cotangents[0], dtype);
  if (call.needs(0)) {
    Attrs attrs = WindowOfNode(node);
    if (!is_transposed) attrs[kSize] = SpatialDims(b.type(in));
    call.gradients[0] = b.Add(gradient_op, {d, w}, std::move(attrs));
  }
  if (call.needs(1)) {
    Attrs attrs = WindowOfNode(node);
    attrs[kKernel] = SpatialDims(b.type(w));
    call.gradients[1] = b.Add("convolution_grad_weight",
                              is_transposed ? std::vector<ValueId>{in, d} : std::vector<ValueId>{d, in}, attrs);
  }
  if (node.operands.size() > 2 && call.needs(2)) {
    Dims dims(b.type(d).rank() - 1, 0);  // all but the channels
    std::iota(dims.begin() + 1, dims.end(), 2);
    Attrs attrs = {{"dims", dims}};
    if (AccumulationType(dtype) != dtype) attrs["dtype"] = std::string(Name(AccumulationType(dtype)));
    call.gradients[2] = b.Add("reduce_sum", {d}, std::move(attrs));
  }
  return absl::OkStatus();
}

// Of w [O,C/G,kernel...], whichever of the three is the result.
int64_t Workspace(const OpCall& call, const Target& target, ConvolutionCall::Result result, const TensorType& x,
                  const TensorType& w, const TensorType& y) {
  const auto window = WindowOf(call, SpatialDims(w), Dims(w.rank() - 2, 1));
  if (!window.ok()) return 0;
  return target.ConvolutionBytes({result, x, w, y, *window, call.operands.size() > 2});
}

OpDef Product(const char* name) {
  OpDef op;
  op.name = name;
  op.min_operands = 2;
  op.max_operands = 3;
  op.attrs = WindowAttrs();
  op.attrs.push_back({kGroups, AttrKind::kInt, AttrSpec::kOptional});
  op.is_matmul = true;
  return op;
}

}  // namespace

void AddConvolutionOps(OpTable& table) {
  OpDef convolution = Product("convolution");
  convolution.infer = InferConvolution;
  convolution.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    const ConvolutionRule c = RuleOf(call, call.in(0), call.out(0));
    return ProductRule(call, c, c.x, c.y);
  };
  convolution.derive = [](VjpCall& call) { return Derive(call, "convolution_transposed", /*is_transposed=*/false); };
  convolution.flops = [](const OpCall& call) {
    return Flops(call.out(0), call.in(1).dims[1], SpatialDims(call.in(1)));
  };
  convolution.workspace_bytes = [](const OpCall& call, const Target& target) {
    return Workspace(call, target, ConvolutionCall::Result::kY, call.in(0), call.in(1), call.out(0));
  };
  table.Add(convolution);

  OpDef transposed = Product("convolution_transposed");
  transposed.attrs.push_back({kSize, AttrKind::kInts});
  transposed.infer = InferTransposed;
  transposed.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    const ConvolutionRule c = RuleOf(call, call.out(0), call.in(0));
    return ProductRule(call, c, c.y, c.x);
  };
  transposed.derive = [](VjpCall& call) { return Derive(call, "convolution", /*is_transposed=*/true); };
  transposed.flops = [](const OpCall& call) { return Flops(call.in(0), call.in(1).dims[1], SpatialDims(call.in(1))); };
  transposed.workspace_bytes = [](const OpCall& call, const Target& target) {
    return Workspace(call, target, ConvolutionCall::Result::kX, call.out(0), call.in(1), call.in(0));
  };
  table.Add(transposed);

  OpDef grad = Product("convolution_grad_weight");
  grad.max_operands = 2;
  grad.attrs.push_back({kKernel, AttrKind::kInts});
  grad.infer = InferGradWeight;
  grad.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    ConvolutionRule c = RuleOf(call, call.in(1), call.in(0));
    c.rule.in = {c.y, c.x};
    c.rule.out = {c.w};
    c.rule.linear_in = {{0}, {1}};
    return c.rule;
  };
  grad.flops = [](const OpCall& call) { return Flops(call.in(0), call.out(0).dims[1], SpatialDims(call.out(0))); };
  grad.workspace_bytes = [](const OpCall& call, const Target& target) {
    return Workspace(call, target, ConvolutionCall::Result::kW, call.in(1), call.out(0), call.in(0));
  };
  table.Add(grad);
}

}  // namespace tacc::graph
