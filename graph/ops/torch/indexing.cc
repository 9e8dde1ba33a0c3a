// Comparisons, and ops along one dim: compare gather scatter_add cumsum flip.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/facts.h"
#include "graph/ops/torch/torch_ops.h"

namespace tacc::graph {
namespace {

using Ints = std::vector<int64_t>;

absl::Status CheckDim(const OpCall& call, const TensorType& x) {
  const int64_t dim = call.attr<int64_t>("dim");
  if (dim >= 0 && dim < x.rank()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("dim=", dim, " of ", x.ToString(), "; wanted 0 to ", x.rank() - 1));
}

// One factor a dim, but for `whole`, along which an element is made of others.
Rule RuleAlong(const OpCall& call, const Ints& whole) {
  Rule rule = PointwiseRule(call, {{0}});
  for (auto* side : {&rule.in, &rule.out}) {
    for (std::vector<int>& dims : *side) {
      for (int64_t d : whole) dims[d] = Rule::kNone;
    }
  }
  return rule;
}

// An op along the attribute `dim`, linear in its first operand.
OpDef Along(const char* name, int operands) {
  OpDef op;
  op.name = name;
  op.min_operands = op.max_operands = operands;
  op.attrs = {{"dim", AttrKind::kInt}};
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return RuleAlong(call, {call.attr<int64_t>("dim")}); };
  return op;
}

// Whether a `comparison` b, element by element; b has a's dims or the last of them. comparison: eq ne lt le gt ge.
void AddCompare(OpTable& table) {
  OpDef op;
  op.name = "compare";
  op.min_operands = op.max_operands = 2;
  op.attrs = {{"comparison", AttrKind::kString}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const std::string comparison = call.attr<std::string>("comparison");
    constexpr const char* kNames[] = {"eq", "ne", "lt", "le", "gt", "ge"};
    if (std::find(std::begin(kNames), std::end(kNames), comparison) == std::end(kNames)) {
      return absl::InvalidArgumentError(absl::StrCat("comparison=", comparison, "; wanted eq, ne, lt, le, gt or ge"));
    }
    TACC_RETURN_IF_ERROR(WantLastDims("b", call.in(1), "a", call.in(0).dims));
    if (call.in(0).dtype != call.in(1).dtype)
      return Wanted("b", call.in(1), absl::StrCat("elements of type ", Name(call.in(0).dtype)));
    return Types{{DType::kBool, call.in(0).dims}};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return PointwiseRule(call, {}); };
  op.no_gradient = true;
  table.Add(op);
}

absl::Status WantIndices(const OpCall& call, const TensorType& x) {
  TACC_RETURN_IF_ERROR(CheckDim(call, x));
  const TensorType& ids = call.in(1);
  TensorType wanted{DType::kI64, x.dims};
  if (ids.rank() == x.rank()) wanted.dims[call.attr<int64_t>("dim")] = ids.dims[call.attr<int64_t>("dim")];
  return WantType("ids", ids, wanted);
}

// y[.., i, ..] = x[.., ids[.., i, ..], ..] along `dim`; other dims of ids are x's. Each part of ids needs all of x.
void AddGather(OpTable& table) {
  OpDef op = Along("gather", 2);
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    const int64_t dim = call.attr<int64_t>("dim");
    Rule rule;
    rule.out = {AddFactors(rule, call.out(0).dims)};
    rule.in = {rule.out[0], rule.out[0]};
    rule.in[0][dim] = Rule::kNone;
    rule.linear_in = {{0}};
    return rule;
  };
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(WantIndices(call, call.in(0)));
    return Types{{call.in(0).dtype, call.in(1).dims}};
  };
  op.derive = [](VjpCall& call) {
    if (!call.needs(0)) return absl::OkStatus();
    Builder& b = call.builder;
    const TensorType x = b.type(call.node.operands[0]);  // a copy: the builder adds values
    const int64_t dim = GetAttr<int64_t>(call.node.attrs, "dim");
    const ValueId dy = b.Cast(call.cotangents[0], AccumulationType(x.dtype));
    const ValueId sum = b.Add("scatter_add", {dy, call.node.operands[1]}, {{"dim", dim}, {"extent", x.dims[dim]}});
    call.gradients[0] = b.Cast(sum, x.dtype);
    return absl::OkStatus();
  };
  table.Add(op);
}

// y, of `extent` elements along `dim`: y[.., ids[.., i, ..], ..] is the sum of x[.., i, ..] of all such i.
void AddScatterAdd(OpTable& table) {
  OpDef op = Along("scatter_add", 2);
  op.attrs.push_back({"extent", AttrKind::kInt});
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType& x = call.in(0);
    TACC_RETURN_IF_ERROR(WantFloating("x", x));
    if (AccumulationType(x.dtype) != x.dtype) return Wanted("x", x, "f32 or f64 elements");
    TACC_RETURN_IF_ERROR(CheckDim(call, x));
    TACC_RETURN_IF_ERROR(WantType("ids", call.in(1), {DType::kI64, x.dims}));
    TensorType y = x;
    y.dims[call.attr<int64_t>("dim")] = call.attr<int64_t>("extent");
    if (call.attr<int64_t>("extent") < 0) return Wanted("y", y, "an extent of 0 or more");
    return Types{y};
  };
  op.derive = [](VjpCall& call) {
    const Attrs attrs = {{"dim", call.node.attrs.at("dim")}};
    if (call.needs(0))
      call.gradients[0] = call.builder.Add("gather", {call.cotangents[0], call.node.operands[1]}, attrs);
    return absl::OkStatus();
  };
  table.Add(op);
}

// y[.., i, ..] = x[.., 0, ..] + ... + x[.., i, ..].
void AddCumulativeSum(OpTable& table) {
  OpDef op = Along("cumsum", 1);
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType& x = call.in(0);
    if (!IsFloating(x.dtype) && x.dtype != DType::kI64) return Wanted("x", x, "floating or i64 elements");
    TACC_RETURN_IF_ERROR(CheckDim(call, x));
    return Types{x};
  };
  op.workspace_bytes = [](const OpCall&, const Target&) { return int64_t{64} << 10; };  // of a scan by blocks
  op.derive = [](VjpCall& call) {  // the same from the last element on
    Builder& b = call.builder;
    const Attrs reversed = {{"dims", Ints{GetAttr<int64_t>(call.node.attrs, "dim")}}};
    const ValueId dy = b.Cast(call.cotangents[0], b.type(call.node.operands[0]).dtype);
    call.gradients[0] = b.Add("flip", {b.Add("cumsum", {b.Add("flip", {dy}, reversed)}, call.node.attrs)}, reversed);
    return absl::OkStatus();
  };
  table.Add(op);
}

// x with the order of elements reversed along `dims`.
void AddFlip(OpTable& table) {
  OpDef op;
  op.name = "flip";
  op.min_operands = op.max_operands = 1;
  op.attrs = {{"dims", AttrKind::kInts}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const Ints dims = call.attr<Ints>("dims");
    for (size_t i = 0; i < dims.size(); ++i) {
      if (dims[i] < 0 || dims[i] >= call.in(0).rank() || (i > 0 && dims[i] <= dims[i - 1])) {
        return absl::InvalidArgumentError(absl::StrCat("dims=", DimsToString(dims), " of ", call.in(0).ToString(),
                                                       "; wanted some of them, ascending"));
      }
    }
    return Types{call.in(0)};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return RuleAlong(call, call.attr<Ints>("dims")); };
  op.workspace_bytes = [](const OpCall&, const Target&) { return int64_t{1} << 10; };  // strides
  op.derive = [](VjpCall& call) {
    call.gradients[0] = call.builder.Add("flip", {call.cotangents[0]}, call.node.attrs);
    return absl::OkStatus();
  };
  table.Add(op);
}

}  // namespace

void AddIndexingOps(OpTable& table) {
  AddCompare(table);
  AddGather(table);
  AddScatterAdd(table);
  AddCumulativeSum(table);
  AddFlip(table);
}

}  // namespace tacc::graph
