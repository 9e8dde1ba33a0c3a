// rms_norm layer_norm l2_normalize and their gradients, over the last dim; the first two also with the residual's add
// before the norm and after its gradient, which may also read a narrower x than the norm did, and write a narrower copy
// of what it makes.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/facts.h"
#include "graph/ops/target.h"

namespace tacc::graph {
namespace {

// Only the forward asks: the compiler makes the others of it.
absl::Status WantEps(const OpCall& call) {
  const auto eps = call.attr<double>("eps");
  if (std::isfinite(eps) && eps >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("eps is ", eps, "; wanted a number of at least 0"));
}

absl::Status WantRows(absl::string_view name, const TensorType& x) {
  TACC_RETURN_IF_ERROR(WantFloating(name, x));
  return x.rank() >= 1 ? absl::OkStatus() : Wanted(name, x, "at least one dim");
}

// One number a row, in x's accumulation type.
TensorType RowType(const TensorType& x) { return {AccumulationType(x.dtype), Dims(x.dims.begin(), x.dims.end() - 1)}; }

absl::Status WantWeight(absl::string_view name, const TensorType& w, const TensorType& x) {
  TACC_RETURN_IF_ERROR(WantFloating(name, w));
  return WantDims(name, w, {x.dims.back()});
}

// dy may be narrower or wider than x: passes drop a cast before it.
absl::Status WantGradient(const TensorType& dy, const TensorType& x) {
  TACC_RETURN_IF_ERROR(WantFloating("dy", dy));
  return WantDims("dy", dy, x.dims);
}

// A gradient of a weight, summed over all rows.
TensorType WeightGradientType(const TensorType& x) { return {AccumulationType(x.dtype), {x.dims.back()}}; }

// Gradients take the attribute `copy`: their last result is then the first one, cast to that narrower type. Passes ask
// for it after partition.
constexpr char kCopy[] = "copy";
bool HasCopy(const OpCall& call) { return call.attrs->count(kCopy) > 0; }

absl::Status AddCopy(const OpCall& call, Types& results) {
  if (!HasCopy(call)) return absl::OkStatus();
  TACC_ASSIGN_OR_RETURN(const DType copy, ParseDType(call.attr<std::string>(kCopy)));
  const DType dtype = results[0].dtype;
  if (!IsFloating(copy) || ByteSize(copy) >= ByteSize(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("copy=", Name(copy), "; wanted a floating type narrower than the gradient's ", Name(dtype)));
  }
  results.push_back({copy, results[0].dims});
  return absl::OkStatus();
}

// Rows of the copy may be written over those of operand `dy`, which have been read by then.
std::vector<int> ReusesForCopy(const OpCall& call, int dy) {
  std::vector<int> reuses(call.results.size(), -1);
  if (HasCopy(call) && call.in(dy) == call.results.back()) reuses.back() = dy;
  return reuses;
}

// Gradients take the attribute `dx`: x is then a copy of what the norm read, which was of that wider type, and so is
// its gradient. Passes ask for it after partition.
constexpr char kDx[] = "dx";

// What the norm read, for its gradient of operand `x`.
absl::StatusOr<TensorType> NormedType(const OpCall& call, int x) {
  TensorType type = call.in(x);
  const auto dx = call.attrs->find(kDx);
  if (dx == call.attrs->end()) return type;
  TACC_ASSIGN_OR_RETURN(const DType dtype, ParseDType(call.attr<std::string>(kDx)));
  if (!IsFloating(dtype) || ByteSize(dtype) <= ByteSize(type.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("dx=", Name(dtype), "; wanted a floating type wider than that of x, ", Name(type.dtype)));
  }
  type.dtype = dtype;
  return type;
}

TensorType ResultType(const OpCall& call) { return {DTypeAttr(call, call.in(0).dtype), call.in(0).dims}; }

// A factor per dim of x; the last is needed whole. `in` and `out` tell each tensor's part: 'x' all dims, 'r' one number
// a row, 'w' a weight over the last dim.
Rule NormRule(const Dims& x, absl::string_view in, absl::string_view out, std::vector<std::vector<int>> linear_in) {
  Rule rule;
  const std::vector<int> all = AddFactors(rule, x);
  rule.factors[all.back()].replicate = true;
  auto dims = [&](char part) { return part == 'x' ? all : part == 'r' ? Leading(all) : std::vector<int>{all.back()}; };
  for (char part : in) rule.in.push_back(dims(part));
  for (char part : out) rule.out.push_back(dims(part));
  rule.linear_in = std::move(linear_in);
  return rule;
}

// Linear in dy, the first operand; but what is rounded for a copy cannot be summed later. `out` names no copy.
Rule GradientRule(const OpCall& call, absl::string_view in, absl::string_view out) {
  if (!HasCopy(call)) return NormRule(call.in(1).dims, in, out, {{0}});
  return NormRule(call.in(1).dims, in, absl::StrCat(out, "x"), {});
}

// The call without operand `operand`.
OpCall Without(const OpCall& call, int operand) {
  OpCall rest = call;
  rest.operands.erase(rest.operands.begin() + operand);
  return rest;
}

// What the norm sees of add_NORM(a, b, ...).
OpCall OfSum(const OpCall& call) {
  OpCall rest = Without(call, 1);
  rest.operands[0].dtype = Promote(call.in(0).dtype, call.in(1).dtype);
  if (!rest.results.empty()) rest.results.pop_back();
  return rest;
}

// add_NORM(a, b, ...) -> NORM(s, ...), s with s = a + b, of equal dims and rounded as `add` does. Passes make it after
// derivatives have been taken, so it has none.
OpDef WithAddBefore(const OpDef& norm) {
  OpDef op = norm;
  op.name = absl::StrCat("add_", norm.name);
  ++op.min_operands, ++op.max_operands, ++op.num_results;
  op.derive = nullptr;
  op.infer = [infer = norm.infer](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(WantFloating("a", call.in(0)));
    TACC_RETURN_IF_ERROR(WantFloating("b", call.in(1)));
    TACC_RETURN_IF_ERROR(WantDims("b", call.in(1), call.in(0).dims));
    const OpCall rest = OfSum(call);
    TACC_ASSIGN_OR_RETURN(Types results, infer(rest));
    results.push_back(rest.in(0));
    return results;
  };
  op.rule = [rule_of = norm.rule](const OpCall& call) -> absl::StatusOr<Rule> {
    TACC_ASSIGN_OR_RETURN(Rule rule, rule_of(OfSum(call)));
    const std::vector<int> x = rule.in[0];
    rule.in.insert(rule.in.begin(), x);
    rule.out.push_back(x);
    return rule;
  };
  op.reuses = [](const OpCall& call) {
    std::vector<int> reuses(call.results.size(), -1);
    const TensorType &a = call.in(0), &b = call.in(1), &sum = call.results.back();
    if (b == call.out(0)) reuses[0] = 1;  // a row of y is written when its sum has been made
    reuses.back() = a == sum ? 0 : b == sum && reuses[0] < 0 ? 1 : -1;
    return reuses;
  };
  return op;
}

// NORM_grad_accumulate(acc, dy, ...) -> acc + dx, ... with dx, ... = NORM_grad(dy, ...), all of x's type; the copy, if
// there is one, is of the sum.
OpDef WithAddAfter(const OpDef& grad) {
  OpDef op = grad;
  op.name = absl::StrCat(grad.name, "_accumulate");
  ++op.min_operands, ++op.max_operands;
  op.infer = [infer = grad.infer](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_ASSIGN_OR_RETURN(Types results, infer(Without(call, 0)));
    TACC_RETURN_IF_ERROR(WantType("acc", call.in(0), results[0]));
    return results;
  };
  op.rule = [rule_of = grad.rule](const OpCall& call) -> absl::StatusOr<Rule> {
    TACC_ASSIGN_OR_RETURN(Rule rule, rule_of(Without(call, 0)));
    rule.in.insert(rule.in.begin(), rule.out[0]);
    if (!HasCopy(call)) rule.linear_in = {{0, 1}};
    return rule;
  };
  op.reuses = [](const OpCall& call) {
    std::vector<int> reuses = ReusesForCopy(call, 1);
    reuses[0] = 0;
    return reuses;
  };
  op.workspace_bytes = [bytes = grad.workspace_bytes](const OpCall& call, const Target& target) {
    return bytes(Without(call, 0), target);
  };
  return op;
}

void AddRmsNorm(OpTable& table) {
  OpDef op;
  op.name = "rms_norm";
  op.min_operands = op.max_operands = 2;
  op.num_results = 2;
  op.attrs = {{"eps", AttrKind::kFloat}, {"dtype", AttrKind::kString, AttrSpec::kOptional}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(WantEps(call));
    TACC_RETURN_IF_ERROR(WantRows("x", call.in(0)));
    TACC_RETURN_IF_ERROR(WantWeight("w", call.in(1), call.in(0)));
    TACC_RETURN_IF_ERROR(WantFloating("y", ResultType(call)));
    return Types{ResultType(call), RowType(call.in(0))};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return NormRule(call.in(0).dims, "xw", "xr", {}); };
  op.derive = [](VjpCall& call) {
    TACC_RETURN_IF_ERROR(NoCotangent(call, 1, "rstd"));
    Builder& b = call.builder;
    const ValueId x = call.node.operands[0], w = call.node.operands[1];
    const ValueId dy = b.Cast(call.cotangents[0], b.type(x).dtype);
    call.gradients = b.AddMany("rms_norm_grad", {dy, x, w, call.node.results[1]}, {}, 2);
    return absl::OkStatus();
  };
  table.Add(op);
  table.Add(WithAddBefore(op));

  OpDef grad;
  grad.name = "rms_norm_grad";
  grad.min_operands = grad.max_operands = 4;
  grad.num_results = -1;
  grad.attrs = {{kCopy, AttrKind::kString, AttrSpec::kOptional}, {kDx, AttrKind::kString, AttrSpec::kOptional}};
  grad.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(WantRows("x", call.in(1)));
    TACC_ASSIGN_OR_RETURN(const TensorType x, NormedType(call, 1));
    TACC_RETURN_IF_ERROR(WantGradient(call.in(0), x));
    TACC_RETURN_IF_ERROR(WantWeight("w", call.in(2), x));
    TACC_RETURN_IF_ERROR(WantType("rstd", call.in(3), RowType(x)));
    Types results{x, WeightGradientType(x)};
    TACC_RETURN_IF_ERROR(AddCopy(call, results));
    return results;
  };
  grad.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return GradientRule(call, "xxwr", "xw"); };
  grad.reuses = [](const OpCall& call) { return ReusesForCopy(call, 0); };
  grad.workspace_bytes = [](const OpCall& call, const Target& target) { return target.NormGradBytes(call.in(1), 1); };
  table.Add(grad);
  table.Add(WithAddAfter(grad));
}

void AddLayerNorm(OpTable& table) {
  OpDef op;
  op.name = "layer_norm";
  op.min_operands = 1;
  op.max_operands = 3;
  op.num_results = 3;
  op.attrs = {{"eps", AttrKind::kFloat}, {"dtype", AttrKind::kString, AttrSpec::kOptional}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(WantEps(call));
    TACC_RETURN_IF_ERROR(WantRows("x", call.in(0)));
    for (size_t i = 1; i < call.operands.size(); ++i)
      TACC_RETURN_IF_ERROR(WantWeight(i == 1 ? "w" : "b", call.operands[i], call.in(0)));
    TACC_RETURN_IF_ERROR(WantFloating("y", ResultType(call)));
    return Types{ResultType(call), RowType(call.in(0)), RowType(call.in(0))};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    return NormRule(call.in(0).dims, absl::string_view("xww").substr(0, call.operands.size()), "xrr", {});
  };
  op.derive = [](VjpCall& call) {
    TACC_RETURN_IF_ERROR(NoCotangent(call, 1, "mean"));
    TACC_RETURN_IF_ERROR(NoCotangent(call, 2, "rstd"));
    Builder& b = call.builder;
    const Node& node = call.node;
    constexpr const char* kAffine[] = {"none", "weight", "weight_bias"};
    const int num_weights = static_cast<int>(node.operands.size()) - 1;
    std::vector<ValueId> operands = {b.Cast(call.cotangents[0], b.type(node.operands[0]).dtype), node.operands[0],
                                     node.results[1], node.results[2]};
    if (num_weights > 0) operands.push_back(node.operands[1]);
    call.gradients =
        b.AddMany("layer_norm_grad", operands, {{"affine", std::string(kAffine[num_weights])}}, 1 + num_weights);
    return absl::OkStatus();
  };
  table.Add(op);
  table.Add(WithAddBefore(op));

  OpDef grad;
  grad.name = "layer_norm_grad";
  grad.min_operands = 4;
  grad.max_operands = 5;
  grad.num_results = -1;
  grad.attrs = {{"affine", AttrKind::kString},
                {kCopy, AttrKind::kString, AttrSpec::kOptional},
                {kDx, AttrKind::kString, AttrSpec::kOptional}};
  grad.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(WantRows("x", call.in(1)));
    TACC_ASSIGN_OR_RETURN(const TensorType x, NormedType(call, 1));
    TACC_RETURN_IF_ERROR(WantGradient(call.in(0), x));
    TACC_RETURN_IF_ERROR(WantType("mean", call.in(2), RowType(x)));
    TACC_RETURN_IF_ERROR(WantType("rstd", call.in(3), RowType(x)));
    const std::string affine = call.attr<std::string>("affine");
    if (affine != "none" && affine != "weight" && affine != "weight_bias") {
      return absl::InvalidArgumentError(absl::StrCat("affine=", affine, "; wanted none, weight or weight_bias"));
    }
    const size_t wanted = affine == "none" ? 4 : 5;
    if (call.operands.size() != wanted) {
      return absl::InvalidArgumentError(
          absl::StrCat("affine=", affine, " takes ", wanted, " operands, got ", call.operands.size()));
    }
    Types results{x};
    if (affine != "none") {
      TACC_RETURN_IF_ERROR(WantWeight("w", call.in(4), x));
      results.push_back(WeightGradientType(x));
    }
    if (affine == "weight_bias") results.push_back(WeightGradientType(x));
    TACC_RETURN_IF_ERROR(AddCopy(call, results));
    return results;
  };
  grad.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    return GradientRule(call, absl::string_view("xxrrw").substr(0, call.operands.size()),
                        absl::string_view("xww").substr(0, call.results.size() - HasCopy(call)));
  };
  grad.reuses = [](const OpCall& call) { return ReusesForCopy(call, 0); };
  grad.workspace_bytes = [](const OpCall& call, const Target& target) {
    return target.NormGradBytes(call.in(1), static_cast<int64_t>(call.results.size()) - 1 - HasCopy(call));
  };
  table.Add(grad);
  table.Add(WithAddAfter(grad));
}

void AddL2Normalize(OpTable& table) {
  OpDef op;
  op.name = "l2_normalize";
  op.min_operands = op.max_operands = 1;
  op.num_results = 2;
  op.attrs = {{"eps", AttrKind::kFloat}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(WantEps(call));
    TACC_RETURN_IF_ERROR(WantRows("x", call.in(0)));
    return Types{call.in(0), RowType(call.in(0))};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return NormRule(call.in(0).dims, "x", "xr", {}); };
  op.derive = [](VjpCall& call) {
    TACC_RETURN_IF_ERROR(NoCotangent(call, 1, "rnorm"));
    Builder& b = call.builder;
    const ValueId x = call.node.operands[0];
    call.gradients[0] = b.Add("l2_normalize_grad",
                              {b.Cast(call.cotangents[0], b.type(x).dtype), x, call.node.results[1]}, call.node.attrs);
    return absl::OkStatus();
  };
  table.Add(op);

  OpDef grad;
  grad.name = "l2_normalize_grad";
  grad.min_operands = grad.max_operands = 3;
  grad.attrs = {{"eps", AttrKind::kFloat}};
  grad.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType& x = call.in(1);
    TACC_RETURN_IF_ERROR(WantRows("x", x));
    TACC_RETURN_IF_ERROR(WantType("dy", call.in(0), x));
    TACC_RETURN_IF_ERROR(WantType("rnorm", call.in(2), RowType(x)));
    return Types{x};
  };
  grad.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return NormRule(call.in(1).dims, "xxr", "x", {{0}}); };
  table.Add(grad);
}

}  // namespace

void AddNormOps(OpTable& table) {
  AddRmsNorm(table);
  AddLayerNorm(table);
  AddL2Normalize(table);
}

}  // namespace tacc::graph
