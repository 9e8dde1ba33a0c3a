// adamw lr_schedule sum_squares is_finite.
#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/facts.h"
#include "graph/ops/target.h"

namespace tacc::graph {
namespace {

void AddAdamW(OpTable& table) {
  OpDef op;
  op.name = "adamw";
  op.min_operands = op.max_operands = 8;  // w m v g lr grad_scale apply count
  op.num_results = -1;
  op.attrs = {{"beta1", AttrKind::kFloat},
              {"beta2", AttrKind::kFloat},
              {"epsilon", AttrKind::kFloat},
              {"weight_decay", AttrKind::kFloat},
              {"copy", AttrKind::kString, AttrSpec::kOptional}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType& w = call.in(0);
    TACC_RETURN_IF_ERROR(WantFloating("w", w));
    const TensorType moment{AccumulationType(w.dtype), w.dims};
    TACC_RETURN_IF_ERROR(WantType("m", call.in(1), moment));
    TACC_RETURN_IF_ERROR(WantType("v", call.in(2), moment));
    TACC_RETURN_IF_ERROR(WantFloating("g", call.in(3)));
    TACC_RETURN_IF_ERROR(WantDims("g", call.in(3), w.dims));
    constexpr const char* kScalars[] = {"lr", "grad_scale", "apply", "count"};
    for (int i = 0; i < 4; ++i) TACC_RETURN_IF_ERROR(WantFloatingScalar(kScalars[i], call.in(4 + i)));
    Types results{w, moment, moment};
    if (call.attrs->count("copy") > 0) {
      TACC_ASSIGN_OR_RETURN(const DType copy, ParseDType(call.attr<std::string>("copy")));
      results.push_back({copy, w.dims});
      TACC_RETURN_IF_ERROR(WantFloating("the copy", results.back()));
    }
    return results;
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return PointwiseRule(call, {}); };
  op.reuses = [](const OpCall& call) {
    std::vector<int> reuses(call.results.size(), -1);
    for (int i = 0; i < 3; ++i) reuses[i] = i;
    return reuses;
  };
  table.Add(op);
}

void AddLrSchedule(OpTable& table) {
  OpDef op;
  op.name = "lr_schedule";
  op.min_operands = op.max_operands = 1;
  op.attrs = {{"type", AttrKind::kString},
              {"learning_rate", AttrKind::kFloat},
              {"warmup_steps", AttrKind::kInt},
              {"max_steps", AttrKind::kInt},
              {"min_lr_ratio", AttrKind::kFloat}};
  op.no_gradient = true;
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(WantType("step", call.in(0), {DType::kI64, {}}));
    const std::string type = call.attr<std::string>("type");
    if (type != "cosine" && type != "linear" && type != "constant") {
      return absl::InvalidArgumentError(absl::StrCat("type=", type, "; wanted cosine, linear or constant"));
    }
    return Types{{DType::kF32, {}}};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return PointwiseRule(call, {}); };
  table.Add(op);
}

// Every dim is a factor that is summed away.
Rule ScalarRule(const OpCall& call) {
  Rule rule;
  rule.in = {AddFactors(rule, call.in(0).dims)};
  rule.out = {{}};
  rule.self_masking = true;
  return rule;
}

absl::StatusOr<Types> InferScalar(const OpCall& call) {
  TACC_RETURN_IF_ERROR(WantFloating("x", call.in(0)));
  return Types{{AccumulationType(call.in(0).dtype), {}}};
}

void AddSumSquares(OpTable& table) {
  OpDef op;
  op.name = "sum_squares";
  op.min_operands = 1;
  op.max_operands = -1;
  op.sums_operands = true;
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_ASSIGN_OR_RETURN(Types types, InferScalar(call));
    for (const TensorType& x : call.operands) {
      TACC_RETURN_IF_ERROR(WantFloating("x", x));
      if (AccumulationType(x.dtype) == types[0].dtype) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("operands ", call.in(0).ToString(), " and ", x.ToString(), " are summed in different types"));
    }
    return types;
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return ScalarRule(call); };
  op.derive = [](VjpCall& call) {
    Builder& b = call.builder;
    for (size_t i = 0; i < call.node.operands.size(); ++i) {
      if (!call.needs(static_cast<int>(i))) continue;
      const ValueId x = call.node.operands[i];
      const ValueId dx = b.Add("mul", {b.Scale(x, 2.0), call.cotangents[0]});
      call.gradients[i] = b.Cast(dx, b.type(x).dtype);
    }
    return absl::OkStatus();
  };
  op.workspace_bytes = [](const OpCall& call, const Target& target) {
    return target.SumSquaresBytes(static_cast<int64_t>(call.operands.size()));
  };
  table.Add(op);
}

void AddIsFinite(OpTable& table) {
  OpDef op;
  op.name = "is_finite";
  op.min_operands = op.max_operands = 1;
  op.no_gradient = true;
  op.infer = InferScalar;
  // Not a sum: the whole tensor is needed.
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule = ScalarRule(call);
    for (Factor& factor : rule.factors) factor.replicate = true;
    return rule;
  };
  table.Add(op);
}

}  // namespace

void AddOptimizerOps(OpTable& table) {
  AddAdamW(table);
  AddLrSchedule(table);
  AddSumSquares(table);
  AddIsFinite(table);
}

}  // namespace tacc::graph
