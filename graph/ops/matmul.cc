// einsum(a, b), and einsum_accumulate(acc, a, b) = acc + einsum(a, b): acc has the result's dims (a sum of gradients)
// or the last of them (a bias).
#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/cuda_workspace.h"
#include "graph/ops/einsum_spec.h"
#include "graph/ops/facts.h"
#include "graph/ops/workspace.h"

namespace tacc::graph {
namespace {

// The type of einsum(a, b) with elements of type `dtype`.
absl::StatusOr<TensorType> InferProduct(const OpCall& call, int a, DType dtype) {
  TACC_ASSIGN_OR_RETURN(const EinsumSpec spec, ParseEinsum(call.attr<std::string>("spec")));
  TACC_RETURN_IF_ERROR(WantFloating("a", call.in(a)));
  if (call.in(a + 1).dtype != call.in(a).dtype) {
    return Wanted("b", call.in(a + 1), absl::StrCat("elements of a's type, ", Name(call.in(a).dtype)));
  }
  TACC_ASSIGN_OR_RETURN(auto extents, EinsumExtents(spec, call.in(a), call.in(a + 1)));
  TensorType y{dtype, {}};
  for (char c : spec.y) y.dims.push_back(extents.at(c));
  return y;
}

// One factor a letter.
absl::StatusOr<Rule> ProductRule(const OpCall& call, int a) {
  TACC_ASSIGN_OR_RETURN(const EinsumSpec spec, ParseEinsum(call.attr<std::string>("spec")));
  TACC_ASSIGN_OR_RETURN(auto extents, EinsumExtents(spec, call.in(a), call.in(a + 1)));
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
  rule.in.push_back(dims(spec.b));
  rule.out = {dims(spec.y)};
  return rule;
}

double ProductFlops(const OpCall& call, int a) {
  const auto spec = ParseEinsum(call.attr<std::string>("spec"));
  if (!spec.ok()) return 0;
  const auto extents = EinsumExtents(*spec, call.in(a), call.in(a + 1));
  if (!extents.ok()) return 0;
  double flops = 2;
  for (const auto& [letter, extent] : *extents) flops *= static_cast<double>(extent);
  return flops;
}

using Workspace = int64_t (*)(const EinsumSpec&, const TensorType&, const TensorType&, const TensorType&,
                              const Target&);
int64_t ProductWorkspace(const OpCall& call, int a, const Target& target, Workspace workspace) {
  const auto spec = ParseEinsum(call.attr<std::string>("spec"));
  if (!spec.ok()) return 0;
  if (target.kind == Target::Kind::kCuda)
    return CudaEinsumWorkspaceBytes(*spec, call.in(a), call.in(a + 1), call.out(0));
  return workspace(*spec, call.in(a), call.in(a + 1), call.out(0), target);
}

// The gradient of the right operand, usually a weight, comes in the accumulation type: it is summed over micro-batches
// and ranks.
absl::Status DeriveEinsum(VjpCall& call) {
  Builder& b = call.builder;
  const ValueId x = call.node.operands[0], w = call.node.operands[1];
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
  OpDef einsum;
  einsum.name = "einsum";
  einsum.min_operands = einsum.max_operands = 2;
  einsum.attrs = {{"spec", AttrKind::kString}, {"dtype", AttrKind::kString, AttrSpec::kOptional}};
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
  einsum.is_matmul = true;
  einsum.workspace_bytes = [](const OpCall& call, const Target& target) {
    return ProductWorkspace(call, 0, target, EinsumWorkspaceBytes);
  };
  table.Add(einsum);

  OpDef accumulate;
  accumulate.name = "einsum_accumulate";
  accumulate.min_operands = accumulate.max_operands = 3;
  accumulate.attrs = {{"spec", AttrKind::kString}};
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
  accumulate.is_matmul = true;
  accumulate.workspace_bytes = [](const OpCall& call, const Target& target) {
    return ProductWorkspace(call, 1, target, EinsumAccumulateWorkspaceBytes);
  };
  accumulate.reuses = ReuseIfSameType(0);
  table.Add(accumulate);
}

}  // namespace tacc::graph
