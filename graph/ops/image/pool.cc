// Images [N,C,spatial...] made smaller or larger, channel by channel: max_pool avg_pool interpolate and their
// gradients, whose attribute `image` has the spatial dims of the image that was read.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/facts.h"
#include "graph/ops/target.h"
#include "graph/ops/window.h"

namespace tacc::graph {
namespace {

constexpr char kImage[] = "image";

// Spatial dims are needed whole; every channel of every image is alone.
Rule PlaneRule(const OpCall& call, std::vector<std::vector<int>> linear_in) {
  Rule rule;
  const int n = rule.AddFactor(call.in(0).dims[0]), c = rule.AddFactor(call.in(0).dims[1]);
  std::vector<int> dims(call.in(0).rank(), Rule::kNone);
  dims[0] = n, dims[1] = c;
  rule.in.assign(call.operands.size(), dims);
  rule.out.assign(call.results.size(), dims);
  rule.linear_in = std::move(linear_in);
  return rule;
}

OpDef Plane(const char* name, int num_operands, std::vector<AttrSpec> attrs) {
  OpDef op;
  op.name = name;
  op.min_operands = op.max_operands = num_operands;
  op.attrs = std::move(attrs);
  op.workspace_bytes = [](const OpCall& call, const Target& target) {
    return target.PlaneBytes(call.in(0), call.out(0));
  };
  return op;
}

OpDef GradientOf(const OpDef& op, int num_operands) {
  OpDef grad = Plane(absl::StrCat(op.name, "_grad").c_str(), num_operands, op.attrs);
  grad.attrs.push_back({kImage, AttrKind::kInts});
  grad.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return PlaneRule(call, {{0}}); };
  return grad;
}

// The image that `dy` is a gradient behind, of whose like `infer` gives what dy must be.
template <typename Infer>
absl::StatusOr<Types> InferGradient(const OpCall& call, const Infer& infer) {
  const TensorType& dy = call.in(0);
  TACC_RETURN_IF_ERROR(WantImage("dy", dy));
  TACC_ASSIGN_OR_RETURN(const Dims image, SpatialAttr(call, kImage, dy.rank() - 2, 0, {}));
  const TensorType x{dy.dtype, ImageDims(dy.dims[0], dy.dims[1], image)};
  OpCall forward = call;
  forward.operands = {x};
  TACC_ASSIGN_OR_RETURN(const Types results, infer(forward));
  TACC_RETURN_IF_ERROR(WantType("dy", dy, results[0]));
  for (size_t i = 1; i < call.operands.size(); ++i)
    TACC_RETURN_IF_ERROR(WantType("indices", call.operands[i], results[i]));
  return Types{x};
}

// The node's gradient of its image, from `rest` behind dy.
absl::Status DerivePlane(VjpCall& call, const std::vector<ValueId>& rest) {
  Builder& b = call.builder;
  const TensorType x = b.type(call.node.operands[0]);
  Attrs attrs = call.node.attrs;
  attrs[kImage] = SpatialDims(x);
  std::vector<ValueId> operands = {b.Cast(call.cotangents[0], x.dtype)};
  operands.insert(operands.end(), rest.begin(), rest.end());
  call.gradients[0] = b.Add(absl::StrCat(call.node.op.name(), "_grad"), operands, std::move(attrs));
  return absl::OkStatus();
}

// Windows of a pool: their padding is at most half of them, so that every one has an element of the image.
absl::StatusOr<Dims> PoolWindows(const OpCall& call, const TensorType& x) {
  const Dims spatial = SpatialDims(x);
  TACC_ASSIGN_OR_RETURN(const Dims kernel, SpatialAttr(call, "kernel", spatial.size(), 1, {}));
  TACC_ASSIGN_OR_RETURN(const Window window, WindowOf(call, kernel, /*default_stride=*/kernel));
  for (size_t i = 0; i < kernel.size(); ++i) {
    const int64_t extent = (kernel[i] - 1) * window.dilation[i] + 1;
    if (2 * window.padding[i] <= extent) continue;
    return absl::InvalidArgumentError(absl::StrCat("padding=", DimsToString(window.padding),
                                                   "; wanted at most half of what the kernel spans, ", extent,
                                                   " in spatial dim ", i));
  }
  return NumWindows(window, spatial, call.attr<bool>("ceil_mode") ? LastWindow::kBegins : LastWindow::kInside);
}

absl::StatusOr<Types> InferMaxPool(const OpCall& call) {
  const TensorType& x = call.in(0);
  TACC_RETURN_IF_ERROR(WantImage("x", x));
  TACC_ASSIGN_OR_RETURN(const Dims windows, PoolWindows(call, x));
  double elements = 1;
  for (int64_t d : SpatialDims(x)) elements *= static_cast<double>(d);
  if (elements > std::numeric_limits<int32_t>::max()) return Wanted("x", x, "less than 2^31 elements a channel");
  const Dims dims = ImageDims(x.dims[0], x.dims[1], windows);
  return Types{{x.dtype, dims}, {DType::kI32, dims}};
}

void AddMaxPool(OpTable& table) {
  std::vector<AttrSpec> attrs = WindowAttrs();
  attrs.push_back({"kernel", AttrKind::kInts});
  attrs.push_back({"ceil_mode", AttrKind::kBool, AttrSpec::kOptional});
  OpDef op = Plane("max_pool", 1, attrs);
  op.num_results = 2;
  op.infer = InferMaxPool;
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return PlaneRule(call, {}); };
  op.derive = [](VjpCall& call) { return DerivePlane(call, {call.node.results[1]}); };
  table.Add(op);
  OpDef grad = GradientOf(op, 2);
  grad.infer = [](const OpCall& call) { return InferGradient(call, InferMaxPool); };
  table.Add(grad);
}

// Windows of `kernel`, or `size` windows of about equal extent that cover the image (adaptive).
absl::StatusOr<Types> InferAvgPool(const OpCall& call) {
  const TensorType& x = call.in(0);
  TACC_RETURN_IF_ERROR(WantImage("x", x));
  const bool is_adaptive = call.attrs->count("kernel") == 0;
  if (is_adaptive != (call.attrs->count("size") == 1))
    return absl::InvalidArgumentError("wanted one of the attributes kernel and size");
  if (call.attr<int64_t>("divisor", 1) < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("divisor=", call.attr<int64_t>("divisor"), "; wanted a number of at least 1"));
  }
  Dims windows;
  if (is_adaptive) {
    for (const char* name : {"stride", "padding", "ceil_mode", "count_include_pad", "divisor"}) {
      if (call.attrs->count(name) > 0)
        return absl::InvalidArgumentError(absl::StrCat(name, " goes with kernel; here is size"));
    }
    TACC_ASSIGN_OR_RETURN(windows, SpatialAttr(call, "size", x.rank() - 2, 0, {}));
    const Dims spatial = SpatialDims(x);
    if (std::count(spatial.begin(), spatial.end(), 0) > 0) return Wanted("x", x, "spatial dims of at least 1");
  } else {
    TACC_ASSIGN_OR_RETURN(windows, PoolWindows(call, x));
  }
  return Types{{x.dtype, ImageDims(x.dims[0], x.dims[1], windows)}};
}

void AddAvgPool(OpTable& table) {
  OpDef op = Plane("avg_pool", 1,
                   {{"kernel", AttrKind::kInts, AttrSpec::kOptional},
                    {"stride", AttrKind::kInts, AttrSpec::kOptional},
                    {"padding", AttrKind::kInts, AttrSpec::kOptional},
                    {"ceil_mode", AttrKind::kBool, AttrSpec::kOptional},
                    {"count_include_pad", AttrKind::kBool, AttrSpec::kOptional},  // absent: true
                    {"divisor", AttrKind::kInt, AttrSpec::kOptional},             // absent: the elements of the window
                    {"size", AttrKind::kInts, AttrSpec::kOptional}});
  op.infer = InferAvgPool;
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return PlaneRule(call, {{0}}); };
  op.derive = [](VjpCall& call) { return DerivePlane(call, {}); };
  table.Add(op);
  OpDef grad = GradientOf(op, 1);
  grad.infer = [](const OpCall& call) { return InferGradient(call, InferAvgPool); };
  table.Add(grad);
}

absl::StatusOr<Types> InferInterpolate(const OpCall& call) {
  const TensorType& x = call.in(0);
  TACC_RETURN_IF_ERROR(WantImage("x", x));
  const std::string mode = call.attr<std::string>("mode");
  if (mode != "nearest" && mode != "nearest_exact" && mode != "linear" && mode != "cubic") {
    return absl::InvalidArgumentError(absl::StrCat("mode=", mode, "; wanted nearest, nearest_exact, linear or cubic"));
  }
  if (call.attr<bool>("align_corners") && mode[0] == 'n')
    return absl::InvalidArgumentError(absl::StrCat("align_corners goes with mode linear or cubic; here is ", mode));
  const size_t n = x.rank() - 2;
  TACC_ASSIGN_OR_RETURN(const Dims size, SpatialAttr(call, "size", n, 1, {}));
  const Dims spatial = SpatialDims(x);
  if (std::count(spatial.begin(), spatial.end(), 0) > 0) return Wanted("x", x, "spatial dims of at least 1");
  if (call.attrs->count("scales") > 0) {
    const auto scales = call.attr<std::vector<double>>("scales");
    const bool fits =
        scales.size() == n && std::all_of(scales.begin(), scales.end(), [](double s) { return s > 1e-6 && s < 1e6; });
    if (!fits) {
      return absl::InvalidArgumentError(
          absl::StrCat("scales: wanted ", n, " factors between 1e-6 and 1e6, one a spatial dim"));
    }
  }
  return Types{{x.dtype, ImageDims(x.dims[0], x.dims[1], size)}};
}

void AddInterpolate(OpTable& table) {
  OpDef op = Plane("interpolate", 1,
                   {{"size", AttrKind::kInts},
                    {"mode", AttrKind::kString},
                    {"align_corners", AttrKind::kBool, AttrSpec::kOptional},
                    // Places are found by these factors of the dims; absent: by the dims themselves.
                    {"scales", AttrKind::kFloats, AttrSpec::kOptional}});
  op.infer = InferInterpolate;
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return PlaneRule(call, {{0}}); };
  op.derive = [](VjpCall& call) { return DerivePlane(call, {}); };
  table.Add(op);
  OpDef grad = GradientOf(op, 1);
  grad.infer = [](const OpCall& call) { return InferGradient(call, InferInterpolate); };
  table.Add(grad);
}

}  // namespace

void AddPoolOps(OpTable& table) {
  AddMaxPool(table);
  AddAvgPool(table);
  AddInterpolate(table);
}

}  // namespace tacc::graph
