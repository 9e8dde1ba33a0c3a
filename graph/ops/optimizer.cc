// adamw adam lion sgd moving_average lr_schedule sum_squares is_finite.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/facts.h"
#include "graph/ops/target.h"
#include "graph/ops/update_operands.h"

namespace tacc::graph {
namespace {

// An op that updates a weight element by element (graph/ops/update_operands.h).
struct UpdateOp {
  const char* name;
  int min_states, max_states;
  std::vector<AttrSpec> attrs;
};

const std::vector<UpdateOp>& UpdateOps() {
  static const std::vector<UpdateOp> ops = {
      {"adamw", 2, 2, {{"beta1", AttrKind::kFloat}, {"beta2", AttrKind::kFloat}, {"epsilon", AttrKind::kFloat}}},
      {"adam", 2, 2, {{"beta1", AttrKind::kFloat}, {"beta2", AttrKind::kFloat}, {"epsilon", AttrKind::kFloat}}},
      {"lion", 1, 1, {{"beta1", AttrKind::kFloat}, {"beta2", AttrKind::kFloat}}},
      // The first operand is the average, lr how much of it stays, and g times grad_scale what comes to it.
      {"moving_average", 0, 0, {}},
      // Without momentum it has no state.
      {"sgd",
       0,
       1,
       {{"momentum", AttrKind::kFloat, AttrSpec::kOptional},
        {"dampening", AttrKind::kFloat, AttrSpec::kOptional},
        {"nesterov", AttrKind::kBool, AttrSpec::kOptional}}},
  };
  return ops;
}

absl::StatusOr<Types> InferUpdate(const UpdateOperands& at, const OpCall& call) {
  const int num_states = at.num_states, g = at.gradient;
  const TensorType& w = call.in(0);
  TACC_RETURN_IF_ERROR(WantFloating("w", w));
  const TensorType state{AccumulationType(w.dtype), w.dims};
  Types results{w};
  for (int i = 0; i < num_states; ++i) {
    TACC_RETURN_IF_ERROR(WantType(i == 0 ? "m" : "v", call.in(1 + i), state));
    results.push_back(state);
  }
  TACC_RETURN_IF_ERROR(WantFloating("g", call.in(g)));
  TACC_RETURN_IF_ERROR(WantDims("g", call.in(g), w.dims));
  constexpr const char* kScalars[] = {"lr", "grad_scale", "apply", "count"};
  for (int i = 0; i < 4; ++i) TACC_RETURN_IF_ERROR(WantFloatingScalar(kScalars[i], call.in(at.scalar(i))));
  if (at.momentum >= 0) TACC_RETURN_IF_ERROR(WantFloatingScalar("momentum", call.in(at.momentum)));
  if (call.attrs->count("copy") > 0) {
    TACC_ASSIGN_OR_RETURN(const DType copy, ParseDType(call.attr<std::string>("copy")));
    results.push_back({copy, w.dims});
    TACC_RETURN_IF_ERROR(WantFloating("the copy", results.back()));
  }
  return results;
}

void AddUpdates(OpTable& table) {
  for (const UpdateOp& update : UpdateOps()) {
    OpDef op;
    op.name = update.name;
    op.min_operands = kUpdateOperandsBesideStates + update.min_states;
    // A momentum behind them takes the place of the attribute.
    op.max_operands = kUpdateOperandsBesideStates + update.max_states + (update.max_states > 0 ? 1 : 0);
    op.num_results = -1;
    op.attrs = update.attrs;
    if (op.name != "moving_average") op.attrs.push_back({"weight_decay", AttrKind::kFloat});
    op.attrs.push_back({"copy", AttrKind::kString, AttrSpec::kOptional});
    const auto operands_of = [name = op.name](const OpCall& call) {
      return UpdateOperandsOf(name, call.operands.size());
    };
    op.infer = [operands_of](const OpCall& call) { return InferUpdate(operands_of(call), call); };
    op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return PointwiseRule(call, {}); };
    op.reuses = [operands_of](const OpCall& call) {
      std::vector<int> reuses(call.results.size(), -1);
      const int kept = 1 + operands_of(call).num_states;
      for (int i = 0; i < kept; ++i) reuses[i] = i;
      return reuses;
    };
    table.Add(op);
  }
}

void AddLrSchedule(OpTable& table) {
  OpDef op;
  op.name = "lr_schedule";
  op.min_operands = op.max_operands = 1;
  op.attrs = {{"type", AttrKind::kString},
              {"learning_rate", AttrKind::kFloat},
              {"warmup_steps", AttrKind::kInt},
              {"max_steps", AttrKind::kInt},
              {"min_lr_ratio", AttrKind::kFloat},
              {"num_cycles", AttrKind::kFloat, AttrSpec::kOptional},   // cosine, cosine_with_restarts
              {"power", AttrKind::kFloat, AttrSpec::kOptional},        // polynomial
              {"timescale", AttrKind::kInt, AttrSpec::kOptional},      // inverse_sqrt
              {"decay_steps", AttrKind::kInt, AttrSpec::kOptional},    // warmup_stable_decay
              {"decay_type", AttrKind::kString, AttrSpec::kOptional},  // warmup_stable_decay
              {"factors", AttrKind::kFloats, AttrSpec::kOptional}};    // table
  op.no_gradient = true;
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(WantType("step", call.in(0), {DType::kI64, {}}));
    const std::string type = call.attr<std::string>("type"), decay = call.attr<std::string>("decay_type", "cosine");
    const std::vector<std::string> types = {
        "cosine", "linear", "constant", "cosine_with_restarts", "polynomial", "inverse_sqrt", "warmup_stable_decay",
        "table"};
    if (std::find(types.begin(), types.end(), type) == types.end())
      return absl::InvalidArgumentError(absl::StrCat("type=", type, "; wanted ", absl::StrJoin(types, ", ")));
    if (decay != "cosine" && decay != "linear" && decay != "1-sqrt")
      return absl::InvalidArgumentError(absl::StrCat("decay_type=", decay, "; wanted cosine, linear or 1-sqrt"));
    if (type == "table" && call.attr<std::vector<double>>("factors").empty())
      return absl::InvalidArgumentError("type=table without factors");
    if (call.attr<int64_t>("timescale", 1) < 1)
      return absl::InvalidArgumentError(
          absl::StrCat("timescale=", call.attr<int64_t>("timescale"), "; wanted 1 or more"));
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
  AddUpdates(table);
  AddLrSchedule(table);
  AddSumSquares(table);
  AddIsFinite(table);
}

}  // namespace tacc::graph
