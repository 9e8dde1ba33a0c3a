// positions rope_table rotary. Dims: B batch, S sequence, H heads, D head dim.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/facts.h"

namespace tacc::graph {
namespace {

// Dims of what is made for each position: [length], or with the operand document_start, i32 [B,length], one for each
// row. Positions then count from the document's first token.
absl::StatusOr<Dims> PositionDims(const OpCall& call) {
  const int64_t length = call.attr<int64_t>("length");
  if (length < 0) return absl::InvalidArgumentError(absl::StrCat("length=", length, "; wanted 0 or more"));
  TACC_RETURN_IF_ERROR(CheckZigzag(call, length));
  if (call.operands.empty()) return Dims{length};
  const TensorType& start = call.in(0);
  TACC_RETURN_IF_ERROR(WantRank("document_start", start, 2));
  TACC_RETURN_IF_ERROR(WantType("document_start", start, {DType::kI32, {start.dims[0], length}}));
  return start.dims;
}

// The sequence, the last dim of PositionDims, is made from the shard's offset; `trailing` dims of the results are
// whole.
Rule PositionRule(const OpCall& call, int trailing) {
  Rule rule;
  const TensorType& y = call.out(0);
  std::vector<int> factors = AddFactors(rule, Dims(y.dims.begin(), y.dims.end() - trailing));
  if (!call.operands.empty()) rule.in = {factors};
  factors.resize(y.dims.size(), Rule::kNone);
  rule.out.assign(call.results.size(), factors);
  return rule;
}

void AddPositions(OpTable& table) {
  OpDef op;  // the position of each index of the sequence
  op.name = "positions";
  op.max_operands = 1;
  op.attrs = {{"length", AttrKind::kInt}, {"zigzag", AttrKind::kInt, AttrSpec::kOptional}};
  op.positional = op.takes_document_start = true;
  op.no_gradient = true;
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_ASSIGN_OR_RETURN(Dims dims, PositionDims(call));
    return Types{{DType::kI32, std::move(dims)}};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return PositionRule(call, 0); };
  table.Add(op);
}

void AddRopeTable(OpTable& table) {
  OpDef op;
  op.name = "rope_table";
  op.max_operands = 1;
  op.num_results = 2;
  op.attrs = {{"inv_freq", AttrKind::kFloats},
              {"length", AttrKind::kInt},
              {"attention_scale", AttrKind::kFloat, AttrSpec::kOptional},
              {"dtype", AttrKind::kString, AttrSpec::kOptional},
              {"zigzag", AttrKind::kInt, AttrSpec::kOptional}};
  op.positional = op.takes_document_start = true;
  op.no_gradient = true;
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_ASSIGN_OR_RETURN(Dims dims, PositionDims(call));
    const auto* inv_freq = std::get_if<std::vector<double>>(&call.attrs->at("inv_freq"));
    dims.push_back(inv_freq == nullptr ? 0 : static_cast<int64_t>(inv_freq->size()));
    const TensorType type{DTypeAttr(call, DType::kF32), std::move(dims)};
    if (AccumulationType(type.dtype) != type.dtype) return Wanted("the table", type, "f32 or f64 elements");
    return Types{type, type};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return PositionRule(call, 1); };
  table.Add(op);
}

void AddRotary(OpTable& table) {
  OpDef op;
  op.name = "rotary";
  op.min_operands = op.max_operands = 3;
  // limit, parts: only the first `limit` of `parts` equal parts of the heads are turned.
  op.attrs = {{"style", AttrKind::kString},
              {"inverse", AttrKind::kBool, AttrSpec::kOptional},
              {"limit", AttrKind::kInt, AttrSpec::kOptional},
              {"parts", AttrKind::kInt, AttrSpec::kOptional}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType &x = call.in(0), &cos = call.in(1);
    TACC_RETURN_IF_ERROR(WantFloating("x", x));
    TACC_RETURN_IF_ERROR(WantRank("x", x, 4));
    TACC_RETURN_IF_ERROR(WantFloating("cos", cos));
    // One table for all rows, or one for each.
    Dims wanted(x.dims.begin() + (cos.rank() == 3 ? 0 : 1), x.dims.begin() + 2);
    wanted.push_back(cos.rank() == 0 ? 0 : cos.dims.back());
    if (cos.dims != wanted || 2 * wanted.back() > x.dims[3]) {
      return Wanted("cos", cos,
                    absl::StrCat("dims [", x.dims[1], ",up to ", x.dims[3] / 2, "] for x, ", x.ToString(),
                                 ", or one such table a row"));
    }
    TACC_RETURN_IF_ERROR(WantType("sin", call.in(2), cos));
    const std::string style = call.attr<std::string>("style");
    if (style != "half" && style != "interleaved") {
      return absl::InvalidArgumentError(absl::StrCat("style=", style, "; wanted half or interleaved"));
    }
    const int64_t limit = call.attr<int64_t>("limit"), parts = call.attr<int64_t>("parts");
    if ((limit != 0 || parts != 0) && (limit <= 0 || limit > parts || x.dims[2] % parts != 0))
      return absl::InvalidArgumentError(
          absl::StrCat("limit=", limit, " of parts=", parts, " of ", x.dims[2], " heads"));
    return Types{x};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    const std::vector<int> x = AddFactors(rule, call.in(0).dims);
    rule.factors[x[3]].replicate = true;
    if (call.attr<int64_t>("parts") > 0) rule.factors[x[2]].replicate = rule.factors[x[2]].joined = true;
    std::vector<int> table = {x[1], Rule::kNone};
    if (call.in(1).rank() == 3) table.insert(table.begin(), x[0]);
    rule.in = {x, table, table};
    rule.out = {x};
    rule.linear_in = {{0}};
    return rule;
  };
  op.reuses = ReuseIfSameType(0);
  // Over its operand, as it may be, it leaves the other heads alone.
  op.touched_bytes = [](const OpCall& call) {
    const TensorType& x = call.in(0);
    const int64_t parts = call.attr<int64_t>("parts"), all = x.bytes() + call.out(0).bytes();
    return (parts > 0 ? all / parts * call.attr<int64_t>("limit") : all) + 2 * call.in(1).bytes();
  };
  op.derive = [](VjpCall& call) {
    if (call.needs(1) || call.needs(2))
      return absl::UnimplementedError("rotary has no derivative with respect to its tables");
    Builder& b = call.builder;
    const Node& node = call.node;
    Attrs attrs = node.attrs;
    attrs["inverse"] = !GetAttr<bool>(node.attrs, "inverse");
    const ValueId dy = b.Cast(call.cotangents[0], b.type(node.operands[0]).dtype);
    call.gradients[0] = b.Add("rotary", {dy, node.operands[1], node.operands[2]}, std::move(attrs));
    return absl::OkStatus();
  };
  table.Add(op);
}

}  // namespace

void AddRotaryOps(OpTable& table) {
  AddPositions(table);
  AddRopeTable(table);
  AddRotary(table);
}

}  // namespace tacc::graph
