// Pointwise arithmetic, casts, activations and their gradients.
#include <map>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/facts.h"

namespace tacc::graph {
namespace {

using Derive = std::function<absl::Status(VjpCall&)>;
using LinearIn = std::vector<std::vector<int>>;

// A pointwise op whose rule is PointwiseRule with `linear_in`.
OpDef Pointwise(const char* name, int operands, LinearIn linear_in) {
  OpDef op;
  op.name = name;
  op.min_operands = op.max_operands = operands;
  op.rule = [linear_in](const OpCall& call) -> absl::StatusOr<Rule> { return PointwiseRule(call, linear_in); };
  return op;
}

absl::StatusOr<Types> InferUnary(const OpCall& call) {
  TACC_RETURN_IF_ERROR(WantFloating("x", call.in(0)));
  return Types{call.in(0)};
}

// `make(builder, node, dy)` gives dx, of x's dims; dy has x's dtype.
using MakeGradient = std::function<ValueId(Builder&, const Node&, ValueId dy)>;

Derive DeriveUnary(MakeGradient make) {
  return [make](VjpCall& call) {
    Builder& b = call.builder;
    const DType dtype = b.type(call.node.operands[0]).dtype;
    if (call.needs(0)) call.gradients[0] = b.Cast(make(b, call.node, b.Cast(call.cotangents[0], dtype)), dtype);
    return absl::OkStatus();
  };
}

OpDef Unary(const char* name, LinearIn linear_in, MakeGradient make) {
  OpDef op = Pointwise(name, 1, std::move(linear_in));
  op.infer = InferUnary;
  op.reuses = ReuseIfSameType(0);
  op.derive = DeriveUnary(std::move(make));
  return op;
}

// NAME_grad(x, dy) -> dx.
OpDef UnaryGrad(const char* name) {
  OpDef op = Pointwise(name, 2, {{1}});
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(WantFloating("x", call.in(0)));
    TACC_RETURN_IF_ERROR(WantType("dy", call.in(1), call.in(0)));
    return Types{call.in(0)};
  };
  op.reuses = ReuseIfSameType(1);
  return op;
}

absl::StatusOr<Types> InferBinary(const OpCall& call) {
  const TensorType& a = call.in(0);
  const TensorType& b = call.in(1);
  TACC_RETURN_IF_ERROR(WantLastDims("b", b, "a", a.dims));
  if (a.dtype != b.dtype && !(IsFloating(a.dtype) && IsFloating(b.dtype))) {
    return Wanted("b", b, absl::StrCat("elements of type ", Name(a.dtype)));
  }
  if (a.dtype == DType::kBool) return Wanted("a", a, "numbers");
  return Types{{a.dtype == b.dtype ? a.dtype : Promote(a.dtype, b.dtype), a.dims}};
}

// The gradient of an operand from one with the result's dims: summed, in the accumulation type, over those that the
// operand lacks.
ValueId SumToRank(Builder& b, ValueId gradient, ValueId operand) {
  const int extra = b.type(gradient).rank() - b.type(operand).rank();
  if (extra <= 0) return b.Cast(gradient, b.type(operand).dtype);
  std::vector<int64_t> dims;
  for (int i = 0; i < extra; ++i) dims.push_back(i);
  Attrs attrs = {{"dims", dims}};
  const DType dtype = b.type(gradient).dtype, sum = AccumulationType(dtype);
  if (sum != dtype) attrs["dtype"] = std::string(Name(sum));
  return b.Add("reduce_sum", {gradient}, std::move(attrs));
}

using MakeBinaryGradient = std::function<ValueId(Builder&, const Node&, ValueId dy)>;

OpDef Binary(const char* name, LinearIn linear_in, MakeBinaryGradient da, MakeBinaryGradient db) {
  OpDef op = Pointwise(name, 2, std::move(linear_in));
  op.infer = InferBinary;
  op.reuses = [](const OpCall& call) {
    return std::vector<int>{call.in(0) == call.out(0) ? 0 : call.in(1) == call.out(0) ? 1 : -1};
  };
  op.derive = [da, db](VjpCall& call) {
    Builder& b = call.builder;
    const Node& node = call.node;
    const ValueId dy = call.cotangents[0];
    if (call.needs(0)) call.gradients[0] = b.Cast(da(b, node, dy), b.type(node.operands[0]).dtype);
    if (call.needs(1)) call.gradients[1] = SumToRank(b, db(b, node, dy), node.operands[1]);
    return absl::OkStatus();
  };
  return op;
}

// dy where a > b, else 0: relu's gradient at a - b.
ValueId WhereGreater(Builder& b, const Node& node, ValueId dy) {
  const ValueId difference = b.Add("sub", {node.operands[0], node.operands[1]});
  return b.Add("relu_grad", {difference, b.Cast(dy, b.type(difference).dtype)});
}

void AddArithmetic(OpTable& table) {
  const MakeBinaryGradient same = [](Builder&, const Node&, ValueId dy) { return dy; };
  const MakeBinaryGradient negated = [](Builder& b, const Node&, ValueId dy) { return b.Add("neg", {dy}); };
  const MakeBinaryGradient other = [](Builder& b, const Node& node, ValueId dy) {
    return b.Add("sub", {dy, WhereGreater(b, node, dy)});
  };
  table.Add(Binary("add", {{0, 1}}, same, same));
  table.Add(Binary("sub", {{0, 1}}, same, negated));
  table.Add(Binary(
      "mul", {{0}, {1}}, [](Builder& b, const Node& node, ValueId dy) { return b.Add("mul", {dy, node.operands[1]}); },
      [](Builder& b, const Node& node, ValueId dy) { return b.Add("mul", {dy, node.operands[0]}); }));
  table.Add(Binary(
      "div", {{0}}, [](Builder& b, const Node& node, ValueId dy) { return b.Add("div", {dy, node.operands[1]}); },
      [](Builder& b, const Node& node, ValueId dy) {
        return b.Add("neg", {b.Add("div", {b.Add("mul", {dy, node.results[0]}), node.operands[1]})});
      }));
  // max(a,b) = b + relu(a-b), min(a,b) = a - relu(a-b).
  table.Add(Binary("maximum", {}, WhereGreater, other));
  table.Add(Binary("minimum", {}, other, WhereGreater));
}

void AddUnaries(OpTable& table) {
  table.Add(Unary("neg", {{0}}, [](Builder& b, const Node&, ValueId dy) { return b.Add("neg", {dy}); }));
  table.Add(
      Unary("exp", {}, [](Builder& b, const Node& node, ValueId dy) { return b.Add("mul", {dy, node.results[0]}); }));
  table.Add(
      Unary("log", {}, [](Builder& b, const Node& node, ValueId dy) { return b.Add("div", {dy, node.operands[0]}); }));
  table.Add(Unary("sqrt", {}, [](Builder& b, const Node& node, ValueId dy) {
    return b.Scale(b.Add("div", {dy, node.results[0]}), 0.5);
  }));
  table.Add(Unary("rsqrt", {}, [](Builder& b, const Node& node, ValueId dy) {  // y' = -y^3 / 2
    const ValueId y = node.results[0];
    return b.Scale(b.Add("mul", {dy, b.Add("mul", {b.Add("square", {y}), y})}), -0.5);
  }));
  table.Add(Unary("reciprocal", {}, [](Builder& b, const Node& node, ValueId dy) {
    return b.Add("neg", {b.Add("mul", {dy, b.Add("square", {node.results[0]})})});
  }));
  table.Add(Unary("square", {}, [](Builder& b, const Node& node, ValueId dy) {
    return b.Scale(b.Add("mul", {dy, node.operands[0]}), 2.0);
  }));

  table.Add(Unary("log1p", {}, [](Builder& b, const Node& node, ValueId dy) {  // log(1 + x)
    return b.Add("div", {dy, b.Add("add_scalar", {node.operands[0]}, {{"value", 1.0}})});
  }));
  OpDef pow = Unary("pow", {}, [](Builder& b, const Node& node, ValueId dy) {
    const double exponent = GetAttr<double>(node.attrs, "exponent");
    return b.Scale(b.Add("mul", {dy, b.Add("pow", {node.operands[0]}, {{"exponent", exponent - 1}})}), exponent);
  });
  pow.attrs = {{"exponent", AttrKind::kFloat}};
  table.Add(pow);

  table.Add(Unary("sin", {}, [](Builder& b, const Node& node, ValueId dy) {
    return b.Add("mul", {dy, b.Add("cos", {node.operands[0]})});
  }));
  table.Add(Unary("cos", {}, [](Builder& b, const Node& node, ValueId dy) {
    return b.Add("neg", {b.Add("mul", {dy, b.Add("sin", {node.operands[0]})})});
  }));

  for (const char* name : {"tanh", "sigmoid", "silu"}) {
    const std::string grad = absl::StrCat(name, "_grad");
    table.Add(Unary(name, {},
                    [grad](Builder& b, const Node& node, ValueId dy) { return b.Add(grad, {node.operands[0], dy}); }));
    table.Add(UnaryGrad(grad.c_str()));
  }
  // The result is positive where x is, and the op behind it mostly keeps it anyway: then x need not be kept.
  table.Add(Unary("relu", {},
                  [](Builder& b, const Node& node, ValueId dy) { return b.Add("relu_grad", {node.results[0], dy}); }));
  table.Add(UnaryGrad("relu_grad"));

  OpDef gelu = Unary("gelu", {}, [](Builder& b, const Node& node, ValueId dy) {
    return b.Add("gelu_grad", {node.operands[0], dy}, node.attrs);
  });
  OpDef gelu_grad = UnaryGrad("gelu_grad");
  for (OpDef* op : {&gelu, &gelu_grad}) {
    op->attrs = {{"approximate", AttrKind::kString}};
    op->infer = [infer = op->infer](const OpCall& call) -> absl::StatusOr<Types> {
      const std::string approximate = call.attr<std::string>("approximate");
      if (approximate != "none" && approximate != "tanh") {
        return absl::InvalidArgumentError(absl::StrCat("approximate=", approximate, "; wanted none or tanh"));
      }
      return infer(call);
    };
    table.Add(*op);
  }

  OpDef scale =
      Unary("scale", {{0}}, [](Builder& b, const Node& node, ValueId dy) { return b.Add("scale", {dy}, node.attrs); });
  scale.attrs = {{"factor", AttrKind::kFloat}};
  table.Add(scale);

  OpDef add_scalar = Unary("add_scalar", {}, [](Builder&, const Node&, ValueId dy) { return dy; });
  add_scalar.attrs = {{"value", AttrKind::kFloat}};
  table.Add(add_scalar);

  OpDef clamp = Unary("clamp", {}, [](Builder& b, const Node& node, ValueId dy) {
    return b.Add("clamp_grad", {node.operands[0], dy}, node.attrs);
  });
  OpDef clamp_grad = UnaryGrad("clamp_grad");
  for (OpDef* op : {&clamp, &clamp_grad}) {
    op->attrs = {{"min", AttrKind::kFloat}, {"max", AttrKind::kFloat}};
    op->infer = [infer = op->infer](const OpCall& call) -> absl::StatusOr<Types> {
      if (!(call.attr<double>("min") <= call.attr<double>("max"))) {
        return absl::InvalidArgumentError(
            absl::StrCat("min=", call.attr<double>("min"), " is above max=", call.attr<double>("max")));
      }
      return infer(call);
    };
    table.Add(*op);
  }
}

// True when every value of `from` is a value of `to`: such a cast may stand before or after a sum.
bool Widens(DType from, DType to) {
  if (from == to || to == DType::kF64) return true;
  return to == DType::kF32 && (from == DType::kBF16 || from == DType::kF16);
}

void AddCast(OpTable& table) {
  OpDef op;
  op.name = "cast";
  op.min_operands = op.max_operands = 1;
  // of_summands=true: a pending operand passes to a narrower type too; each rank rounds its summand (gradients reduced
  // in bf16 by request).
  op.attrs = {{"dtype", AttrKind::kString}, {"of_summands", AttrKind::kBool, AttrSpec::kOptional}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    return Types{{DTypeAttr(call, DType::kF32), call.in(0).dims}};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    const bool passes = Widens(call.in(0).dtype, call.out(0).dtype) || call.attr<bool>("of_summands");
    return PointwiseRule(call, passes ? LinearIn{{0}} : LinearIn{});
  };
  op.reuses = ReuseIfSameType(0);
  op.derive = [](VjpCall& call) {
    Builder& b = call.builder;
    const DType dtype = b.type(call.node.operands[0]).dtype;
    if (call.needs(0) && IsFloating(dtype)) call.gradients[0] = b.Cast(call.cotangents[0], dtype);
    return absl::OkStatus();
  };
  table.Add(op);
}

void AddSwiglu(OpTable& table) {
  OpDef swiglu = Pointwise("swiglu", 2, {{1}});
  swiglu.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(WantFloating("gate", call.in(0)));
    TACC_RETURN_IF_ERROR(WantType("up", call.in(1), call.in(0)));
    return Types{call.in(0)};
  };
  swiglu.reuses = ReuseIfSameType(0);
  swiglu.derive = [](VjpCall& call) {
    Builder& b = call.builder;
    const ValueId gate = call.node.operands[0], up = call.node.operands[1];
    call.gradients = b.AddMany("swiglu_grad", {gate, up, b.Cast(call.cotangents[0], b.type(gate).dtype)}, {}, 2);
    return absl::OkStatus();
  };
  table.Add(swiglu);

  OpDef grad = Pointwise("swiglu_grad", 3, {{2}});
  grad.num_results = 2;
  grad.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(WantFloating("gate", call.in(0)));
    TACC_RETURN_IF_ERROR(WantType("up", call.in(1), call.in(0)));
    TACC_RETURN_IF_ERROR(WantType("dy", call.in(2), call.in(0)));
    return Types{call.in(0), call.in(0)};
  };
  grad.reuses = [](const OpCall&) { return std::vector<int>{0, 1}; };
  table.Add(grad);
}

// Rows of x are a gate and the up to it, one behind the other.
absl::StatusOr<TensorType> HalfOf(const OpCall& call) {
  TACC_RETURN_IF_ERROR(WantFloating("x", call.in(0)));
  TensorType half = call.in(0);
  if (half.rank() == 0 || half.dims.back() % 2 != 0) return Wanted("x", half, "an even last dim");
  half.dims.back() /= 2;
  return half;
}

Rule JoinedSwigluRule(const OpCall& call) {
  Rule rule;
  const std::vector<int> dims = AddFactors(rule, HalfOf(call)->dims);
  rule.factors[dims.back()].replicate = rule.factors[dims.back()].joined = true;
  rule.in.assign(call.operands.size(), dims);
  if (call.operands.size() == 2) rule.linear_in = {{1}};
  rule.out = {dims};
  return rule;
}

void AddJoinedSwiglu(OpTable& table) {
  OpDef swiglu;
  swiglu.name = "swiglu_joined";
  swiglu.min_operands = swiglu.max_operands = 1;
  swiglu.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_ASSIGN_OR_RETURN(TensorType y, HalfOf(call));
    return Types{y};
  };
  swiglu.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return JoinedSwigluRule(call); };
  table.Add(swiglu);

  OpDef grad = swiglu;
  grad.name = "swiglu_joined_grad";
  grad.min_operands = grad.max_operands = 2;
  grad.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_ASSIGN_OR_RETURN(const TensorType half, HalfOf(call));
    TACC_RETURN_IF_ERROR(WantType("dy", call.in(1), half));
    return Types{call.in(0)};
  };
  grad.reuses = ReuseIfSameType(0);
  table.Add(grad);
}

// a where cond is not 0, else b; cond is a scalar, or has the dims of a or the last of them.
void AddSelect(OpTable& table) {
  OpDef op;
  op.name = "select";
  op.min_operands = op.max_operands = 3;
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType& cond = call.in(0);
    TACC_RETURN_IF_ERROR(WantType("b", call.in(2), call.in(1)));
    const bool is_scalar = cond.rank() == 0 && IsFloating(cond.dtype);
    if (!is_scalar && cond.dtype != DType::kBool) return Wanted("cond", cond, "a floating scalar, or bool elements");
    TACC_RETURN_IF_ERROR(WantLastDims("cond", cond, "a", call.in(1).dims));
    return Types{call.in(1)};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return PointwiseRule(call, {{1, 2}}); };
  op.reuses = ReuseIfSameType(1);
  op.derive = [](VjpCall& call) {
    Builder& b = call.builder;
    const ValueId cond = call.node.operands[0];
    const ValueId dy = b.Cast(call.cotangents[0], b.type(call.node.operands[1]).dtype);
    const ValueId zero = b.Constant(0.0, b.type(dy));
    if (call.needs(1)) call.gradients[1] = b.Add("select", {cond, dy, zero});
    if (call.needs(2)) call.gradients[2] = b.Add("select", {cond, zero, dy});
    return absl::OkStatus();
  };
  table.Add(op);
}

}  // namespace

void AddElementwiseOps(OpTable& table) {
  AddArithmetic(table);
  AddUnaries(table);
  AddCast(table);
  AddSwiglu(table);
  AddJoinedSwiglu(table);
  AddSelect(table);
}

}  // namespace tacc::graph
