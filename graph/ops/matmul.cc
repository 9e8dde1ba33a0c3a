// einsum(a, b); einsum_accumulate(acc, a, b) = acc + einsum(a, b): acc has the result's dims (a sum of gradients) or
// the last of them (a bias); einsum_joined(a, b1, b2, ...) = einsum(a, b) of the b that has them one behind the other
// in dim 0. The first two may be of a part of a: [start, limit) of `parts` equal parts of its dim `dim`.
#include <numeric>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/einsum_spec.h"
#include "graph/ops/facts.h"
#include "graph/ops/target.h"

namespace tacc::graph {
namespace {

// Checks the attributes that make a part of operand `a`.
absl::Status CheckPart(const OpCall& call, int a) {
  const int64_t dim = call.attr<int64_t>("dim"), start = call.attr<int64_t>("start"),
                limit = call.attr<int64_t>("limit"), parts = call.attr<int64_t>("parts");
  if (parts == 0 && start == 0 && limit == 0) return absl::OkStatus();
  const TensorType& type = call.in(a);
  if (dim < 0 || dim >= type.rank() || start < 0 || start >= limit || limit > parts || type.dims[dim] % parts != 0)
    return Wanted("a", type, absl::StrCat("parts ", start, " to ", limit, " of ", parts, " in dim ", dim));
  return absl::OkStatus();
}

// Checks that the operands from `first` on are alike but for the extent of dim 0.
absl::Status CheckParts(const OpCall& call, int first) {
  TACC_RETURN_IF_ERROR(WantFloating("part 0", call.in(first)));
  if (call.in(first).rank() == 0) return Wanted("part 0", call.in(first), "a dim to join in");
  for (size_t i = first + 1; i < call.operands.size(); ++i) {
    TensorType wanted = call.in(first);
    if (call.operands[i].rank() > 0) wanted.dims[0] = call.operands[i].dims[0];
    TACC_RETURN_IF_ERROR(WantType(absl::StrCat("part ", i - first), call.operands[i], wanted));
  }
  return absl::OkStatus();
}

// The type of einsum(a, b) with elements of type `dtype`.
absl::StatusOr<TensorType> InferProduct(const OpCall& call, int a, DType dtype) {
  TACC_ASSIGN_OR_RETURN(const EinsumSpec spec, ParseEinsum(call.attr<std::string>("spec")));
  TACC_RETURN_IF_ERROR(WantFloating("a", call.in(a)));
  if (call.in(a + 1).dtype != call.in(a).dtype) {
    return Wanted("b", call.in(a + 1), absl::StrCat("elements of a's type, ", Name(call.in(a).dtype)));
  }
  TACC_RETURN_IF_ERROR(CheckPart(call, a));
  const Factors factors = FactorsOf(call, a);
  TACC_ASSIGN_OR_RETURN(auto extents, EinsumExtents(spec, factors.a, factors.b));
  TensorType y{dtype, {}};
  for (char c : spec.y) y.dims.push_back(extents.at(c));
  return y;
}

// One factor a letter.
absl::StatusOr<Rule> ProductRule(const OpCall& call, int a) {
  TACC_ASSIGN_OR_RETURN(const EinsumSpec spec, ParseEinsum(call.attr<std::string>("spec")));
  const Factors factors = FactorsOf(call, a);
  TACC_ASSIGN_OR_RETURN(auto extents, EinsumExtents(spec, factors.a, factors.b));
  Rule rule;
  std::map<char, int> factor;
  for (const std::string* letters : {&spec.a, &spec.b}) {
    for (char c : *letters) {
      if (factor.count(c) == 0) factor[c] = rule.AddFactor(extents.at(c));
    }
  }
  auto dims = [&](const std::string& letters) {
    std::vector<int> list;
    for (char c : letters) list.push_back(factor.at(c));
    return list;
  };
  if (a == 1) rule.in.push_back(dims(spec.y.substr(spec.y.size() - call.in(0).dims.size())));
  rule.in.push_back(dims(spec.a));
  if (call.attr<int64_t>("parts") > 0) {
    Factor& of_part = rule.factors[rule.in.back()[call.attr<int64_t>("dim")]];
    of_part.replicate = of_part.joined = true;
  }
  const std::vector<int> b = dims(spec.b);
  const int num_parts = static_cast<int>(call.operands.size()) - a - 1;
  if (num_parts > 1) rule.factors[b[0]].replicate = rule.factors[b[0]].joined = true;
  rule.in.insert(rule.in.end(), num_parts, b);
  rule.out = {dims(spec.y)};
  return rule;
}

double ProductFlops(const OpCall& call, int a) {
  const auto spec = ParseEinsum(call.attr<std::string>("spec"));
  if (!spec.ok()) return 0;
  const Factors factors = FactorsOf(call, a);
  const auto extents = EinsumExtents(*spec, factors.a, factors.b);
  if (!extents.ok()) return 0;
  double flops = 2;
  for (const auto& [letter, extent] : *extents) flops *= static_cast<double>(extent);
  return flops;
}

int64_t ProductBytes(const OpCall& call, int a) {
  const Factors factors = FactorsOf(call, a);
  return factors.a.bytes() + factors.b.bytes() + (a > 0 ? call.in(0).bytes() : 0) + call.out(0).bytes();
}

int64_t ProductWorkspace(const OpCall& call, int a, const Target& target) {
  const auto spec = ParseEinsum(call.attr<std::string>("spec"));
  if (!spec.ok()) return 0;
  const Factors factors = FactorsOf(call, a);
  const ProductCall product{*spec, factors.a, factors.b, call.out(0), call.attr<int64_t>("parts") > 0};
  return a > 0 ? target.EinsumAccumulateBytes(product) : target.EinsumBytes(product);
}

// The gradient of the right operand, usually a weight, comes in the accumulation type: it is summed over micro-batches
// and ranks.
absl::Status DeriveEinsum(VjpCall& call) {
  Builder& b = call.builder;
  const ValueId x = call.node.operands[0], w = call.node.operands[1];
  if (GetAttr<int64_t>(call.node.attrs, "parts") > 0)
    return absl::UnimplementedError("einsum has no derivative with respect to a part");
  const DType dtype = b.type(x).dtype;
  TACC_ASSIGN_OR_RETURN(const EinsumSpec spec, ParseEinsum(GetAttr<std::string>(call.node.attrs, "spec")));
  const ValueId dy = b.Cast(call.cotangents[0], dtype);
  if (call.needs(0)) call.gradients[0] = b.Einsum(absl::StrCat(spec.y, ",", spec.b, "->", spec.a), dy, w);
  if (call.needs(1)) {
    Attrs attrs = {{"spec", absl::StrCat(spec.y, ",", spec.a, "->", spec.b)}};
    if (AccumulationType(dtype) != dtype) attrs["dtype"] = std::string(Name(AccumulationType(dtype)));
    call.gradients[1] = b.Add("einsum", {dy, x}, std::move(attrs));
  }
  return absl::OkStatus();
}

}  // namespace

void AddMatmulOps(OpTable& table) {
  const std::vector<AttrSpec> part = {{"dim", AttrKind::kInt, AttrSpec::kOptional},
                                      {"parts", AttrKind::kInt, AttrSpec::kOptional},
                                      {"start", AttrKind::kInt, AttrSpec::kOptional},
                                      {"limit", AttrKind::kInt, AttrSpec::kOptional}};
  OpDef einsum;
  einsum.name = "einsum";
  einsum.min_operands = einsum.max_operands = 2;
  einsum.attrs = {{"spec", AttrKind::kString}, {"dtype", AttrKind::kString, AttrSpec::kOptional}};
  einsum.attrs.insert(einsum.attrs.end(), part.begin(), part.end());
  einsum.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_ASSIGN_OR_RETURN(TensorType y, InferProduct(call, 0, DTypeAttr(call, call.in(0).dtype)));
    TACC_RETURN_IF_ERROR(WantFloating("the result", y));
    return Types{y};
  };
  einsum.derive = DeriveEinsum;
  einsum.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    TACC_ASSIGN_OR_RETURN(Rule rule, ProductRule(call, 0));
    rule.linear_in = {{0}, {1}};
    return rule;
  };
  einsum.flops = [](const OpCall& call) { return ProductFlops(call, 0); };
  einsum.touched_bytes = [](const OpCall& call) { return ProductBytes(call, 0); };
  einsum.is_matmul = true;
  einsum.workspace_bytes = [](const OpCall& call, const Target& target) { return ProductWorkspace(call, 0, target); };
  table.Add(einsum);

  OpDef accumulate;
  accumulate.name = "einsum_accumulate";
  accumulate.min_operands = accumulate.max_operands = 3;
  accumulate.attrs = {{"spec", AttrKind::kString}};
  accumulate.attrs.insert(accumulate.attrs.end(), part.begin(), part.end());
  accumulate.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const DType acc = call.in(0).dtype, operand = call.in(1).dtype;
    TACC_ASSIGN_OR_RETURN(TensorType y, InferProduct(call, 1, acc == operand ? acc : AccumulationType(operand)));
    TACC_RETURN_IF_ERROR(WantLastDims("acc", call.in(0), "y", y.dims));
    TACC_RETURN_IF_ERROR(WantType("acc", call.in(0), {y.dtype, call.in(0).dims}));
    return Types{y};
  };
  accumulate.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    TACC_ASSIGN_OR_RETURN(Rule rule, ProductRule(call, 1));
    rule.linear_in = {{0, 1}, {0, 2}};
    rule.addends = {0};
    return rule;
  };
  accumulate.flops = [](const OpCall& call) { return ProductFlops(call, 1); };
  accumulate.touched_bytes = [](const OpCall& call) { return ProductBytes(call, 1); };
  accumulate.is_matmul = true;
  accumulate.workspace_bytes = [](const OpCall& call, const Target& target) {
    return ProductWorkspace(call, 1, target);
  };
  accumulate.reuses = ReuseIfSameType(0);
  table.Add(accumulate);

  OpDef joined;
  joined.name = "einsum_joined";
  joined.min_operands = 3;
  joined.max_operands = -1;
  joined.attrs = {{"spec", AttrKind::kString}};
  joined.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(CheckParts(call, 1));
    TACC_ASSIGN_OR_RETURN(TensorType y, InferProduct(call, 0, call.in(0).dtype));
    return Types{y};
  };
  joined.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    TACC_ASSIGN_OR_RETURN(Rule rule, ProductRule(call, 0));
    std::vector<int> parts(call.operands.size() - 1);
    std::iota(parts.begin(), parts.end(), 1);
    rule.linear_in = {{0}, parts};
    return rule;
  };
  joined.flops = [](const OpCall& call) { return ProductFlops(call, 0); };
  joined.is_matmul = true;
  joined.workspace_bytes = [](const OpCall& call, const Target& target) { return ProductWorkspace(call, 0, target); };
  joined.first_part = 1;
  table.Add(joined);
}

}  // namespace tacc::graph
